//! Calls the service from another process. Needs a bus with a service manager:
//!
//! ```text
//! headroom run --service-manager -- cargo test
//! ```

use std::process::{Child, Command};
use std::sync::Once;

use adder::example::IAdder::IAdder;
use rsbinder::{ExceptionCode, ProcessState, Strong, hub};

/// A service of one test, ended on drop.
struct Service {
    process: Child,
    adder: Strong<dyn IAdder>,
}

impl Service {
    fn start(test: &str) -> Self {
        static CLIENT: Once = Once::new();
        CLIENT.call_once(|| {
            ProcessState::init_default().expect("no bus: run this with `headroom run`");
            ProcessState::start_thread_pool();
        });
        let name = format!("example.IAdder/{test}");
        let process = Command::new(env!("CARGO_BIN_EXE_adder")).arg(&name).spawn().unwrap();
        let adder = hub::wait_for_interface(&name).expect("the service does not register");
        Self { process, adder }
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[test]
fn numbers_are_added() {
    let service = Service::start("sum");
    assert_eq!(service.adder.add(2, 3), Ok(5));
}

#[test]
fn an_overflow_is_an_illegal_argument() {
    let service = Service::start("overflow");
    let error = service.adder.add(i32::MAX, 1).unwrap_err();
    assert_eq!(error.exception_code(), ExceptionCode::IllegalArgument);
}
