//! A client in a separate process, for tests: `peer DEVICE ACTION [ARGUMENT...]`.
//!
//! It prints `ready` just before its action, and is killed when the process that started it exits.

use std::fs::File;
use std::io::Write;
use std::os::fd::{AsFd, FromRawFd};
use std::path::Path;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use binder_client::{
    Answer, Call, Client, ClientError, Echo, OnSignal, Options, Parcel, Payload, Received, Session,
    registry,
};
use binder_uapi::{
    BINDER_TYPE_BINDER, BINDER_TYPE_FD, FLAT_BINDER_FLAG_ACCEPTS_FDS,
    FLAT_BINDER_FLAG_PRIORITY_MASK, FlatBinderObject, TF_ACCEPT_FDS,
};
use control::Uid;
use e2e::random::Random;
use e2e::{attacks, late_clients, malice, ring_client, soak};

/// Object of an echo service; the number is arbitrary.
const OBJECT: u64 = 0xec40;
/// Code of a plain call.
const CALL: u32 = 1;

type Outcome = Result<(), String>;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    if let [.., last] = &words[..]
        && (*last == "--check-state" || words.iter().any(|word| word.starts_with("--resume=")))
    {
        return stand_in_for_the_daemon(last);
    }
    die_with_parent();
    if let [device, "unshared", map, rest @ ..] = &words[..] {
        return unshared(device, map, rest);
    }
    let outcome = match &words[..] {
        [device, action @ ..] => act(device, action),
        [] => Err(unknown(&words)),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("peer {}: {error}", words.join(" "));
            ExitCode::FAILURE
        }
    }
}

fn act(device: &str, words: &[&str]) -> Outcome {
    match words {
        ["manager", threads] => number(threads).and_then(|n| manager(device, n)),
        ["echo", name] => echo_service(device, name),
        ["caller", name, count, seed] => number(count)
            .and_then(|count| number(seed).and_then(|seed| caller(device, name, count, seed))),
        ["soak-client", rest @ ..] => soak_client(device, rest),
        ["soak-service", name] => soak::service(device, name),
        ["call", name] => one_call(device, name),
        ["calls", count] => number(count).and_then(|count| calls(device, count)),
        ["read"] => read(device),
        ["read-in-thread"] => read_in_thread(device),
        ["busy", name] => busy_service(device, name),
        ["deaf"] => deaf_service(device),
        ["passes-itself"] => passes_itself(device),
        ["who"] => who_service(device),
        ["without-main-thread", opened] => service_without_main_thread(device, opened),
        ["nice", uid] => {
            user(uid).and_then(|uid| priority_service(device, uid, FLAT_BINDER_FLAG_PRIORITY_MASK))
        }
        ["priority", uid, flags] => user(uid).and_then(|uid| {
            number(flags).and_then(|flags| priority_service(device, uid, flags as u32))
        }),
        ["files", uid] => user(uid).and_then(|uid| files_service(device, uid)),
        ["files-few", uid] => {
            user(uid).and_then(|uid| files_service_with_room_for_few(device, uid))
        }
        ["files-ignoring-sigtrap", uid] => {
            user(uid).and_then(|uid| files_service_ignoring_sigtrap(device, uid))
        }
        ["files-sandboxed", uid] => user(uid).and_then(|uid| files_service_sandboxed(device, uid)),
        ["files-traced", uid] => user(uid).and_then(|uid| files_service_traced(device, uid)),
        ["files-interrupted", uid] => {
            user(uid).and_then(|uid| files_service_interrupted(device, uid, 300))
        }
        ["files-interrupted", uid, every] => user(uid).and_then(|uid| {
            number(every).and_then(|every| files_service_interrupted(device, uid, every))
        }),
        ["files-cost", count] => number(count).and_then(|count| files_cost(device, count)),
        ["freeze", pid, timeout] => number(pid)
            .and_then(|pid| number(timeout).and_then(|timeout| freeze(device, pid, timeout))),
        ["thaw", pid] => number(pid).and_then(|pid| thaw(device, pid)),
        ["in-user-namespace", action @ ..] => unshare_user().and_then(|()| act(device, action)),
        ["whoami", uid] => user(uid).and_then(|uid| call_as(device, uid)),
        ["late-pages", uid, pages, ms] => {
            let (pages, after) = (number(pages)? as usize, Duration::from_millis(number(ms)?));
            late_clients::call_from_late_pages(device, user(uid)?, pages, after)
        }
        ["late-parcels", uid, calls, ms] => {
            let after = Some(Duration::from_millis(number(ms)?));
            late_clients::call_with_late_parcels(device, user(uid)?, number(calls)? as usize, after)
        }
        ["late-files", uid, calls, ms] => {
            let (calls, after) = (number(calls)? as usize, Duration::from_millis(number(ms)?));
            late_clients::receive_files_late(device, user(uid)?, calls, after)
        }
        ["hung-returns", uid] => late_clients::call_with_late_parcels(device, user(uid)?, 1, None),
        ["late-clients", uid, areas, uids] => {
            let (areas, uids) = (number(areas)? as usize, number(uids)? as usize);
            late_clients::run(device, user(uid)?, areas, uids)
        }
        ["as", uid, action @ ..] => {
            user(uid).and_then(become_ordinary).and_then(|()| act(device, action))
        }
        ["as-nobody", action @ ..] => become_user(Uid(65534)).and_then(|()| act(device, action)),
        _ => malice::act(device, words)
            .or_else(|| attacks::act(device, words))
            .or_else(|| ring_client::act(device, words))
            .unwrap_or_else(|| Err(unknown(words))),
    }
}

