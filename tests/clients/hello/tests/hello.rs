//! A typical test of a project with services and clients. It needs a bus and a service manager on
//! it:
//!
//! ```text
//! headroom run --service-manager 'rsb_hub --insecure-allow-all' -- cargo test
//! ```

use std::path::Path;
use std::process::{Child, Command};

struct Service(Child);

impl Drop for Service {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn the_client_is_content_with_the_service() {
    if !Path::new("/dev/binderfs/binder").exists() {
        eprintln!("skipped: no bus; headroom run -- cargo test");
        return;
    }
    let name = format!("headroom.hello.IHello/test-{}", std::process::id());
    let service = Command::new(env!("CARGO_BIN_EXE_hello_service")).arg(&name).spawn();
    let _service = Service(service.expect("cannot start the service"));
    let client = Command::new(env!("CARGO_BIN_EXE_hello_client")).arg(&name).status();
    assert!(client.expect("cannot start the client").success());
}
