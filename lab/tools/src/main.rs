//! A static program that runs inside the lab's machines.
//!
//! `binder-version DEVICE` prints the protocol version that a binder device returns; `spin` prints
//! the (virtual) time that a fixed amount of work took; `scenario` runs one out-of-memory scenario
//! and prints one JSON line; the other commands are the scenario's processes.

mod binder_version;
mod clock;
mod groups;
mod interactive;
mod load;
mod memory;
mod observer;
mod options;
mod scenario;
mod shared;
mod spin;

use std::process::ExitCode;

use options::Options;

type Result<T> = std::result::Result<T, String>;

fn main() -> ExitCode {
    let mut words = std::env::args().skip(1);
    let command = words.next().unwrap_or_default();
    let outcome = Options::parse(words).and_then(|options| match command.as_str() {
        "binder-version" => binder_version::run(&options),
        "spin" => spin::run(),
        "scenario" => scenario::run(&options),
        "interactive" => interactive::run(&options),
        "bystander" => load::hold(&options),
        "leak" => load::leak(&options),
        "herd" => load::herd(&options),
        "forkbomb" => load::forkbomb(&options),
        "thrash" => load::thrash(&options),
        "memfd" => load::memfd(&options),
        "ramfs" => load::ramfs(&options),
        "page-tables" => load::page_tables(&options),
        _ => {
            Err("usage: lab-tools binder-version DEVICE | spin | scenario --scenario NAME ..."
                .into())
        }
    });
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("lab-tools {command}: {message}");
            ExitCode::from(2)
        }
    }
}
