//! Server and client over real sockets.

use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use control::{Client, ControlError, Peer, Server};

struct Running {
    path: PathBuf,
    _dir: tempfile::TempDir,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.take().unwrap().join().unwrap();
    }
}

/// A server that answers a number with so many bytes, and garbage with its complaint.
fn start() -> Running {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("run/test.sock");
    let mut server = Server::bind(&path, 0o600).unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let stopped = stop.clone();
    let thread = std::thread::spawn(move || {
        while !stopped.load(Ordering::Relaxed) {
            server.serve(|peer: Peer, request: Result<usize, String>| match request {
                Ok(len) => Ok("y".repeat(len)),
                Err(complaint) => Err(format!("uid {}: {complaint}", peer.uid)),
            });
            std::thread::sleep(Duration::from_millis(1));
        }
    });
    Running { path, _dir: dir, stop, thread: Some(thread) }
}

#[test]
fn small_and_large_replies_arrive_whole() {
    let running = start();
    let mut client = Client::connect(&running.path).unwrap();
    for len in [0, 1, 65_536, 3_000_000] {
        let reply: Result<String, String> = client.call(&len).unwrap();
        assert_eq!(reply.unwrap().len(), len);
    }
}

#[test]
fn garbage_gets_an_answer_that_names_the_peer_and_others_go_on() {
    let running = start();
    let mut bad = Client::connect(&running.path).unwrap();
    let mut good = Client::connect(&running.path).unwrap();
    let reply: Result<String, String> = bad.call(&"not a number").unwrap();
    let uid = rustix::process::geteuid().as_raw();
    assert!(reply.unwrap_err().starts_with(&format!("uid {uid}: ")));
    assert_eq!(good.call::<Result<String, String>>(&3).unwrap().unwrap(), "yyy");
}

#[test]
fn a_client_that_never_reads_does_not_hold_up_others() {
    let running = start();
    let mut deaf = Vec::new();
    for _ in 0..8 {
        let client = Client::connect(&running.path).unwrap();
        let fd = client.into_fd();
        for _ in 0..50 {
            // Fills the socket's queue and stops there: the server no longer takes requests from it.
            let flags = rustix::net::SendFlags::DONTWAIT | rustix::net::SendFlags::NOSIGNAL;
            let _ = rustix::net::send(&fd, b".1000000", flags);
        }
        deaf.push(fd);
    }
    let mut good = Client::connect(&running.path).unwrap();
    assert_eq!(good.call::<Result<String, String>>(&2).unwrap().unwrap(), "yy");
}

#[test]
fn no_daemon_and_two_daemons_are_told_apart_and_a_dead_one_is_replaced() {
    let running = start();
    assert!(matches!(Server::bind(&running.path, 0o600), Err(ControlError::InUse(_))));
    let mode = std::fs::metadata(&running.path).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);

    let gone = running.path.with_file_name("nobody.sock");
    let error = Client::connect(&gone).err().unwrap();
    assert!(error.to_string().contains("no daemon is listening"), "{error}");

    let left = running.path.with_file_name("left.sock");
    drop(std::os::unix::net::UnixListener::bind(&left).unwrap());
    assert!(UnixStream::connect(&left).is_err(), "nobody listens, but the file is there");
    drop(Server::bind(&left, 0o666));
    assert!(!left.exists(), "removed on drop");
}

#[test]
fn who_has_subscribed_is_told_and_who_does_not_read_is_dropped() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("test.sock");
    let mut server = Server::bind(&path, 0o600).unwrap();
    let mut clients: Vec<Client> = (0..3).map(|_| Client::connect(&path).unwrap()).collect();
    // Two of the three subscribe.
    let (told, asked) = std::sync::mpsc::channel();
    let ask = std::thread::spawn(move || {
        for (at, client) in clients.iter_mut().enumerate() {
            let reply: bool = client.call(&(at < 2)).unwrap();
            assert_eq!(reply, at < 2);
        }
        told.send(()).unwrap();
        clients
    });
    while asked.try_recv().is_err() {
        server.serve_subscribers(|_, request: Result<bool, String>| request.unwrap(), |yes| *yes);
        std::thread::sleep(Duration::from_millis(1));
    }
    let mut clients = ask.join().unwrap();
    assert!(server.has_subscribers());
    // Nobody who may hear of it.
    server.publish(&"secret", |peer| peer.uid == u32::MAX);
    let long = "x".repeat(4096);
    for at in 0..300 {
        server.publish(&(at, &long), |_| true);
        // The first one reads, the second never does.
        let (number, _): (u64, String) = clients[0].receive().unwrap();
        assert_eq!(number, at);
        server.serve_subscribers(|_, request: Result<bool, String>| request.unwrap(), |yes| *yes);
    }
    // What was in its socket it may have; then comes the end.
    let mut got = 0;
    let end = loop {
        match clients[1].receive::<(u64, String)>() {
            Ok(_) => got += 1,
            Err(error) => break error,
        }
    };
    assert!(got > 0 && got < 300, "{got}");
    assert!(matches!(end, ControlError::Closed(_)), "{end}");
    // The third one is told nothing, and served.
    let serve = std::thread::spawn(move || {
        while !server.has_subscribers() {
            std::thread::sleep(Duration::from_millis(1));
        }
        server.serve(|_, request: Result<bool, String>| request.unwrap());
        server
    });
    clients[2].set_patience(Some(Duration::from_millis(1))).unwrap();
    assert!(matches!(clients[2].receive::<bool>(), Err(ControlError::Timeout { .. })));
    drop(serve.join().unwrap());
}
