//! The memory hog of all tests: executes one command per line of standard input, answers each with
//! a line, and exits at the end of its input.
//!
//! `memory-hog` keeps its user, `memory-hog UID` changes to that user. `memory-hog hold UID MIB`
//! allocates that memory at once and keeps it until it is killed; `memory-hog churn SEED UID...`
//! changes its memory at random.

mod bomb;
mod churner;
mod family;

use std::io::{BufRead, Write};
use std::ptr::null_mut;

use control::Uid;

const PAGE: usize = 4096;
const HUGE: usize = 2 << 20;

/// Mappings: address and length, bytes.
type Areas = Vec<(usize, usize)>;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [verb, seed, users @ ..] = arguments.as_slice()
        && verb == "churn"
    {
        let users: Vec<Uid> = users.iter().filter_map(|uid| uid.parse().ok().map(Uid)).collect();
        return churner::churn(seed.parse().unwrap_or(1), &users);
    }
    if let [verb, uid, mib] = arguments.as_slice()
        && verb == "hold"
    {
        let number = |text: &str| text.parse::<usize>().expect("usage: memory-hog hold UID MIB");
        return hold(Uid(number(uid) as u32), number(mib));
    }
    if let Some(uid) = arguments.first().and_then(|arg| arg.parse().ok()) {
        become_user(Uid(uid));
    }
    let mut areas = Areas::new();
    answer("ready");
    for line in std::io::stdin().lock().lines() {
        let Ok(line) = line else { return };
        let (command, text) = line.split_once(' ').unwrap_or((&line, ""));
        let numbers: Vec<usize> =
            text.split_whitespace().filter_map(|word| word.parse().ok()).collect();
        let number = |index: usize| numbers.get(index).copied().unwrap_or(0);
        match command {
            "touch" => touch(map(&mut areas, number(0) * PAGE, libc::MAP_PRIVATE), number(0)),
            "shmem" => touch(map(&mut areas, number(0) * PAGE, libc::MAP_SHARED), number(0)),
            "file" => read_file(&mut areas),
            "huge" => touch_huge(&mut areas, number(0)),
            "grow" => grow(&mut areas, number(0) << 10),
            "threads" => touch_in_threads(&mut areas, number(0), number(1)),
            "free" => unmap_all(&mut areas),
            "pieces" => unmap_pieces(&mut areas, number(0).max(1) * PAGE),
            "pageout" => page_out(&areas),
            "lazyfree" => free_lazily(&areas),
            "again" => touch_all(&areas),
            "memfd" => write_memfd(number(0) << 10),
            "fork" => {
                answer(&fork_sleeper().to_string());
                continue;
            }
            "forktouch" => {
                answer(&fork_toucher(number(0)).to_string());
                continue;
            }
            "forkagain" => {
                answer(&fork_with(|| touch_all(&areas)).to_string());
                continue;
            }
            "pid" => {
                answer(&std::process::id().to_string());
                continue;
            }
            "breed" => {
                answer("ok");
                bomb::breed(number(0));
            }
            "replace" => {
                answer("ok");
                bomb::replace(number(0));
            }
            // Never answered: the file system does not answer either.
            "hang" => drop(std::fs::metadata(text)),
            "hangthread" => family::start_hung_thread(text.to_owned()),
            "name" => rename(text),
            "family" => family::have_children(number(0)),
            "share" => family::share_memory(),
            "idlethreads" => family::start_idle_threads(number(0)),
            "ignoreterm" => family::ignore_sigterm(),
            "exitonterm" => family::exit_on_sigterm(),
            "reap" => while wait_for_child() {},
            "unshare" => unshare_users(),
            "setuid" => become_user(Uid(number(0) as u32)),
            "realuid" => change_real_uid(Uid(number(0) as u32)),
            "threaduid" => touch_in_thread_of(&mut areas, Uid(number(0) as u32), number(1)),
            "vforkuid" => touch_in_vfork_of(&mut areas, Uid(number(0) as u32), number(1)),
            "exec" => exec_self(),
            "churn" => churn(&mut areas, number(0) as u64, number(1)),
            "leaderexit" => exit_leader(),
            other => {
                answer(&format!("unknown command {other}"));
                continue;
            }
        }
        answer("ok");
    }
}