/// Acts as a program that the daemon is to be replaced by, and fails as the variable directs.
fn stand_in_for_the_daemon(argument: &str) -> ExitCode {
    if let ("--check-state", Some(path)) = (argument, std::env::var_os("HEADROOM_WRITE_STATE")) {
        let copied =
            File::create(path).and_then(|mut file| std::io::copy(&mut std::io::stdin(), &mut file));
        copied.expect("the state is kept for tests of the format");
    }
    match (std::env::var(e2e::FAILING_UPGRADE).as_deref(), argument) {
        (Ok("check-hangs"), "--check-state") => loop {
            thread::park();
        },
        (Ok("check-is-silent"), "--check-state") => {}
        (Ok("program-exits"), "--check-state") => println!("verified"),
        _ => {
            eprintln!("this is not the daemon");
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}

fn unknown(words: &[&str]) -> String {
    format!("peer: unknown arguments {words:?}")
}

fn die_with_parent() {
    let _ = rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL));
}

fn number(word: &str) -> Result<u64, String> {
    word.parse().map_err(|_| format!("{word}: not a number"))
}

fn user(word: &str) -> Result<Uid, String> {
    word.parse().map(Uid).map_err(|_| format!("{word}: not a uid"))
}

fn text(error: ClientError) -> String {
    error.to_string()
}

fn open(device: &str) -> Result<Client, String> {
    Client::open(Path::new(device), &Options::default()).map_err(text)
}

fn ready() {
    println!("ready");
}

/// Serves the registry with one thread and echoes with the others.
fn manager(device: &str, threads: u64) -> Outcome {
    let client = open(device)?;
    client.become_context_manager().map_err(text)?;
    thread::scope(|scope| {
        for _ in 1..threads {
            scope.spawn(|| Session::new(&client).serve(&mut Echo));
        }
        let mut session = Session::new(&client);
        ready();
        // With one thread all calls arrive here; with several, the registry needs a single owner.
        registry::serve(&mut session).map_err(text)
    })
}

fn find(session: &mut Session<'_>, name: &str) -> Result<u32, String> {
    if name == "manager" {
        return Ok(0);
    }
    for _ in 0..2000 {
        if let Some(handle) = registry::find(session, name).map_err(text)? {
            return Ok(handle);
        }
        thread::sleep(Duration::from_millis(1));
    }
    Err(format!("no process publishes {name}"))
}

/// Publishes an object and echoes calls to it.
fn echo_service(device: &str, name: &str) -> Outcome {
    let client = open(device)?;
    let mut session = Session::new(&client);
    registry::publish(&mut session, name, OBJECT, 0).map_err(text)?;
    ready();
    session.serve(&mut Echo).map_err(text)
}

