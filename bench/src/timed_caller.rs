//! A process that makes calls and times them itself.
//!
//! It reads orders from its stdin, a line with two numbers: calls, and a parameter of each call. It
//! replies with a line of the nanoseconds of each call.

use std::io::{BufRead, BufReader, Write};
use std::process::{ChildStdin, ChildStdout};
use std::time::Instant;

use anyhow::{Context, Result};

use crate::peer::finish;

/// The pipes to such a process.
pub struct TimedCaller {
    name: String,
    /// `None`: it is finished.
    orders: Option<ChildStdin>,
    replies: BufReader<ChildStdout>,
}

impl TimedCaller {
    /// Takes the pipes of a process; `name` is that of the subject in the results.
    pub fn new(name: &str, orders: ChildStdin, replies: BufReader<ChildStdout>) -> Self {
        Self { name: name.to_owned(), orders: Some(orders), replies }
    }

    /// Name in the results.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Requests `calls` calls with this parameter. Returns nanoseconds per call.
    pub fn calls(&mut self, calls: usize, parameter: usize) -> Result<Vec<u64>> {
        self.order(calls, parameter)?;
        self.times(calls)
    }

    /// Requests `calls` calls with this parameter.
    pub fn order(&mut self, calls: usize, parameter: usize) -> Result<()> {
        let orders = self.orders.as_mut().context("the caller has ended")?;
        writeln!(orders, "{calls} {parameter}").with_context(|| self.name.clone())
    }

    /// Waits for the times of the requested calls, nanoseconds.
    pub fn times(&mut self, calls: usize) -> Result<Vec<u64>> {
        let mut line = String::new();
        self.replies.read_line(&mut line)?;
        let times = line.split_whitespace().map(str::parse).collect::<Result<Vec<u64>, _>>();
        let times = times.with_context(|| format!("{}: {}", self.name, line.trim()))?;
        anyhow::ensure!(times.len() == calls, "{}: its caller has ended", self.name);
        Ok(times)
    }
}

impl Drop for TimedCaller {
    fn drop(&mut self) {
        finish(self.orders.take(), &mut self.replies);
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
