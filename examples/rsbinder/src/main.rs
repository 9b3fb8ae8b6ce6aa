//! `adder [NAME]`: registers with the service manager and serves.

use adder::example::IAdder::{BnAdder, IAdder};
use rsbinder::{BinderResult, ExceptionCode, Interface, ProcessState, hub};

struct Adder;

impl Interface for Adder {}

impl IAdder for Adder {
    fn add(&self, a: i32, b: i32) -> BinderResult<i32> {
        a.checked_add(b).ok_or_else(|| (ExceptionCode::IllegalArgument, "overflow").into())
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let name = std::env::args().nth(1).unwrap_or_else(|| adder::SERVICE.to_owned());
    ProcessState::init_default()?;
    ProcessState::start_thread_pool();
    hub::add_service(&name, BnAdder::new_binder(Adder))?;
    ProcessState::join_thread_pool()?;
    Ok(())
}
