//! Server and client over real sockets.

use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use control::{Answer, Client, ControlError, Listeners, Peer, Request, Server, Uid, oomd};
use headroom_linux::descriptors::{PassRights, set_pass_rights};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use test_support::lingering::{LingeringSockets, MOST_FILES};
use test_support::{privileged, spawn_as};

/// A uid without an account.
const USER: Uid = Uid(61_950);

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

/// A folder for a server's socket. The servers and the clients of all tests are in this process, so
/// they need more descriptors than the usual 1,024.
fn folder() -> tempfile::TempDir {
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }).unwrap();
    let dir = tempfile::tempdir().unwrap();
    std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    dir
}

/// A server for which `turn` is called whenever it is readable.
fn run(mode: u32, turn: impl FnMut(&mut Server) + Send + 'static) -> Running {
    let dir = folder();
    let path = dir.path().join("run/test.sock");
    let server = Server::bind(&path, mode).unwrap();
    run_server(dir, server, turn)
}

fn run_server(
    dir: tempfile::TempDir,
    mut server: Server,
    mut turn: impl FnMut(&mut Server) + Send + 'static,
) -> Running {
    let path = server.path().to_owned();
    let stop = Arc::new(AtomicBool::new(false));
    let stopped = stop.clone();
    let thread = std::thread::spawn(move || {
        while !stopped.load(Ordering::Relaxed) {
            wait_for(&server, Duration::from_millis(1));
            turn(&mut server);
        }
    });
    Running { path, _dir: dir, stop, thread: Some(thread) }
}

/// Waits until there are events to serve.
fn wait_for(server: &Server, patience: Duration) {
    let patience = rustix::event::Timespec::try_from(patience).unwrap();
    let mut fds = [rustix::event::PollFd::new(server, rustix::event::PollFlags::IN)];
    rustix::event::poll(&mut fds, Some(&patience)).unwrap();
}

/// A server that answers a number with a string of that length, and garbage with the error.
fn start() -> Running {
    start_for(0o600)
}

fn start_for(mode: u32) -> Running {
    run(mode, answer)
}

fn answer(server: &mut Server) {
    server.serve(|peer: Peer, request: Result<usize, String>| match request {
        Ok(len) => Ok("y".repeat(len)),
        Err(error) => Err(format!("uid {}: {error}", peer.uid)),
    });
}

/// As [`start_for`], as on a kernel that accepts (before Linux 6.16) or refuses files.
fn start_with(rights: PassRights) -> Running {
    let dir = folder();
    let server = Server::bind(&dir.path().join("test.sock"), 0o666).unwrap();
    if rights == PassRights::Accepted {
        let Listeners { all, root } = server.listeners();
        for listener in [Some(all), root].into_iter().flatten() {
            // Fails on a kernel that always accepts them.
            let _ = set_pass_rights(listener, PassRights::Accepted);
        }
    }
    run_server(dir, server, answer)
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
fn others_cannot_write_to_the_folder_whatever_the_umask() {
    let before = rustix::process::umask(rustix::fs::Mode::empty());
    let running = start();
    rustix::process::umask(before);
    let folder = running.path.parent().unwrap().metadata().unwrap();
    assert_eq!(folder.permissions().mode() & 0o777, 0o755);
}

#[test]
fn garbage_gets_an_error_that_names_the_peer_and_other_clients_continue() {
    let running = start();
    let mut bad = Client::connect(&running.path).unwrap();
    let mut good = Client::connect(&running.path).unwrap();
    let reply: Result<String, String> = bad.call(&"not a number").unwrap();
    let uid = rustix::process::geteuid().as_raw();
    assert!(reply.unwrap_err().starts_with(&format!("uid {uid}: ")));
    assert_eq!(good.call::<Result<String, String>>(&3).unwrap().unwrap(), "yyy");
}

#[test]
fn a_client_that_never_reads_does_not_delay_others() {
    let running = start();
    let mut deaf = Vec::new();
    for _ in 0..8 {
        let client = Client::connect(&running.path).unwrap();
        let fd = client.into_fd();
        for _ in 0..50 {
            // Fills the socket's queue and stops there: the server does not read requests from it
            // any more.
            let flags = rustix::net::SendFlags::DONTWAIT | rustix::net::SendFlags::NOSIGNAL;
            let _ = rustix::net::send(&fd, b".1000000", flags);
        }
        deaf.push(fd);
    }
    let mut good = Client::connect(&running.path).unwrap();
    assert_eq!(good.call::<Result<String, String>>(&2).unwrap().unwrap(), "yy");
}

#[test]
fn a_missing_and_a_second_daemon_are_distinguished_and_a_dead_one_is_replaced() {
    let running = start();
    assert!(matches!(Server::bind(&running.path, 0o600), Err(ControlError::InUse(_))));
    let mode = std::fs::metadata(&running.path).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);

    let gone = running.path.with_file_name("absent.sock");
    let error = Client::connect(&gone).err().unwrap();
    assert!(error.to_string().contains("no daemon listens on"), "{error}");

    let left = running.path.with_file_name("left.sock");
    drop(std::os::unix::net::UnixListener::bind(&left).unwrap());
    assert!(UnixStream::connect(&left).is_err(), "no program listens, but the file is there");
    drop(Server::bind(&left, 0o666));
    assert!(!left.exists(), "removed on drop");
}

