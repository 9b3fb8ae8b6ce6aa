//! `files_client NAME`: passes a pipe to the service, and receives one from it. The service may run
//! in another container.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;

use rsbinder::{ParcelFileDescriptor, ProcessState, hub};
use suite::headroom::suite::ISuite::ISuite;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let name = std::env::args().nth(1).ok_or("files_client NAME")?;
    ProcessState::init_default()?;
    ProcessState::start_thread_pool();
    let suite = hub::wait_for_interface::<dyn ISuite>(&name)?;
    let (read, mut write) = std::io::pipe()?;
    write.write_all(b"to the service")?;
    drop(write);
    let mut content = Vec::new();
    suite.readFrom(&ParcelFileDescriptor::new(OwnedFd::from(read)), &mut content)?;
    assert_eq!(content, b"to the service");
    let mut text = String::new();
    File::from(OwnedFd::from(suite.pipeWith("from the service")?)).read_to_string(&mut text)?;
    assert_eq!(text, "from the service");
    println!("files passed in both directions");
    Ok(())
}
