//! A process that makes calls and times them itself.
//!
//! It reads orders from its stdin, a line with two numbers: calls, and a parameter of each call. It
//! replies with a line of the nanoseconds of each call.

use std::io::BufRead;
use std::time::Instant;

use anyhow::{Context, Result};

use crate::peer::Worker;

/// Such a process, and the name of the subject in the results.
pub struct TimedCaller(pub String, pub Worker);

impl TimedCaller {
    /// Starts a peer.
    pub fn start(name: &str, words: &[&str]) -> Result<Self> {
        Ok(Self(name.to_owned(), Worker::start(None, words)?))
    }

    /// Requests `calls` calls with this parameter. Returns nanoseconds per call.
    pub fn calls(&mut self, calls: usize, parameter: usize) -> Result<Vec<u64>> {
        self.order(calls, parameter)?;
        self.times(calls)
    }

    /// Requests `calls` calls with this parameter.
    pub fn order(&mut self, calls: usize, parameter: usize) -> Result<()> {
        self.1.order(&format!("{calls} {parameter}")).with_context(|| self.0.clone())
    }

    /// Waits for the times of the requested calls, nanoseconds.
    pub fn times(&mut self, calls: usize) -> Result<Vec<u64>> {
        let line = self.1.answer().with_context(|| self.0.clone())?;
        let times = line.split_whitespace().map(str::parse).collect::<Result<Vec<u64>, _>>();
        let times = times.with_context(|| format!("{}: {line}", self.0))?;
        anyhow::ensure!(times.len() == calls, "{}: {} of {calls} times", self.0, times.len());
        Ok(times)
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