/// Publishes an object that receives calls and never answers them: it prints `called` and sleeps.
fn busy_service(device: &str, name: &str) -> Outcome {
    let client = open(device)?;
    let mut session = Session::new(&client);
    registry::publish(&mut session, name, OBJECT, 0).map_err(text)?;
    ready();
    let mut sleep = |_: &mut Session<'_>, _: &Received<'_>| -> Answer {
        println!("called");
        loop {
            thread::sleep(Duration::from_secs(3600));
        }
    };
    session.serve(&mut sleep).map_err(text)
}

/// Calls `name` repeatedly, with sizes and contents that the seed determines, checks each reply,
/// and prints its progress. Passes an object of its own with some calls, which is then returned.
fn caller(device: &str, name: &str, count: u64, seed: u64) -> Outcome {
    let client = open(device)?;
    let mut session = Session::new(&client);
    let mut random = Random::new(seed);
    let mut handle = find(&mut session, name)?;
    ready();
    let mut done = 0;
    while done < count {
        let size = match random.below(10) {
            0 => random.below(64 * 1024),
            1..5 => random.below(4096),
            _ => random.below(64),
        };
        let fill = random.below(256) as u8;
        let object = (random.below(4) == 0).then(|| OBJECT + u64::from(fill));
        match checked_echo(&mut session, handle, &vec![fill; size as usize], object) {
            Ok(()) => done += 1,
            // The service was killed; a new one is registered with the same name.
            Err(ClientError::DeadReply) if handle != 0 => {
                session.release(handle);
                handle = find(&mut session, name)?;
            }
            Err(error) => {
                let why = client.extended_error();
                return Err(format!("call {done} of {size} bytes: {error} ({why:?})"));
            }
        }
        if done % 10 == 0 {
            println!("{done}");
        }
    }
    session.flush().map_err(text)
}

fn checked_echo(
    session: &mut Session<'_>,
    handle: u32,
    bytes: &[u8],
    object: Option<u64>,
) -> Result<(), ClientError> {
    let mut parcel = binder_client::Parcel::new().bytes(bytes);
    if let Some(object) = object {
        parcel = parcel.binder(object, 0);
    }
    let reply = session.call(handle, CALL, parcel.payload())?;
    let data = reply.data()?;
    let right = data.len() == parcel.data.len() && data.starts_with(bytes);
    // Our own object comes back as itself, not as a handle.
    let objects = reply.objects()?;
    let right = right && objects.iter().map(|object| object.binder).eq(object);
    session.free(reply);
    if right { Ok(()) } else { Err(ClientError::Contents("the echo differs from what was sent")) }
}

fn soak_client(device: &str, numbers: &[&str]) -> Outcome {
    let numbers = numbers.iter().map(|word| number(word)).collect::<Result<Vec<_>, _>>()?;
    let [index, clients, seed] = numbers[..] else { return Err(unknown(&["soak-client"])) };
    soak::client(device, index, clients, seed)
}

fn one_call(device: &str, name: &str) -> Outcome {
    let client = open(device)?;
    let mut session = Session::new(&client);
    let handle = find(&mut session, name)?;
    ready();
    let payload = Payload::bytes(b"one call");
    let call = Call { handle, code: CALL, flags: TF_ACCEPT_FDS, payload };
    let reply = session.call_with(call, &mut Echo).map_err(text)?;
    if reply.data().map_err(text)? != b"one call" {
        return Err("the echo differs from what was sent".to_owned());
    }
    session.free(reply);
    println!("answered");
    session.flush().map_err(text)
}

/// Calls the manager `count` times.
fn calls(device: &str, count: u64) -> Outcome {
    let client = open(device)?;
    let mut session = Session::new(&client);
    ready();
    for _ in 0..count {
        let reply = session.call(0, CALL, Payload::bytes(b"call")).map_err(text)?;
        session.free(reply);
    }
    session.flush().map_err(text)
}

/// Blocks in a read that never returns work.
fn read(device: &str) -> Outcome {
    let client = open(device)?;
    let mut session = Session::new(&client);
    session.enter_looper().map_err(text)?;
    ready();
    session.serve(&mut Echo).map_err(text)
}

/// As `read`, in a thread other than the main thread.
fn read_in_thread(device: &str) -> Outcome {
    let client = open(device)?;
    thread::scope(|scope| {
        let reader = scope.spawn(|| Session::new(&client).serve(&mut Echo).map_err(text));
        ready();
        reader.join().map_err(|_| "the reader panicked".to_owned())?
    })
}