fn answer(text: &str) {
    let mut out = std::io::stdout().lock();
    // The reader has closed the pipe: the test is over.
    if writeln!(out, "{text}").and_then(|()| out.flush()).is_err() {
        std::process::exit(0);
    }
}

/// Allocates memory, reports it, and waits until it is killed, at the latest when its parent exits.
fn hold(uid: Uid, mib: usize) {
    become_user(uid);
    // SAFETY: integers only. After the change of user, which resets it.
    unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
    grow(&mut Areas::new(), mib << 20);
    answer(&format!("{} has {mib} MiB", std::process::id()));
    sleep_forever();
}

fn rename(name: &str) {
    let written = std::fs::write("/proc/self/comm", name);
    assert!(written.is_ok(), "/proc/self/comm: {written:?}");
}

/// Creates a user namespace; a privileged process writes its map.
fn unshare_users() {
    // SAFETY: integers only.
    let failed = unsafe { libc::unshare(libc::CLONE_NEWUSER) };
    assert_eq!(failed, 0, "unshare: {}", std::io::Error::last_os_error());
}

fn become_user(uid: Uid) {
    // SAFETY: integers only; glibc applies it to all threads.
    let failed = unsafe { libc::setresuid(uid.0, uid.0, uid.0) };
    assert_eq!(failed, 0, "setresuid({uid}): {}", std::io::Error::last_os_error());
}

/// Changes only the real uid; the effective one stays root's, so that it can be changed again.
fn change_real_uid(uid: Uid) {
    // SAFETY: integers only.
    let failed = unsafe { libc::setresuid(uid.0, 0, 0) };
    assert_eq!(failed, 0, "setresuid({uid}): {}", std::io::Error::last_os_error());
}

/// Changes only the real uid of the calling thread, which requires the raw system call.
fn change_real_uid_of_thread(uid: Uid) {
    // SAFETY: integers only; the other threads keep what they have.
    let failed = unsafe { libc::syscall(libc::SYS_setresuid, uid.0, 0, 0) };
    assert_eq!(failed, 0, "setresuid({uid}): {}", std::io::Error::last_os_error());
}

/// A single thread changes its user and touches memory.
fn touch_in_thread_of(areas: &mut Areas, uid: Uid, pages: usize) {
    let start = map(areas, pages * PAGE, libc::MAP_PRIVATE);
    let thread = std::thread::spawn(move || {
        change_real_uid_of_thread(uid);
        touch(start, pages);
    });
    assert!(thread.join().is_ok(), "the thread of uid {uid} failed");
}

/// A child that shares the address space, as before an exec, changes its user and touches memory.
fn touch_in_vfork_of(areas: &mut Areas, uid: Uid, pages: usize) {
    extern "C" fn child(what: *mut libc::c_void) -> libc::c_int {
        // SAFETY: the parent, which is suspended meanwhile, outlives this child.
        let (uid, start, pages) = unsafe { *what.cast::<(Uid, usize, usize)>() };
        change_real_uid_of_thread(uid);
        touch(start, pages);
        0
    }
    let mut what = (uid, map(areas, pages * PAGE, libc::MAP_PRIVATE), pages);
    let mut stack = vec![0u128; 4096];
    let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD;
    // SAFETY: the stack grows down from its end and is used by the child only, which has exited on
    // return.
    let pid = unsafe {
        let top = stack.as_mut_ptr_range().end;
        libc::clone(child, top.cast(), flags, (&raw mut what).cast())
    };
    assert!(pid > 0, "clone: {}", std::io::Error::last_os_error());
    // SAFETY: a child of this process; no status is requested.
    unsafe { libc::waitpid(pid, null_mut(), 0) };
}

/// Maps memory of 4 KiB pages.
fn map(areas: &mut Areas, bytes: usize, kind: libc::c_int) -> usize {
    let address = map_pages_of_any_size(areas, bytes, kind);
    // SAFETY: the mapping just made. Refused if the kernel has no huge pages; then it is made of 4
    // KiB pages anyway.
    let _ = unsafe { libc::madvise(address as *mut _, bytes, libc::MADV_NOHUGEPAGE) };
    address
}

/// Allocates memory like a program that gives the kernel no advice.
fn grow(areas: &mut Areas, bytes: usize) {
    let start = map_pages_of_any_size(areas, bytes, libc::MAP_PRIVATE);
    touch(start, bytes / PAGE);
}

