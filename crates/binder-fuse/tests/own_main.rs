//! A program that serves its own [`Bus`]: it has no test harness, because its `main` has to be its
//! own.
#![allow(missing_docs)]

use std::fs::File;

use binder_fuse::Bus;

fn main() {
    Bus::serve_if_started();
    if let Err(error) = File::options().read(true).write(true).open("/dev/fuse") {
        return test_support::skip(format_args!("/dev/fuse: {error}"));
    }
    let bus = Bus::builder().devices(["only"]).start().unwrap();
    assert!(bus.device("only").exists());
    let path = bus.path().to_owned();
    drop(bus);
    assert!(!path.exists(), "{}", path.display());
}
