//! Clients of a subject, each a process that makes calls and times them itself.
//!
//! It reads orders from its stdin, a line with two numbers: calls, and a parameter of each call. It
//! replies with a line of the nanoseconds of each call.

use std::io::BufRead;
use std::process::Stdio;
use std::time::Instant;

use anyhow::{Context, Result};

use crate::devices::Device;
use crate::machine::process_cpu_ns;
use crate::peer::{Peer, Worker};

/// The clients, with their servers.
pub struct Callers {
    /// Name of the subject in the results.
    pub name: String,
    /// The clients.
    pub workers: Vec<Worker>,
    daemon: Option<u32>,
    // Dropped after the clients.
    _servers: Vec<Peer>,
}

impl Callers {
    /// Clients without a device, whose servers are no peers of this process.
    pub fn new(name: &str, workers: Vec<Worker>) -> Self {
        Self { name: name.to_owned(), workers, daemon: None, _servers: Vec::new() }
    }

    /// Starts `count` clients, each with a server of its own on a Unix socket pair.
    pub fn over_sockets(name: &str, count: usize) -> Result<Self> {
        let workers = (0..count).map(|_| Worker::start(None, &["call-socket"]));
        Ok(Self::new(name, workers.collect::<Result<_>>()?))
    }

    /// Starts `count` clients of one server, the context manager of the device.
    pub fn over_binder(device: &Device, count: usize) -> Result<Self> {
        Self::of_device(device, |path| {
            let server = Peer::start(&["serve", path], Stdio::null(), Stdio::null())?;
            let workers = (0..count).map(|_| Worker::start(None, &["call", path]));
            Ok((workers.collect::<Result<_>>()?, vec![server]))
        })
    }

    /// The clients and servers that `start` starts on the device with this path.
    pub fn of_device(
        device: &Device,
        start: impl FnOnce(&str) -> Result<(Vec<Worker>, Vec<Peer>)>,
    ) -> Result<Self> {
        let (workers, servers) = start(device.path_text()?).context(device.name.clone())?;
        let name = device.name.clone();
        Ok(Self { name, workers, daemon: device.daemon(), _servers: servers })
    }

    /// CPU time of the private daemon, nanoseconds; `None` without one.
    pub fn daemon_cpu_ns(&self) -> Result<Option<u64>> {
        self.daemon.map(process_cpu_ns).transpose()
    }

    /// Requests `calls` calls with this parameter of a single client. Returns nanoseconds per call.
    pub fn calls(&mut self, calls: usize, parameter: usize) -> Result<Vec<u64>> {
        Ok(self.calls_of_all(calls, &[parameter])?.concat())
    }

    /// Requests `calls` calls of each client at the same time, with a parameter for each. Returns
    /// nanoseconds per call, by client.
    pub fn calls_of_all(&mut self, calls: usize, parameters: &[usize]) -> Result<Vec<Vec<u64>>> {
        for (worker, parameter) in self.workers.iter_mut().zip(parameters) {
            worker.order(&format!("{calls} {parameter}")).with_context(|| self.name.clone())?;
        }
        let times = |worker: &mut Worker| {
            let line = worker.answer()?;
            let times = line.split_whitespace().map(str::parse).collect::<Result<Vec<u64>, _>>();
            let times = times.with_context(|| line.clone())?;
            anyhow::ensure!(times.len() == calls, "{} of {calls} times", times.len());
            Ok(times)
        };
        let asked = self.workers.iter_mut().take(parameters.len());
        let all = asked.map(times).collect::<Result<_>>();
        all.with_context(|| self.name.clone())
    }
}

/// Executes the orders on stdin: `call` makes one call, with the parameter and the number of the
/// call in its order.
pub fn execute_orders(mut call: impl FnMut(usize, usize) -> Result<()>) -> Result<()> {
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        let (calls, parameter) = line.split_once(' ').context("two numbers")?;
        let (calls, parameter) = (calls.parse::<usize>()?, parameter.parse()?);
        let mut times = Vec::with_capacity(calls);
        for number in 0..calls {
            let start = Instant::now();
            call(parameter, number)?;
            times.push(start.elapsed().as_nanos().to_string());
        }
        println!("{}", times.join(" "));
    }
    Ok(())
}
