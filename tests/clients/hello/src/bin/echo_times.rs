//! `echo_times [NAME]`: a client for benchmarks. For each line `CALLS LENGTH` on stdin, calls the
//! service's `echo` so many times with a text of so many characters, and prints the nanoseconds of
//! each call on one line. Prints `ready` first.

use std::error::Error;
use std::io::stdin;
use std::time::Instant;

use hello::headroom::hello::IHello::IHello;
use rsbinder::{ProcessState, hub};

fn main() -> Result<(), Box<dyn Error>> {
    let name = std::env::args().nth(1).unwrap_or_else(|| hello::SERVICE.to_owned());
    ProcessState::init_default()?;
    let service = hub::wait_for_interface::<dyn IHello>(&name)?;
    println!("ready");
    for line in stdin().lines() {
        let line = line?;
        let (calls, length) = line.split_once(' ').ok_or("not two numbers")?;
        let (calls, text) = (calls.parse::<usize>()?, "x".repeat(length.parse()?));
        let mut times = Vec::with_capacity(calls);
        for _ in 0..calls {
            let start = Instant::now();
            let reply = service.echo(&text)?;
            times.push(start.elapsed().as_nanos().to_string());
            if reply != text {
                return Err("the echo differs".into());
            }
        }
        println!("{}", times.join(" "));
    }
    Ok(())
}