/// Freezes a process, and waits for its pending transactions.
fn freeze(device: &str, pid: u64, timeout: u64) -> Outcome {
    let client = open(device)?;
    ready();
    client.freeze(pid as u32, timeout as u32).map_err(text)
}

fn thaw(device: &str, pid: u64) -> Outcome {
    let client = open(device)?;
    ready();
    client.thaw(pid as u32).map_err(text)
}

/// Enters a user namespace of its own, where it has all capabilities.
fn unshare_user() -> Outcome {
    // SAFETY: plain numbers; the process has one thread.
    match unsafe { libc::unshare(libc::CLONE_NEWUSER) } {
        0 => Ok(()),
        _ => Err(format!("cannot unshare: {}", std::io::Error::last_os_error())),
    }
}

/// Becomes a context manager that accepts files and never reads.
fn deaf_service(device: &str) -> Outcome {
    let client = open(device)?;
    let flags = FLAT_BINDER_FLAG_ACCEPTS_FDS;
    let object = FlatBinderObject { ty: BINDER_TYPE_BINDER, flags, binder: 0, cookie: 0 };
    client.become_context_manager_ext(object).map_err(text)?;
    ready();
    loop {
        thread::sleep(Duration::from_secs(3600));
    }
}

/// Sends opens of its own device to a manager that never receives them, and waits forever.
fn passes_itself(device: &str) -> Outcome {
    let client = open(device)?;
    let opens: Result<Vec<File>, _> = (0..50).map(|_| File::open(device)).collect();
    let opens = opens.map_err(|error| error.to_string())?;
    let parcel = opens.iter().fold(Parcel::new(), |parcel, open| parcel.fd(open.as_fd()));
    let mut session = Session::new(&client);
    let sent = (0..2000).any(|_| {
        let sent = session.oneway(0, CALL, parcel.payload()).is_ok();
        if !sent {
            thread::sleep(Duration::from_millis(5));
        }
        sent
    });
    if !sent {
        return Err("there is no manager".to_owned());
    }
    ready();
    session.enter_looper().map_err(text)?;
    session.serve(&mut Echo).map_err(text)
}

/// Becomes a context manager that replies with the caller's pid and uid as it sees them.
fn who_service(device: &str) -> Outcome {
    let client = open(device)?;
    client.become_context_manager().map_err(text)?;
    ready();
    let mut service = |_: &mut Session<'_>, incoming: &Received<'_>| -> Answer {
        let sender = incoming.transaction();
        println!("called by {}", sender.sender_pid);
        let pid = sender.sender_pid.to_ne_bytes();
        Answer::Reply(Parcel::new().bytes(&pid).bytes(&sender.sender_euid.to_ne_bytes()))
    };
    Session::new(&client).serve(&mut service).map_err(text)
}

/// An echo service whose main thread ends; another one serves. `opened`: which of them opens the
/// device.
fn service_without_main_thread(device: &str, opened: &str) -> Outcome {
    let by_main = (opened == "by-main").then(|| open(device)).transpose()?;
    let device = device.to_owned();
    thread::spawn(move || {
        let main = std::process::id();
        let ended = || (e2e::wait::state(main) == Some('Z')).then_some(());
        let serve = || -> Outcome {
            e2e::wait::until(e2e::wait::PATIENCE, ended).ok_or("the main thread runs still")?;
            let client = by_main.map_or_else(|| open(&device), Ok)?;
            client.become_context_manager().map_err(text)?;
            ready();
            Session::new(&client).serve(&mut Echo).map_err(text)
        };
        if let Err(error) = serve() {
            eprintln!("without main thread: {error}");
        }
        std::process::exit(1);
    });
    // SAFETY: ends this thread only; no value of its stack is used by the other one.
    unsafe { libc::syscall(libc::SYS_exit, 0) };
    Err("the main thread goes on".to_owned())
}

