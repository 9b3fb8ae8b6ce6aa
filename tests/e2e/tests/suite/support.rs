//! Functions that several tests use.

use std::path::Path;
use std::sync::mpsc::{Receiver, channel};
use std::thread;

use binder_client::{Client, Options, Payload, Session, registry};
use e2e::{Bus, Peer, wait};

/// A code that services here echo.
pub const CALL: u32 = 1;

/// Opens `binder` with the usual options.
pub fn open(bus: &Bus) -> Client {
    Client::open(bus.device("binder"), &Options::default()).unwrap()
}

/// Starts a process on `binder` and waits until it is ready.
pub fn peer(bus: &Bus, arguments: &[&str]) -> Peer {
    let peer = silent_peer(bus, arguments);
    peer.expect("ready");
    peer
}

/// Starts a process on `binder`.
pub fn silent_peer(bus: &Bus, arguments: &[&str]) -> Peer {
    Peer::start_on(bus, Path::new(env!("CARGO_BIN_EXE_peer")), "binder", arguments)
}

/// The registry, in a separate process: the driver does not permit calls to a context manager in
/// the same process.
pub fn manager(bus: &Bus) -> Peer {
    peer(bus, &["manager", "1"])
}

/// The object of [`publish`].
pub const OBJECT: u64 = 0x0b1ec7;

/// An open that has published [`OBJECT`], so that this very process can call it by another open.
pub fn publish(bus: &Bus, name: &str, options: &Options) -> Client {
    let client = Client::open(bus.device("binder"), options).unwrap();
    let mut session = Session::new(&client);
    registry::publish(&mut session, name, OBJECT, 0).unwrap();
    drop(session);
    client
}

/// Looks up a published object; returns its handle, with a reference.
pub fn find(session: &mut Session<'_>, name: &str) -> u32 {
    let found = registry::find(session, name).unwrap();
    found.unwrap_or_else(|| panic!("no process published {name}"))
}

/// Calls an echoing object and checks the reply.
pub fn expect_echo(session: &mut Session<'_>, handle: u32, data: &[u8]) {
    let reply = session.call(handle, CALL, Payload::bytes(data)).unwrap();
    assert!(reply.data().unwrap() == data, "the echo of {} bytes differs", data.len());
    session.free(reply);
    session.flush().unwrap();
}

/// Runs a closure in a new thread, with a time limit.
pub fn bounded<T: Send + 'static>(what: &str, run: impl FnOnce() -> T + Send + 'static) -> T {
    let (sender, receiver) = channel();
    thread::spawn(move || sender.send(run()));
    take(what, &receiver)
}

/// Receives a value with a time limit.
pub fn take<T>(what: &str, receiver: &Receiver<T>) -> T {
    match receiver.recv_timeout(wait::PATIENCE) {
        Ok(value) => value,
        Err(error) => panic!("{what}: {error}; {}", wait::describe(std::process::id())),
    }
}

/// Tid of the calling thread.
pub fn own_tid() -> u32 {
    rustix::thread::gettid().as_raw_nonzero().get() as u32
}