fn map_pages_of_any_size(areas: &mut Areas, bytes: usize, kind: libc::c_int) -> usize {
    // SAFETY: a fresh anonymous mapping.
    let address = unsafe {
        libc::mmap(
            null_mut(),
            bytes,
            libc::PROT_READ | libc::PROT_WRITE,
            kind | libc::MAP_ANONYMOUS,
            -1,
            0,
        )
    };
    assert_ne!(address, libc::MAP_FAILED, "mmap: {}", std::io::Error::last_os_error());
    areas.push((address as usize, bytes));
    address as usize
}

fn touch(address: usize, pages: usize) {
    for page in 0..pages {
        // SAFETY: inside a mapping of at least `pages` pages, to which no other code has a
        // reference.
        unsafe { ((address + page * PAGE) as *mut u8).write_volatile(1) };
    }
}

/// Maps this program's file once more and reads all of it.
fn read_file(areas: &mut Areas) {
    use std::os::fd::AsRawFd;
    let file = std::fs::File::open("/proc/self/exe").expect("our program");
    let bytes = file.metadata().expect("its size").len() as usize;
    // SAFETY: a fresh private mapping; the file is not truncated while it runs.
    let address = unsafe {
        libc::mmap(null_mut(), bytes, libc::PROT_READ, libc::MAP_PRIVATE, file.as_raw_fd(), 0)
    };
    assert_ne!(address, libc::MAP_FAILED, "mmap: {}", std::io::Error::last_os_error());
    for page in 0..bytes / PAGE {
        // SAFETY: inside the mapping just made.
        unsafe { (address as *const u8).add(page * PAGE).read_volatile() };
    }
    areas.push((address as usize, bytes));
}

fn touch_huge(areas: &mut Areas, count: usize) {
    let start = map(areas, (count + 1) * HUGE, libc::MAP_PRIVATE).next_multiple_of(HUGE);
    // SAFETY: inside the mapping just made.
    unsafe { libc::madvise(start as *mut _, count * HUGE, libc::MADV_HUGEPAGE) };
    for huge in 0..count {
        touch(start + huge * HUGE, 1);
    }
}

fn touch_in_threads(areas: &mut Areas, threads: usize, pages: usize) {
    let starts: Vec<usize> =
        (0..threads).map(|_| map(areas, pages * PAGE, libc::MAP_PRIVATE)).collect();
    std::thread::scope(|scope| {
        for start in starts {
            scope.spawn(move || touch(start, pages));
        }
    });
}

/// Requests the kernel to swap all of it out; it does so as far as possible.
fn page_out(areas: &[(usize, usize)]) {
    for (address, bytes) in areas {
        // SAFETY: a private mapping, whose content is kept.
        unsafe { libc::madvise(*address as *mut _, *bytes, libc::MADV_PAGEOUT) };
    }
}

/// Lets the kernel take all of it (`MADV_FREE`).
fn free_lazily(areas: &[(usize, usize)]) {
    for (address, bytes) in areas {
        // SAFETY: a private mapping, whose content does not matter.
        let done = unsafe { libc::madvise(*address as *mut _, *bytes, libc::MADV_FREE) };
        assert_eq!(done, 0, "MADV_FREE: {}", std::io::Error::last_os_error());
    }
}

fn unmap_all(areas: &mut Areas) {
    for (address, bytes) in areas.drain(..) {
        // SAFETY: a private mapping that is not used any more.
        unsafe { libc::munmap(address as *mut _, bytes) };
    }
}

fn unmap_pieces(areas: &mut Areas, bytes: usize) {
    for (address, end) in areas.drain(..).map(|(address, bytes)| (address, address + bytes)) {
        for piece in (address..end).step_by(bytes) {
            // SAFETY: a part of a private mapping that is not used any more.
            unsafe { libc::munmap(piece as *mut _, bytes.min(end - piece)) };
        }
    }
}

fn fork(child: impl FnOnce()) -> i32 {
    let parent = std::process::id() as i32;
    // SAFETY: this process has one thread; the child only touches memory and sleeps.
    match unsafe { libc::fork() } {
        0 => {
            // SAFETY: integers only. It must not outlive a killed parent, nor one that was killed
            // before this line: it would be charged to the user of the next run.
            unsafe {
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                if libc::getppid() != parent {
                    libc::_exit(0);
                }
            }
            child();
            // SAFETY: ends the child without running the parent's exit handlers.
            unsafe { libc::_exit(0) }
        }
        pid => {
            assert!(pid > 0, "fork: {}", std::io::Error::last_os_error());
            pid
        }
    }
}