/// Runs an action in a private user and pid namespace; `map` is the user namespace's uid map.
fn unshared(device: &str, map: &str, action: &[&str]) -> ExitCode {
    // SAFETY: plain numbers; the process has one thread.
    if unsafe { libc::unshare(libc::CLONE_NEWUSER | libc::CLONE_NEWPID) } != 0 {
        eprintln!("cannot unshare: {}", std::io::Error::last_os_error());
        return ExitCode::FAILURE;
    }
    // The namespace belongs to its creator, so a parent's help is not needed to map a single own
    // uid.
    let mapped = std::fs::write("/proc/self/uid_map", map);
    let child = mapped
        .and_then(|()| std::env::current_exe())
        .and_then(|program| std::process::Command::new(program).arg(device).args(action).status());
    match child {
        Ok(status) if status.success() => ExitCode::SUCCESS,
        other => {
            eprintln!("unshared {action:?}: {other:?}");
            ExitCode::FAILURE
        }
    }
}

/// As another user, becomes a context manager with these flags, and replies with its nice value,
/// policy and real-time priority once the call is late enough to have changed them: when it has the
/// nice value that the call contains, or else after a second. On code 2 it calls BINDER_THREAD_EXIT
/// first, while the call is pending.
fn priority_service(device: &str, uid: Uid, flags: u32) -> Outcome {
    become_user(uid)?;
    let client = open(device)?;
    let object = FlatBinderObject { ty: BINDER_TYPE_BINDER, flags, binder: 0, cookie: 0 };
    client.become_context_manager_ext(object).map_err(text)?;
    ready();
    let mut service = |_: &mut Session<'_>, incoming: &Received<'_>| -> Answer {
        if incoming.transaction().code == 2 {
            let left = client.thread_exit();
            println!("{}", if left.is_ok() { "left" } else { "cannot leave" });
        }
        let nice = || rustix::process::getpriority_process(None).unwrap_or(i32::MAX);
        match incoming.data().ok().and_then(|data| data.first_chunk()) {
            Some(&expected) => {
                let reached = || (nice() == i32::from_ne_bytes(expected)).then_some(());
                let _ = e2e::wait::until(e2e::wait::PATIENCE, reached);
            }
            None => std::thread::sleep(Duration::from_secs(1)),
        }
        let nice = nice();
        let mut parameter = libc::sched_param { sched_priority: 0 };
        // SAFETY: the structure is live; 0 is this thread.
        let policy = unsafe {
            libc::sched_getparam(0, &mut parameter);
            libc::sched_getscheduler(0)
        };
        let seen = [nice, policy, parameter.sched_priority].map(i32::to_ne_bytes);
        Answer::Reply(Parcel::new().bytes(seen.as_flattened()))
    };
    Session::new(&client).serve(&mut service).map_err(text)
}

/// As another user, becomes a context manager that accepts files: it writes `seen` into each,
/// closes it, and replies with the number of descriptors that it has left open.
fn files_service(device: &str, uid: Uid) -> Outcome {
    become_user(uid)?;
    let client = open(device)?;
    let flags = FLAT_BINDER_FLAG_ACCEPTS_FDS;
    let object = FlatBinderObject { ty: BINDER_TYPE_BINDER, flags, binder: 0, cookie: 0 };
    client.become_context_manager_ext(object).map_err(text)?;
    let mut session = Session::new(&client);
    ready();
    let mut service = |_: &mut Session<'_>, incoming: &Received<'_>| -> Answer {
        let objects = incoming.objects().unwrap_or_default();
        for file in objects.iter().filter(|object| object.ty == BINDER_TYPE_FD) {
            // SAFETY: the driver made this descriptor for us.
            let mut file = unsafe { File::from_raw_fd(file.binder as i32) };
            let _ = file.write_all(b"seen");
        }
        let left = std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count);
        Answer::Reply(Parcel::new().bytes(&(left as u32).to_ne_bytes()))
    };
    session.on_signal(OnSignal::WaitOn);
    session.serve(&mut service).map_err(text)
}

/// Cost of passing a file: calls a [`files_service`] without a file and with one, alternately;
/// prints the medians.
fn files_cost(device: &str, count: u64) -> Outcome {
    let client = open(device)?;
    let mut session = Session::new(&client);
    let (_read, write) = std::io::pipe().map_err(|error| error.to_string())?;
    let with = Parcel::new().fd(write.as_fd());
    let without = Parcel::new().bytes(&[0; 24]);
    let mut times = [Vec::new(), Vec::new()];
    for _ in 0..count {
        for (parcel, times) in [&without, &with].into_iter().zip(&mut times) {
            let begun = Instant::now();
            let reply = session.call(0, CALL, parcel.payload()).map_err(text)?;
            times.push(begun.elapsed());
            session.free(reply);
        }
    }
    for (what, times) in ["without a file", "with one"].into_iter().zip(&mut times) {
        times.sort();
        let at = |share: usize| times[times.len() * share / 100];
        println!("{what}: median {:?}, p99 {:?}, best {:?}", at(50), at(99), times[0]);
    }
    session.flush().map_err(text)
}

