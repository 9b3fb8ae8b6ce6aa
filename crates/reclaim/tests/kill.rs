//! Tests of the kill in one call.

mod support;

use std::os::fd::AsFd;
use std::os::unix::process::ExitStatusExt;
use std::time::Duration;

use owners::Uid;
use reclaim::{Boost, End, KillError, Options, Reap, Scope, Victim};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use support::{Holder, PATIENCE, children, helper, state, until};

const MIB: u64 = 1 << 20;

#[test]
fn released_memory_is_counted_during_the_exit() {
    let mut holder = Holder::start(64);
    let mut reap = Victim::open(holder.pid()).unwrap().kill(&Options::default()).unwrap();
    let status = reap.wait().unwrap();
    assert_eq!((status.victims, status.gone, status.done), (1, 1, true));
    assert!(status.bytes >= 64 * MIB && status.bytes_back == status.bytes, "{status:?}");
    assert!(status.memory_back.is_some_and(|time| time < PATIENCE), "{status:?}");
    assert_eq!(holder.child.wait().unwrap().signal(), Some(9));
}

#[test]
fn an_event_loop_needs_nothing_but_the_descriptor() {
    let holders: Vec<Holder> = (0..4).map(|_| Holder::start(16)).collect();
    let victims = holders.iter().map(|holder| Victim::open(holder.pid()).unwrap()).collect();
    let mut reap = Reap::begin(victims, &Options::default()).unwrap();
    let patience = Timespec { tv_sec: PATIENCE.as_secs() as i64, tv_nsec: 0 };
    let mut last = reap.status();
    while !last.done {
        let ready = poll(&mut [PollFd::new(&reap, PollFlags::IN)], Some(&patience)).unwrap();
        assert_eq!(ready, 1, "it never became ready: {last:?}");
        let status = reap.advance();
        assert!(status.bytes_back >= last.bytes_back && status.gone >= last.gone);
        last = status;
    }
    assert_eq!((last.gone, last.victims), (4, 4));
    assert!(last.bytes_back >= 64 * MIB, "{last:?}");
    // No event is left, whatever help is still in progress.
    std::thread::sleep(Duration::from_millis(20));
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    assert_eq!(poll(&mut [PollFd::new(&reap.as_fd(), PollFlags::IN)], Some(&now)), Ok(0));
}

#[test]
fn handlers_of_sigterm_get_it_first_and_sigkill_after_the_grace() {
    let options = Options { grace: Duration::from_millis(200), ..Options::default() };
    let handlers = [("exitonterm", Err(3)), ("ignoreterm", Ok(9)), ("free", Ok(9))];
    for (command, end) in handlers {
        let mut holder = Holder::with(4, command);
        let mut reap = Victim::open(holder.pid()).unwrap().kill(&options).unwrap();
        assert_eq!(reap.wait().unwrap().gone, 1, "{command}");
        let status = holder.child.wait().unwrap();
        assert_eq!(status.signal().ok_or(status.code().unwrap_or(0)), end, "{command}");
    }
}

#[test]
fn a_family_dies_to_the_last_grandchild() {
    let holder = Holder::with(4, "family 3");
    let young = children(holder.pid());
    until("grandchildren", || young.iter().all(|child| children(*child).len() == 1));
    let old: Vec<u32> = young.iter().flat_map(|child| children(*child)).collect();
    let options = Options { scope: Scope::Family, ..Options::default() };
    let mut reap = Victim::open(holder.pid()).unwrap().kill(&options).unwrap();
    assert_eq!(reap.wait().unwrap().gone, 7);
    let dead = |pid: &u32| state(*pid).is_none_or(|state| state == 'Z');
    assert!(young.iter().chain(&old).all(dead));
}

#[test]
fn a_group_is_killed_without_processes_that_left_it() {
    use std::os::unix::process::CommandExt;
    let mut leader = Holder::run(helper().process_group(0), 4);
    leader.execute("family 1");
    until("a grandchild", || {
        children(leader.pid()).first().is_some_and(|child| children(*child).len() == 1)
    });
    let outsider = Holder::start(1);
    let options = Options { scope: Scope::Group, ..Options::default() };
    let mut reap = Victim::open(leader.pid()).unwrap().kill(&options).unwrap();
    assert_eq!(reap.wait().unwrap().gone, 3);
    let lives = state(outsider.pid()).is_some_and(|state| state != 'Z');
    assert!(lives, "not of the group");
}

#[test]
fn a_process_that_is_gone_is_an_error_of_its_own() {
    let mut holder = Holder::start(1);
    let victim = Victim::open(holder.pid()).unwrap();
    holder.child.kill().unwrap();
    holder.child.wait().unwrap();
    assert_eq!(victim.pid(), holder.pid());
    // Known to have exited without a system call: nothing to kill, and nothing to wait for.
    let mut reap = victim.kill(&Options::default()).unwrap();
    assert_eq!(reap.wait().map(|status| (status.gone, status.bytes_back)), Ok((1, 0)));
    assert_eq!(reap.reports()[0].end, End::Gone);
}

#[test]
fn a_process_of_another_user_is_not_killed_or_stopped() {
    if !test_support::privileged() {
        return;
    }
    let holder = Holder::with(1, "family 1");
    let victim = Victim::open(holder.pid()).unwrap();
    let pid = holder.pid();
    let refused = test_support::spawn_as(Uid(60_001), move || {
        let options = Options { scope: Scope::Family, ..Options::default() };
        victim.kill(&options).err()
    });
    assert_eq!(refused.join().unwrap(), Some(KillError::NotPermitted(pid)));
    assert_eq!(state(pid), Some('S'));
}

#[test]
fn a_boost_raises_every_thread_and_leaves_real_time_ones_alone() {
    let holder = Holder::with(1, "idlethreads 2");
    let victim = Victim::open(holder.pid()).unwrap();
    let threads = || {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", holder.pid())).unwrap();
        tasks.map(|task| task.unwrap().file_name().to_str().unwrap().parse::<u32>().unwrap())
    };
    // SAFETY: takes numbers.
    let nice = |tid: u32| unsafe { libc::getpriority(libc::PRIO_PROCESS, tid) };
    let real_time = threads().last().unwrap();
    let parameter = libc::sched_param { sched_priority: 1 };
    // SAFETY: the kernel reads the structure, which is ours.
    let done =
        unsafe { libc::sched_setscheduler(real_time as i32, libc::SCHED_RR, &raw const parameter) };
    assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
    let (before, count) = (nice(real_time), threads().count());
    assert_eq!(count, 3);
    let boost = Boost::new(&victim);
    assert_eq!(boost, Boost { threads: count - 1, thawed: false, refused: None });
    for tid in threads() {
        assert_eq!(nice(tid), if tid == real_time { before } else { -20 }, "{tid}");
    }
    // SAFETY: takes a number.
    assert_eq!(unsafe { libc::sched_getscheduler(real_time as i32) }, libc::SCHED_RR);
}
