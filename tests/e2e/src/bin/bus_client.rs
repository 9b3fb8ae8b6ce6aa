//! Processes that tests of the bus start: `bus_client ROLE PATH...`. Each prints `ready` first. A
//! role that fails panics.

use std::fs::File;
use std::io::{Write, stdin};
use std::os::fd::{AsFd, AsRawFd, FromRawFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use binder_client::{Answer, Client, Echo, Options, Parcel, Payload, Received, Session};
use binder_fuse::{Bus, Config, Event, MappingChoice, MappingKind, Server};
use binder_uapi::ioctl::BINDER_WRITE_READ;
use binder_uapi::{
    BINDER_TYPE_BINDER, BinderWriteRead, FLAT_BINDER_FLAG_ACCEPTS_FDS, FlatBinderObject, Return,
};
use control::Uid;
use test_support::helper::Helper;
use test_support::spawn_as;

/// A call with this code ends `echo`.
const STOP: u32 = 99;
const NOBODY: Uid = Uid(65534);

fn main() {
    // An orphan would keep its test's mount busy.
    let parent = Some(rustix::process::Signal::KILL);
    rustix::process::set_parent_process_death_signal(parent).unwrap();
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [role, paths @ ..] = arguments.as_slice() else { panic!("bus_client ROLE PATH...") };
    match (role.as_str(), paths) {
        ("echo", [device]) => echo(device),
        ("echo-then-exec", [device]) => echo_then_exec(device),
        ("read", [fd]) => read_from(fd.parse().unwrap()),
        ("echo-tid", [device]) => echo_and_report_tid(device),
        ("swallow", [device]) => swallow(device),
        ("poke", [device]) => poke(device),
        ("poke-often", [device]) => poke_often(device),
        ("write-to-files", [device]) => write_to_files(device),
        ("write-to-files-sandboxed", [device]) => {
            become_nobody();
            // As if that user had started it: its files in /proc belong to that user.
            // SAFETY: plain numbers.
            unsafe { libc::prctl(libc::PR_SET_DUMPABLE, 1, 0, 0, 0) };
            e2e::sandbox::forbid_sockets().unwrap();
            write_to_files(device);
        }
        ("call-as-nobody", [device]) => call_as_nobody(Path::new(device)),
        ("call-under-several-uids", [device]) => call_under_several_uids(device),
        ("call-echo", [device]) => call_echo(Path::new(device)),
        ("serve", [mount]) => serve(mount),
        ("own-bus", [daemon]) => own_bus(daemon),
        ("leave-bus", [daemon, mount]) => leave_bus(daemon, mount),
        _ => panic!("unknown arguments {arguments:?}"),
    }
}

fn answer(text: &str) {
    println!("{text}");
}

fn wait_for_line() -> String {
    let mut line = String::new();
    stdin().read_line(&mut line).unwrap();
    line.trim_end().to_owned()
}

fn open(device: impl AsRef<Path>) -> Client {
    Client::open(device, &Options::default()).unwrap()
}

fn manager(device: &str) -> Client {
    let client = open(device);
    client.become_context_manager().unwrap();
    client
}

/// Echoes each message until it receives [`STOP`].
fn echo(device: &str) {
    let client = manager(device);
    answer("ready");
    let mut service = |_: &mut Session<'_>, incoming: &Received<'_>| match incoming.code() {
        STOP => Answer::Stop(Parcel::new()),
        _ => Answer::Echo,
    };
    Session::new(&client).serve(&mut service).unwrap();
}

/// As `echo`, and then executes `read` with the device open.
fn echo_then_exec(device: &str) {
    let client = manager(device);
    rustix::io::fcntl_setfd(&client, rustix::io::FdFlags::empty()).unwrap();
    answer("ready");
    let mut service = |_: &mut Session<'_>, incoming: &Received<'_>| match incoming.code() {
        STOP => Answer::Stop(Parcel::new()),
        _ => Answer::Echo,
    };
    Session::new(&client).serve(&mut service).unwrap();
    let fd = client.as_fd().as_raw_fd().to_string();
    let failed = Command::new(std::env::current_exe().unwrap()).args(["read", &fd]).exec();
    panic!("{failed}");
}

/// Waits in a read of a device that an earlier program has opened and mapped.
fn read_from(fd: i32) {
    answer("replaced");
    let mut returns = [0; 256];
    let mut bwr = BinderWriteRead {
        read_size: returns.len() as u64,
        read_buffer: returns.as_mut_ptr() as u64,
        ..BinderWriteRead::default()
    };
    loop {
        bwr.read_consumed = 0;
        // SAFETY: the argument and its read buffer are live.
        let result = unsafe { libc::ioctl(fd, BINDER_WRITE_READ.into(), &raw mut bwr) };
        assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
    }
}

/// As `echo`, without an end; reports the tid that waits for calls.
fn echo_and_report_tid(device: &str) {
    let client = manager(device);
    answer("ready");
    answer(&rustix::thread::gettid().as_raw_nonzero().to_string());
    Session::new(&client).serve(&mut Echo).unwrap();
}

/// Receives calls and never answers them.
fn swallow(device: &str) {
    let client = manager(device);
    let mut session = Session::new(&client);
    session.enter_looper().unwrap();
    answer("ready");
    loop {
        if let Return::Transaction(_) = session.receive().unwrap() {
            answer("swallowed");
        }
    }
}

/// Sends each line of its input to the manager, one-way.
fn poke(device: &str) {
    let client = open(device);
    let mut session = Session::new(&client);
    answer("ready");
    for line in stdin().lines() {
        session.oneway(0, 1, Payload::bytes(line.unwrap().as_bytes())).unwrap();
    }
}

/// Sends a number of one-way calls to the manager. The first line has the number, and how many of
/// them are sent per further line.
fn poke_often(device: &str) {
    let client = open(device);
    let mut session = Session::new(&client);
    answer("ready");
    let line = wait_for_line();
    let mut numbers = line.split(' ').map(|number| number.parse::<u32>().unwrap());
    let (number, window) = (numbers.next().unwrap(), numbers.next().unwrap());
    for sent in 1..=number {
        session.oneway(0, 1, Payload::default()).unwrap();
        if sent.is_multiple_of(window) && sent > window {
            wait_for_line();
        }
    }
}

/// A context manager with a worse nice value, which writes `here` to each descriptor that it
/// receives, and replies with its nice value.
fn write_to_files(device: &str) {
    let client = open(device);
    let flags = FLAT_BINDER_FLAG_ACCEPTS_FDS;
    let node = FlatBinderObject { ty: BINDER_TYPE_BINDER, flags, binder: 0, cookie: 0 };
    client.become_context_manager_ext(node).unwrap();
    rustix::process::setpriority_process(None, 10).unwrap();
    answer("ready");
    let mut service = |_: &mut Session<'_>, incoming: &Received<'_>| {
        for object in incoming.objects().unwrap() {
            // SAFETY: the driver has just installed it for this process, and no other code uses it.
            let mut file = unsafe { File::from_raw_fd(object.handle() as i32) };
            file.write_all(b"here").unwrap();
        }
        let nice = rustix::process::getpriority_process(None).unwrap();
        Answer::Reply(Parcel::new().bytes(&nice.to_ne_bytes()))
    };
    // Until the bus ends.
    let _ = Session::new(&client).serve(&mut service);
}

fn become_nobody() {
    let Uid(id) = NOBODY;
    // SAFETY: plain numbers; this process has one thread.
    let changed = unsafe { libc::setresgid(id, id, id) == 0 && libc::setresuid(id, id, id) == 0 };
    assert!(changed, "cannot become nobody: {}", std::io::Error::last_os_error());
}

fn call_as_nobody(device: &Path) {
    become_nobody();
    answer("ready");
    let client = open(device);
    let mut session = Session::new(&client);
    let reply = session.call(0, 1, Payload::bytes(b"who am I?")).unwrap();
    answer(std::str::from_utf8(reply.data().unwrap()).unwrap());
    session.free(reply);
    session.flush().unwrap();
    let control = device.with_file_name("binder-control");
    assert!(File::open(control).is_err(), "devices are added by root only");
    assert!(std::fs::remove_file(device).is_err(), "and removed");
}

/// Calls as root, as nobody in one thread, as nobody with the whole process, and as root again.
fn call_under_several_uids(device: &str) {
    answer("ready");
    let client = open(device);
    let call = |client: &Client| {
        let mut session = Session::new(client);
        let reply = session.call(0, 1, Payload::default()).unwrap();
        session.free(reply);
        session.flush().unwrap();
    };
    call(&client);
    let client = spawn_as(NOBODY, move || {
        call(&client);
        client
    });
    let client = client.join().unwrap();
    for uid in [NOBODY, Uid::ROOT] {
        // SAFETY: seteuid takes an integer.
        assert_eq!(unsafe { libc::seteuid(uid.0) }, 0);
        call(&client);
    }
    answer("done");
}

/// Starts `echo` in another process, as a manager does not receive calls from its own process, and
/// calls it.
fn call_echo(device: &Path) {
    answer("ready");
    let program = std::env::current_exe().unwrap();
    let _echo = Helper::run(Command::new(program).arg("echo").arg(device));
    let client = open(device);
    let mut session = Session::new(&client);
    let data = [7; 5000];
    let reply = session.call(0, 1, Payload::bytes(&data)).unwrap();
    assert!(reply.data().unwrap() == data, "the echo differs");
    session.free(reply);
    session.flush().unwrap();
}

/// Serves with each mapping in turn, until a line arrives; then continues with the next one.
fn serve(mount: &str) {
    answer("ready");
    for kind in [MappingKind::Passthrough, MappingKind::NotifyStore] {
        let mut config = Config::new(mount);
        config.devices = vec!["one".into(), "two".into()];
        config.mapping = MappingChoice::Only(kind);
        let mut server = Server::new(&config).unwrap();
        server.add_external(stdin().as_fd(), 7).unwrap();
        answer(server.mapping().name());
        assert_eq!(server.next_event().unwrap(), Event::External(7));
        assert_eq!(wait_for_line(), "enough");
        assert_eq!((server.device_count(), server.open_count()), (2, 0));
        drop(server);
        answer("unmounted");
        // Otherwise the next mount could appear while the test checks that this one has
        // disappeared.
        wait_for_line();
    }
}

/// Starts a bus from this process, with any user.
fn own_bus(daemon: &str) {
    let bus = Bus::builder().program(daemon).start().unwrap();
    std::fs::remove_file(bus.device("vndbinder")).unwrap();
    let entries = std::fs::read_dir(bus.path()).unwrap();
    let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["binder", "binder-control", "features", "hwbinder"]);
    call_echo(&bus.device("binder"));
    let path = bus.path().to_owned();
    drop(bus);
    assert!(!path.exists());
    answer(&path.display().to_string());
}

/// Starts a bus, then kills itself.
fn leave_bus(daemon: &str, mount: &str) {
    let bus = Bus::builder().program(daemon).mount(mount).start().unwrap();
    drop(open(bus.device("binder")));
    answer("ready");
    // SAFETY: a signal to this process.
    unsafe { libc::raise(libc::SIGKILL) };
}