fn sleep_forever() {
    loop {
        // SAFETY: waits for a signal.
        unsafe { libc::pause() };
    }
}

fn fork_sleeper() -> i32 {
    fork(sleep_forever)
}

fn touch_all(areas: &[(usize, usize)]) {
    areas.iter().for_each(|(start, bytes)| touch(*start, bytes / PAGE));
}

/// Writes to a memfd that stays open and is not mapped.
fn write_memfd(bytes: usize) {
    use std::os::fd::FromRawFd;
    // SAFETY: a name that ends with 0; the descriptor is this file's alone.
    let mut file = unsafe {
        std::fs::File::from_raw_fd(libc::memfd_create(c"hog".as_ptr(), libc::MFD_CLOEXEC))
    };
    let written = (0..bytes / PAGE).try_for_each(|_| file.write_all(&[1; PAGE]));
    assert!(written.is_ok(), "memfd: {written:?}");
    std::mem::forget(file);
}

/// The child maps and touches new memory, then sleeps; returns when it has touched it.
fn fork_toucher(pages: usize) -> i32 {
    fork_with(|| touch(map(&mut Areas::new(), pages * PAGE, libc::MAP_PRIVATE), pages))
}

/// The child runs `work`, then sleeps; returns when the work is done.
fn fork_with(work: impl FnOnce()) -> i32 {
    let mut fds = [0; 2];
    // SAFETY: room for two descriptors.
    unsafe { libc::pipe(fds.as_mut_ptr()) };
    let pid = fork(|| {
        work();
        // SAFETY: writes one byte from a static.
        unsafe { libc::write(fds[1], b"x".as_ptr().cast(), 1) };
        sleep_forever();
    });
    let mut byte = 0u8;
    // SAFETY: room for one byte; both descriptors belong to this function.
    unsafe {
        libc::close(fds[1]);
        libc::read(fds[0], (&raw mut byte).cast(), 1);
        libc::close(fds[0]);
    }
    pid
}

fn wait_for_child() -> bool {
    // SAFETY: no status is requested.
    unsafe { libc::waitpid(-1, null_mut(), 0) > 0 }
}

fn exec_self() {
    use std::os::unix::process::CommandExt;
    let error = std::process::Command::new("/proc/self/exe").exec();
    panic!("exec /proc/self/exe: {error}");
}

/// The main thread exits while another one continues, with its memory.
fn exit_leader() {
    std::thread::spawn(|| {
        std::thread::sleep(std::time::Duration::from_millis(50));
        answer("ok");
        sleep_forever();
    });
    // SAFETY: ends this thread only; the other one does not use its stack.
    unsafe { libc::syscall(libc::SYS_exit, 0) };
}

/// `steps` random changes, some of them by short-lived children.
fn churn(areas: &mut Areas, seed: u64, steps: usize) {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    for _ in 0..steps {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        let pages = (state >> 8) as usize % 200 + 1;
        match state % 8 {
            0 | 1 => touch(map(areas, pages * PAGE, libc::MAP_PRIVATE), pages),
            2 => touch(map(areas, pages * PAGE, libc::MAP_SHARED), pages),
            3 => touch_in_threads(areas, 2, pages / 2 + 1),
            4 | 5 if areas.len() > 4 => {
                let (address, bytes) = areas.swap_remove((state >> 20) as usize % areas.len());
                // SAFETY: a private mapping that is not used any more.
                unsafe { libc::munmap(address as *mut _, bytes) };
            }
            6 => {
                let pid = fork(|| {
                    touch(map(&mut Areas::new(), pages * PAGE, libc::MAP_PRIVATE), pages);
                });
                // SAFETY: a child of this process; no status is requested.
                unsafe { libc::waitpid(pid, null_mut(), 0) };
            }
            7 => {
                let done = std::process::Command::new("/bin/true").status();
                assert!(done.is_ok(), "run /bin/true: {done:?}");
            }
            _ => touch(map(areas, PAGE, libc::MAP_PRIVATE), 1),
        }
    }
}
