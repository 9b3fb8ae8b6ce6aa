//! Calls per second of several pairs at once, each a client process and a server process.
//!
//! A client reads intervals of the monotonic clock from its stdin. It calls without a pause until
//! the end of the interval, and prints the number of calls that it completed after its start. Each
//! message has the CPU time that the server's handler is to use, so the same pairs measure idle and
//! busy handlers.

use std::io::BufRead;
use std::process::Stdio;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use binder_client::{Answer, Client, Options, Payload, Received, Session, registry};
use headroom_linux::clock::monotonic_ns;

use crate::callers::Callers;
use crate::devices::Device;
use crate::machine::thread_cpu_ns;
use crate::peer::{Peer, Worker, report_ready};
use crate::{server, sockets};

/// Time for which the clients call before their calls count.
const WARM_UP: Duration = Duration::from_millis(50);
/// The object of each server.
const OBJECT: u64 = 1;

/// A message: the CPU time that the handler uses, microseconds.
type Message = [u8; 4];

/// One measurement.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// Number of pairs that call at the same time.
    pub pairs: usize,
    /// CPU time of the handler per call, microseconds.
    pub handler_us: u32,
    /// Time for which calls count.
    pub period: Duration,
}

/// Result of one measurement.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rate {
    /// Completed calls of all clients per second.
    pub calls_per_s: f64,
    /// CPU time of the daemon per call, microseconds; `None` without a daemon or a call.
    pub daemon_cpu_us: Option<f64>,
}

/// Starts `count` pairs over a device. A further process is its context manager, from which the
/// clients get their servers.
pub fn over_binder(device: &Device, count: usize) -> Result<Callers> {
    Callers::of_device(device, |path| {
        let server = |words: &[&str]| Peer::start(words, Stdio::null(), Stdio::null());
        let mut servers = vec![server(&["registry", path])?];
        let mut clients = Vec::new();
        for number in 0..count {
            let name = number.to_string();
            servers.push(server(&["serve", path, &name])?);
            clients.push(Worker::start(None, &["call", path, &name])?);
        }
        Ok((clients, servers))
    })
}

/// Measures the rate of the first [`Load::pairs`] pairs.
pub fn measure(pairs: &mut Callers, load: Load) -> Result<Rate> {
    ensure!(pairs.workers.len() >= load.pairs, "too few pairs");
    let start = monotonic_ns() + WARM_UP.as_nanos() as u64;
    let end = start + load.period.as_nanos() as u64;
    for client in &mut pairs.workers[..load.pairs] {
        client.order(&format!("{start} {end} {}", load.handler_us))?;
    }
    sleep_until(start);
    let (cpu_before, from) = (pairs.daemon_cpu_ns()?, monotonic_ns());
    sleep_until(end);
    let (cpu_after, to) = (pairs.daemon_cpu_ns()?, monotonic_ns());
    let mut calls = 0;
    for client in &mut pairs.workers[..load.pairs] {
        calls += client.answer().with_context(|| pairs.name.clone())?.parse::<u64>()?;
    }
    let calls_per_s = calls as f64 / load.period.as_secs_f64();
    let cpu_ns = cpu_before.zip(cpu_after).map(|(before, after)| after - before);
    // This process may run late: CPU time is related to the time between its own readings.
    let cpu_us_per_s = cpu_ns.map(|ns| ns as f64 * 1e6 / (to - from) as f64);
    let daemon_cpu_us = cpu_us_per_s.filter(|_| calls > 0).map(|us| us / calls_per_s);
    Ok(Rate { calls_per_s, daemon_cpu_us })
}

fn sleep_until(at: u64) {
    thread::sleep(Duration::from_nanos(at.saturating_sub(monotonic_ns())));
}

/// Main function of a peer.
pub fn play(words: &[&str]) -> Result<()> {
    match words {
        ["registry", device] => serve_registry(device),
        ["serve", device, name] => serve(device, name),
        ["call", device, name] => call(device, name),
        ["serve-socket"] => serve_socket(),
        ["call-socket"] => call_socket(),
        _ => bail!("no such role: {words:?}"),
    }
}