/// As [`files_service`], in a child process, with its parent as its debugger.
fn files_service_traced(device: &str, uid: Uid) -> Outcome {
    // SAFETY: this process has one thread, so the child may do whatever the parent may. The rest is
    // plain numbers, and a live status.
    unsafe {
        match libc::fork() {
            -1 => return Err(std::io::Error::last_os_error().to_string()),
            0 => {
                die_with_parent();
                libc::raise(libc::SIGSTOP);
                return files_service(device, uid);
            }
            child => {
                let mut status = 0;
                libc::waitpid(child, &mut status, libc::WUNTRACED);
                if libc::ptrace(libc::PTRACE_SEIZE, child, 0, 0) != 0 {
                    return Err(format!("cannot trace: {}", std::io::Error::last_os_error()));
                }
                libc::kill(child, libc::SIGCONT);
                while libc::waitpid(child, &mut status, 0) == child && libc::WIFSTOPPED(status) {
                    let stop = status >> 16 == libc::PTRACE_EVENT_STOP;
                    let signal = if stop { 0 } else { libc::WSTOPSIG(status) };
                    libc::ptrace(libc::PTRACE_CONT, child, 0, signal);
                }
            }
        }
    }
    Ok(())
}

/// As [`files_service`], with a filter that kills the process for a socket.
fn files_service_sandboxed(device: &str, uid: Uid) -> Outcome {
    become_ordinary(uid)?;
    e2e::sandbox::forbid_sockets().map_err(|error| error.to_string())?;
    files_service(device, uid)
}

/// As [`files_service`], with space for only ten more descriptors.
fn files_service_with_room_for_few(device: &str, uid: Uid) -> Outcome {
    let open = std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count) as u64;
    let limit = libc::rlimit { rlim_cur: open + 10, rlim_max: open + 10 };
    // SAFETY: the limit is live.
    unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &limit) };
    files_service(device, uid)
}

/// As [`files_service`], interrupted by frequent signals, whose handler counts them.
fn files_service_interrupted(device: &str, uid: Uid, every_us: u64) -> Outcome {
    static SIGNALS: AtomicU32 = AtomicU32::new(0);
    extern "C" fn count(_: i32) {
        SIGNALS.fetch_add(1, Ordering::Relaxed);
    }
    let every = libc::timeval { tv_sec: 0, tv_usec: every_us as libc::suseconds_t };
    let timer = libc::itimerval { it_interval: every, it_value: every };
    // SAFETY: the handler touches one atomic number; the structures are valid.
    unsafe {
        libc::signal(libc::SIGALRM, count as *const () as usize);
        libc::setitimer(libc::ITIMER_REAL, &timer, std::ptr::null_mut());
    }
    files_service(device, uid)
}

fn files_service_ignoring_sigtrap(device: &str, uid: Uid) -> Outcome {
    // SAFETY: no handler is installed.
    unsafe { libc::signal(libc::SIGTRAP, libc::SIG_IGN) };
    files_service(device, uid)
}

/// Changes the uid permanently, and calls the manager.
fn call_as(device: &str, uid: Uid) -> Outcome {
    become_user(uid)?;
    one_call(device, "manager")
}

/// Becomes another user's process as if that user had started it: its files in `/proc` belong to
/// that user.
fn become_ordinary(uid: Uid) -> Outcome {
    become_user(uid)?;
    // SAFETY: plain numbers.
    unsafe { libc::prctl(libc::PR_SET_DUMPABLE, 1, 0, 0, 0) };
    Ok(())
}

fn become_user(uid: Uid) -> Outcome {
    let Uid(id) = uid;
    // SAFETY: plain numbers; the process has one thread.
    let changed = unsafe { libc::setresgid(id, id, id) == 0 && libc::setresuid(id, id, id) == 0 };
    if !changed {
        return Err(format!("cannot become uid {uid}: {}", std::io::Error::last_os_error()));
    }
    die_with_parent();
    Ok(())
}
