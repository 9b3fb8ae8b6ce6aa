//! Servers of binder calls.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use binder_client::{Client, Errno, Options, Service, Session};
use binder_uapi::{BINDER_TYPE_BINDER, FLAT_BINDER_FLAG_ACCEPTS_FDS, FlatBinderObject};

use crate::peer::report_ready;

/// Limit for the device's former context manager to be gone: the driver then has a million handles
/// to drop.
const PATIENCE: Duration = Duration::from_secs(120);

/// Opens a device as its context manager, which accepts file descriptors.
pub fn manager(device: &str) -> Result<Client> {
    let client = Client::open(device, &Options::default())?;
    let flags = FLAT_BINDER_FLAG_ACCEPTS_FDS;
    let object = FlatBinderObject { ty: BINDER_TYPE_BINDER, flags, binder: 0, cookie: 0 };
    let start = Instant::now();
    while let Err(error) = client.become_context_manager_ext(object) {
        let busy = error.errno() == Some(Errno::BUSY) && start.elapsed() < PATIENCE;
        if !busy {
            return Err(error).context("a device without a context manager is needed");
        }
        thread::sleep(Duration::from_millis(20));
    }
    Ok(client)
}

/// Serves as the context manager of a device, on the calling thread.
pub fn serve_alone(device: &str, service: &mut impl Service) -> Result<()> {
    let client = manager(device)?;
    let mut session = Session::new(&client);
    session.enter_looper()?;
    report_ready();
    Ok(session.serve(service)?)
}

/// Serves as the context manager of a device on so many threads, each with a service of its own,
/// until one fails; then the process exits.
pub fn serve<S: Service>(
    device: &str,
    threads: usize,
    service: impl Fn() -> S + Sync,
) -> Result<()> {
    let client = &manager(device)?;
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                let end = Session::new(client).serve(&mut service());
                // The other threads are blocked in the driver and cannot be stopped.
                eprintln!("a server's thread ended: {end:?}");
                std::process::exit(1)
            });
        }
        report_ready();
    });
    Ok(())
}