#[test]
fn subscribers_are_notified_and_slow_readers_are_dropped() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("test.sock");
    let mut server = Server::bind(&path, 0o600).unwrap();
    let mut clients: Vec<Client> = (0..3).map(|_| Client::connect(&path).unwrap()).collect();
    // Two of the three subscribe.
    let (sender, receiver) = std::sync::mpsc::channel();
    let requests = std::thread::spawn(move || {
        for (at, client) in clients.iter_mut().enumerate() {
            let reply: bool = client.call(&(at < 2)).unwrap();
            assert_eq!(reply, at < 2);
        }
        sender.send(()).unwrap();
        clients
    });
    while receiver.try_recv().is_err() {
        server.serve_subscribers(|_, request: Result<bool, String>| request.unwrap(), |yes| *yes);
        std::thread::sleep(Duration::from_millis(1));
    }
    let mut clients = requests.join().unwrap();
    assert!(server.has_subscribers());
    // No subscriber may see this.
    server.publish(&"secret", |peer| peer.uid.0 == u32::MAX);
    let long = "x".repeat(4096);
    for at in 0..300 {
        server.publish(&(at, &long), |_| true);
        // The first one reads, the second never does.
        let (number, _): (u64, String) = clients[0].receive().unwrap();
        assert_eq!(number, at);
        server.serve_subscribers(|_, request: Result<bool, String>| request.unwrap(), |yes| *yes);
    }
    // The messages in its socket can still be received; then the connection is closed.
    let mut got = 0;
    let end = loop {
        match clients[1].receive::<(u64, String)>() {
            Ok(_) => got += 1,
            Err(error) => break error,
        }
    };
    assert!(got > 0 && got < 300, "{got}");
    assert!(matches!(end, ControlError::Closed(_)), "{end}");
    // The third one receives no events, and its requests are served.
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

#[test]
fn an_owner_gets_its_share_of_connections_and_the_rest_is_for_others() {
    if !privileged() {
        return;
    }
    let running = start_for(0o666);
    let path = running.path.clone();
    let greedy = spawn_as(USER, move || {
        let mut clients: Vec<Client> = (0..64).map(|_| Client::connect(&path).unwrap()).collect();
        // The first ones have a connection; the others get the reason for the refusal.
        let mut served = 0;
        for client in &mut clients {
            match client.call::<Result<String, String>>(&1) {
                Ok(reply) => {
                    assert_eq!(reply.unwrap(), "y");
                    served += 1;
                }
                Err(ControlError::Garbled { error, .. }) => {
                    panic!("the refusal is not of the daemons' replies: {error}");
                }
                Err(error) => assert!(matches!(error, ControlError::Closed(_)), "{error}"),
            }
        }
        (served, clients)
    });
    let (served, clients) = greedy.join().unwrap();
    assert_eq!(served, 8);
    let mut root = Client::connect(&running.path).unwrap();
    assert_eq!(root.call::<Result<String, String>>(&2).unwrap().unwrap(), "yy");
    // Closed connections can be opened again.
    drop(clients);
    let path = running.path.clone();
    let again = spawn_as(USER, move || {
        // The server may not have noticed yet that the others are closed.
        let end = Instant::now() + Duration::from_secs(30);
        loop {
            let mut client = Client::connect(&path).unwrap();
            match client.call::<Result<String, String>>(&1) {
                Ok(reply) => break reply.unwrap(),
                Err(error) => assert!(Instant::now() < end, "{error}"),
            }
        }
    });
    assert_eq!(again.join().unwrap(), "y");
}