/// Executes the orders on stdin.
fn call_in_intervals(mut call: impl FnMut(Message) -> Result<()>) -> Result<()> {
    report_ready();
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        let words: Vec<&str> = line.split(' ').collect();
        let [start, end, handler_us] = words[..] else { bail!("no interval: {line}") };
        let (start, end): (u64, u64) = (start.parse()?, end.parse()?);
        let message = handler_us.parse::<u32>()?.to_ne_bytes();
        println!("{}", count_calls(start, end, || call(message))?);
    }
    Ok(())
}

/// Calls until `end`, and counts the calls that complete from `start` on.
fn count_calls(start: u64, end: u64, mut call: impl FnMut() -> Result<()>) -> Result<u64> {
    let mut calls = 0;
    loop {
        call()?;
        let now = monotonic_ns();
        if now >= end {
            return Ok(calls);
        }
        calls += u64::from(now >= start);
    }
}

/// Uses as much CPU time as the message requests. The thread's own time, so that handlers that wait
/// for a CPU do no less work.
fn handle(message: &[u8]) -> Result<()> {
    let us = u32::from_ne_bytes(message.try_into().context("not a message")?);
    if us > 0 {
        let end = thread_cpu_ns()? + u64::from(us) * 1000;
        while thread_cpu_ns()? < end {}
    }
    Ok(())
}

fn serve_registry(device: &str) -> Result<()> {
    let client = server::manager(device)?;
    report_ready();
    Ok(registry::serve(&mut Session::new(&client))?)
}

fn serve(device: &str, name: &str) -> Result<()> {
    let client = Client::open(device, &Options::default())?;
    let mut session = Session::new(&client);
    registry::publish(&mut session, name, OBJECT, 0)?;
    report_ready();
    let mut service = |_: &mut Session<'_>, incoming: &Received<'_>| -> Answer {
        let handled = incoming.data().map_err(anyhow::Error::from).and_then(handle);
        handled.map_or(Answer::Status(-libc::EINVAL), |()| Answer::Echo)
    };
    Ok(session.serve(&mut service)?)
}

fn call(device: &str, name: &str) -> Result<()> {
    let client = Client::open(device, &Options::default())?;
    let mut session = Session::new(&client);
    let handle = registry::find(&mut session, name)?.context("the server is not registered")?;
    call_in_intervals(|message| {
        let reply = session.call(handle, 1, Payload::bytes(&message))?;
        ensure!(reply.data()? == message, "a reply differs");
        session.free(reply);
        Ok(())
    })
}

fn serve_socket() -> Result<()> {
    report_ready();
    sockets::echo(std::io::stdin(), size_of::<Message>(), handle)
}

fn call_socket() -> Result<()> {
    let (ours, theirs) = sockets::pair(4096)?;
    let _server = Peer::start(&["serve-socket"], theirs.into(), Stdio::null())?;
    let mut reply = Message::default();
    call_in_intervals(|message| {
        sockets::call(&ours, &message, &mut reply)?;
        ensure!(reply == message, "a reply differs");
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_calls_inside_of_the_interval_count() {
        let mut made = 0;
        let start = monotonic_ns() + 20_000_000;
        let counted = count_calls(start, start + 20_000_000, || {
            made += 1;
            thread::sleep(Duration::from_millis(1));
            Ok(())
        });
        let counted = counted.unwrap();
        assert!(counted > 0 && counted < made, "{counted} of {made}");
    }

    #[test]
    fn a_handler_uses_the_requested_cpu_time() {
        let before = thread_cpu_ns().unwrap();
        handle(&2000u32.to_ne_bytes()).unwrap();
        assert!(thread_cpu_ns().unwrap() - before >= 2_000_000);
        assert!(handle(b"not a number").is_err());
    }
}
