//! A server with several threads.

use std::sync::mpsc::channel;
use std::thread;

use anyhow::{Context, Result};
use binder_client::{Client, Service, Session};

use crate::peer::report_ready;

/// Serves on so many threads, each with a service of its own, until one fails; then the process
/// exits.
pub fn serve<S: Service>(
    client: &Client,
    threads: usize,
    service: impl Fn() -> S + Sync,
) -> Result<()> {
    let (failed, failure) = channel();
    thread::scope(|scope| {
        for _ in 0..threads {
            let (service, failed) = (&service, failed.clone());
            scope.spawn(move || {
                let end = Session::new(client).serve(&mut service());
                let _ = failed.send(end);
            });
        }
        report_ready();
        // The other threads are blocked in the driver and cannot be stopped: the process exits.
        let end = failure.recv().context("no thread")?;
        eprintln!("a server's thread ended: {end:?}");
        std::process::exit(1)
    })
}