#[test]
fn a_client_without_a_connection_gets_the_reason() {
    if !privileged() {
        return;
    }
    let running = start_for(0o666);
    let path = running.path.clone();
    let refused = spawn_as(USER, move || {
        let clients: Vec<Client> = (0..9).map(|_| Client::connect(&path).unwrap()).collect();
        std::thread::sleep(Duration::from_millis(100));
        let mut last = clients.into_iter().last().unwrap();
        let oomd: oomd::Reply = last.call(&oomd::Request::Status).unwrap();
        oomd
    });
    let oomd::Reply::Error { message } = refused.join().unwrap() else { panic!("served") };
    assert!(message.starts_with(&format!("uid {USER} has as many connections")), "{message}");
}

#[test]
fn a_flood_is_served_at_the_rate_of_its_owner_and_root_does_not_wait_for_it() {
    if !privileged() {
        return;
    }
    let served = Arc::new(AtomicUsize::new(0));
    let count = served.clone();
    let running = run(0o666, move |server| {
        server.serve(|peer: Peer, _: Result<usize, String>| {
            if !peer.is_root() {
                burn(Duration::from_millis(1));
                count.fetch_add(1, Ordering::Relaxed);
            }
        });
    });
    let path = running.path.clone();
    let begun = Instant::now();
    let flood = spawn_as(USER, move || {
        let fds = (0..8).map(|_| Client::connect(&path).unwrap().into_fd()).collect::<Vec<_>>();
        let flags = rustix::net::SendFlags::DONTWAIT | rustix::net::SendFlags::NOSIGNAL;
        while begun.elapsed() < Duration::from_secs(1) {
            for fd in &fds {
                let _ = rustix::net::send(fd, b".1", flags);
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    });
    let mut calls = 0;
    while !flood.is_finished() {
        let mut root = Client::connect(&running.path).unwrap();
        root.set_patience(Some(Duration::from_secs(1))).unwrap();
        let (): () = root.call(&1usize).unwrap();
        calls += 1;
        std::thread::sleep(Duration::from_millis(1));
    }
    let (elapsed, served) = (begun.elapsed(), served.load(Ordering::Relaxed));
    // 20 ms as a burst and 2 % of the time, at 1 ms each; a few for packets in progress.
    let most = 20 + elapsed.as_millis() as usize / 50 + 8;
    assert!((20..=most).contains(&served), "{served} of at most {most}");
    assert!(calls > 20, "root was served {calls} times");
}

#[test]
fn connections_beyond_the_rate_of_their_owner_are_refused_and_others_are_served() {
    if !privileged() {
        return;
    }
    let running = start_for(0o666);
    let stop = Arc::new(AtomicBool::new(false));
    let (path, stopped) = (running.path.clone(), stop.clone());
    let (refusals, refused) = std::sync::mpsc::channel();
    let flood = spawn_as(USER, move || {
        while !stopped.load(Ordering::Relaxed) {
            // Many of them without a look at the replies, to be beyond the rate.
            (0..100).for_each(|_| drop(Client::connect(&path)));
            let reply = Client::connect(&path).and_then(|mut it| it.call::<oomd::Reply>(&1));
            if let Ok(oomd::Reply::Error { message }) = reply {
                let _ = refusals.send(message);
            }
        }
    });
    let reason = format!("uid {USER} connects to the daemon too often");
    let end = Instant::now() + Duration::from_secs(60);
    while !refused.recv_timeout(Duration::from_secs(60)).unwrap().starts_with(&reason) {
        assert!(Instant::now() < end, "the flood is served");
    }
    let path = running.path.clone();
    let other = spawn_as(Uid(USER.0 + 1), move || {
        for _ in 0..20 {
            let mut client = Client::connect(&path).unwrap();
            assert_eq!(client.call::<Result<String, String>>(&1).unwrap().unwrap(), "y");
        }
    });
    other.join().unwrap();
    stop.store(true, Ordering::Relaxed);
    flood.join().unwrap();
}

/// Uses CPU time of this thread.
fn burn(time: Duration) {
    let now = || {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
        Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
    };
    let end = now() + time;
    while now() < end {}
}

#[test]
fn a_reply_may_come_later_and_the_clients_next_request_waits_for_it() {
    let mut waiting = Vec::new();
    let mut turns = 0;
    let running = run(0o600, move |server| {
        server.serve_requests(|request: Request<usize>| match request.body {
            Ok(0) => {
                waiting.push(request.id);
                Answer::Later
            }
            body => Answer::Now(body.unwrap()),
        });
        turns += 1;
        if turns % 20 == 0 {
            waiting.drain(..).for_each(|id| server.reply(id, &1000));
        }
    });
    let mut patient = Client::connect(&running.path).unwrap();
    let mut other = Client::connect(&running.path).unwrap();
    let fd = Client::connect(&running.path).unwrap().into_fd();
    let send = |packet: &[u8]| {
        rustix::net::send(&fd, packet, rustix::net::SendFlags::NOSIGNAL).unwrap();
    };
    send(b".0");
    send(b".7");
    // This client has closed its connection when its reply is sent.
    let gone = Client::connect(&running.path).unwrap().into_fd();
    rustix::net::send(&gone, b".0", rustix::net::SendFlags::NOSIGNAL).unwrap();
    drop(gone);
    assert_eq!(other.call::<usize>(&5).unwrap(), 5);
    assert_eq!(patient.call::<usize>(&0).unwrap(), 1000);
    let mut packets = [[0; 8]; 2];
    for packet in &mut packets {
        rustix::net::recv(&fd, &mut packet[..], rustix::net::RecvFlags::empty()).unwrap();
    }
    assert!(packets[0].starts_with(b".1000") && packets[1].starts_with(b".7"), "{packets:?}");
}

#[test]
fn root_has_a_socket_of_its_own_where_others_may_connect() {
    let running = start_for(0o666);
    let root = running.path.with_file_name("test-root.sock");
    let mode = std::fs::metadata(&root).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    drop(running);
    assert!(!root.exists());
    let running = start_for(0o600);
    assert!(!running.path.with_file_name("test-root.sock").exists());
}

/// Connections of one user with files in their first packets: those that are served, and those that
/// are refused because of the quota. Then requests of others.
fn send_files_and_call(rights: PassRights) {
    let running = start_with(rights);
    let path = running.path.clone();
    let attack = spawn_as(USER, move || {
        let mut ends = Vec::new();
        let mut connections = Vec::new();
        for _ in 0..12 {
            let sockets = LingeringSockets::new(MOST_FILES / 12).unwrap();
            let fd = Client::connect(&path).unwrap().into_fd();
            match sockets.pass(&fd, b".1") {
                Ok(()) => {
                    assert_eq!(rights, PassRights::Accepted);
                    ends.extend(sockets.leave());
                }
                Err(rustix::io::Errno::PERM) => assert_eq!(rights, PassRights::Refused),
                // The connection may be refused already.
                Err(errno) => assert_eq!(errno, rustix::io::Errno::PIPE),
            }
            connections.push(fd);
        }
        (ends, connections)
    });
    let (ends, connections) = attack.join().unwrap();
    // Each request fails after 30 s if the event loop is blocked.
    let calls = |count| {
        let mut client = Client::connect(&running.path).unwrap();
        for _ in 0..count {
            assert_eq!(client.call::<Result<String, String>>(&1).unwrap().unwrap(), "y");
        }
    };
    calls(20);
    // Closes the connections, some of which have unread packets.
    drop(connections);
    calls(20);
    drop(ends);
}

#[test]
fn files_of_clients_are_refused_and_delay_nobody() {
    if !privileged() {
        return;
    }
    let probe = rustix::net::socket(
        rustix::net::AddressFamily::UNIX,
        rustix::net::SocketType::SEQPACKET,
        None,
    );
    if set_pass_rights(probe.unwrap(), PassRights::Refused).is_ok() {
        send_files_and_call(PassRights::Refused);
    }
}

#[test]
fn files_that_a_kernel_accepts_are_closed_by_threads_and_delay_nobody() {
    if privileged() {
        send_files_and_call(PassRights::Accepted);
    }
}

#[test]
fn a_connection_with_a_file_is_closed_and_the_file_too() {
    let running = start_with(PassRights::Accepted);
    let fd = Client::connect(&running.path).unwrap().into_fd();
    // Without files it is served.
    rustix::net::send(&fd, b".1", rustix::net::SendFlags::NOSIGNAL).unwrap();
    let mut packet = [0; 64];
    let receive = |packet: &mut [u8]| {
        rustix::net::recv(&fd, packet, rustix::net::RecvFlags::empty()).map(|(len, _)| len)
    };
    assert!(receive(&mut packet).unwrap() > 0);
    let (read, write) = std::io::pipe().unwrap();
    let files = [std::os::fd::AsFd::as_fd(&write)];
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut message = rustix::net::SendAncillaryBuffer::new(&mut space);
    message.push(rustix::net::SendAncillaryMessage::ScmRights(&files));
    let packets = [std::io::IoSlice::new(b".1")];
    rustix::net::sendmsg(&fd, &packets, &mut message, rustix::net::SendFlags::NOSIGNAL).unwrap();
    drop(write);
    assert!(!matches!(receive(&mut packet), Ok(1..)), "the request is not answered");
    assert_eq!(std::io::read_to_string(read).unwrap(), "");
}

#[test]
fn only_the_socket_of_a_dead_daemon_is_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    let refusal = |path: &std::path::Path| Server::bind(path, 0o666).err().unwrap().to_string();
    std::fs::write(at("file.sock"), "kept").unwrap();
    let error = refusal(&at("file.sock"));
    assert!(error.ends_with(
        "file.sock: this is a regular file, not a daemon's socket; move it or use another --socket"
    ), "{error}");
    assert_eq!(std::fs::read_to_string(at("file.sock")).unwrap(), "kept");

    std::fs::create_dir(at("folder.sock")).unwrap();
    assert!(refusal(&at("folder.sock")).contains("this is a folder"));

    // The link leads to a dead socket, which stays, too.
    drop(std::os::unix::net::UnixListener::bind(at("dead")).unwrap());
    std::os::unix::fs::symlink(at("dead"), at("link.sock")).unwrap();
    assert!(refusal(&at("link.sock")).contains("this is a symbolic link"));
    assert!(at("link.sock").is_symlink() && at("dead").exists());

    let _living = std::os::unix::net::UnixListener::bind(at("stream.sock")).unwrap();
    assert!(refusal(&at("stream.sock")).contains("another daemon listens"));

    // Another file that has taken the place is not removed at the end.
    let server = Server::bind(&at("own.sock"), 0o666).unwrap();
    std::fs::remove_file(at("own.sock")).unwrap();
    std::fs::write(at("own.sock"), "kept").unwrap();
    drop(server);
    assert_eq!(std::fs::read_to_string(at("own.sock")).unwrap(), "kept");
    assert!(!at("own-root.sock").exists());
}

#[test]
fn subscribers_have_their_own_quota_and_leave_connections_to_others() {
    if !privileged() {
        return;
    }
    let running = run(0o666, |server| {
        server.serve_subscribers(|_, request: Result<bool, String>| request.unwrap(), |yes| *yes);
    });
    // As many users as there are connections, each with as many subscriptions as it may have.
    let mut sessions = Vec::new();
    for uid in 0..64 {
        let path = running.path.clone();
        let user = spawn_as(Uid(USER.0 + uid), move || {
            let subscribe = |_| {
                let mut client = Client::connect(&path).unwrap();
                assert!(client.call::<bool>(&true).unwrap());
                client
            };
            let clients: Vec<Client> = (0..8).map(subscribe).collect();
            // One more subscription is refused, and the connection is served.
            let mut client = Client::connect(&path).unwrap();
            let refused: oomd::Reply = client.call(&true).unwrap();
            let oomd::Reply::Error { message } = refused else { panic!("{refused:?}") };
            assert!(message.contains("as many subscriptions"), "{message}");
            assert!(!client.call::<bool>(&false).unwrap());
            clients
        });
        sessions.push(user.join().unwrap());
    }
    let path = running.path.clone();
    let call = move || Client::connect(&path).unwrap().call::<bool>(&false).unwrap();
    assert!(!spawn_as(Uid(USER.0 + 64), call).join().unwrap());
    // A slot is free again when its subscriber has ended.
    sessions[0].pop();
    let path = running.path.clone();
    let again = move || {
        let end = Instant::now() + Duration::from_secs(30);
        // The server may not have noticed the end yet.
        while Client::connect(&path).unwrap().call::<bool>(&true).is_err() {
            assert!(Instant::now() < end, "no slot is free");
        }
    };
    spawn_as(USER, again).join().unwrap();
}
