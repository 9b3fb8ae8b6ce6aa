//! Crossing the limits: events, victims, and that no other process is killed.

mod support;

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use memory_ledger::{Comm, ProcessId, Uid};
use memory_watch::{
    Correction, Event, Killed, KilledBy, Notifier, ProcessSample, SlotLimit, UnarmedKills, Watch,
};
use support::{FAR_AWAY, Hog, MIB, confirm, eventually, fault_batch, notifier};

/// Command of a hog that is to exceed a limit of 64 MiB: allocates enough to, and no dangerous
/// amount if it is not killed.
const TOO_MUCH: &str = "touch 40000";
/// Minimum duration of a soft crossing.
const CROSSING: Duration = Duration::from_millis(100);
const LIMIT: SlotLimit = SlotLimit { soft_pages: 48 * MIB, hard_pages: 64 * MIB };

/// Waits for an event that `choose` accepts; other events are dropped.
fn wait_for<T>(notifier: &mut Notifier, what: &str, choose: impl Fn(&Event) -> Option<T>) -> T {
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        let mut chosen = None;
        let mut seen = Vec::new();
        notifier.drain(&mut |event| {
            seen.push(event);
            chosen = chosen.take().or_else(|| choose(&event));
        });
        if let Some(chosen) = chosen {
            return chosen;
        }
        println!("waiting for {what}, seen {seen:?}");
        let left = deadline.saturating_duration_since(Instant::now());
        assert!(!left.is_zero(), "no event within 10 s: {what}");
        let fd = notifier.events_fd();
        let mut fds = [rustix::event::PollFd::new(&fd, rustix::event::PollFlags::IN)];
        let timeout = rustix::event::Timespec { tv_sec: 1, tv_nsec: 0 };
        rustix::event::poll(&mut fds, Some(&timeout)).expect("poll the events");
    }
}

fn all_events(notifier: &mut Notifier) -> Vec<Event> {
    let mut events = Vec::new();
    notifier.drain(&mut |event| events.push(event));
    events
}

fn hard_crossing(event: &Event) -> Option<(Option<Killed>, u64, bool)> {
    match event {
        Event::HardCrossed { killed, pages, armed_was_stale, .. } => {
            Some((*killed, *pages, *armed_was_stale))
        }
        _ => None,
    }
}

fn alive(hogs: &mut [Hog]) -> usize {
    hogs.iter_mut().map(|hog| usize::from(hog.is_alive())).sum()
}

fn sample_of(notifier: &Notifier, hog: &Hog) -> ProcessSample {
    let mut samples = Vec::new();
    notifier.processes(&mut samples).unwrap();
    *samples.iter().find(|sample| sample.tgid == hog.pid()).expect("the hog is listed")
}

fn victim(notifier: &Notifier, hog: &Hog) -> ProcessId {
    sample_of(notifier, hog).id()
}

/// Whether the kernel can kill the armed victim while another process runs.
fn can_kill_others() -> bool {
    memory_watch::Capability::SendSignalTask.probe().is_ok()
}

#[test]
fn the_soft_limit_is_reported_once_until_usage_has_clearly_fallen() {
    let uid = Uid(61_101);
    let Some(mut notifier) = notifier() else { return };
    let limit = SlotLimit { soft_pages: 16 * MIB, hard_pages: FAR_AWAY };
    notifier.set_limit(uid.into(), limit).unwrap();
    let mut hog = Hog::start(uid);
    hog.execute("touch 2000");
    assert_eq!(all_events(&mut notifier), []);
    hog.execute("touch 3000");
    let (pages, at) = wait_for(&mut notifier, "the soft crossing", |event| match event {
        Event::SoftCrossed { account, pages, time_ns } if *account == uid.into() => {
            Some((*pages, *time_ns))
        }
        _ => None,
    });
    assert!((16 * MIB..16 * MIB + 200).contains(&pages), "crossed at {pages} pages");
    assert!(at > 0);
    hog.execute("touch 1000");
    assert_eq!(all_events(&mut notifier), [], "once is enough");
    std::thread::sleep(CROSSING);
    hog.execute("free");
    wait_for(&mut notifier, "the all-clear", |event| {
        matches!(event, Event::SoftCleared { account, .. } if *account == uid.into()).then_some(())
    });
    hog.execute("touch 5000");
    wait_for(&mut notifier, "the second crossing", |event| {
        matches!(event, Event::SoftCrossed { .. }).then_some(())
    });
    assert_eq!(notifier.usage(uid.into()).unwrap().soft_crossings, 2);
    assert!(hog.is_alive());
}

#[test]
fn an_oscillation_around_the_soft_limit_is_not_reported_each_time() {
    let uid = Uid(61_120);
    let Some(mut notifier) = notifier() else { return };
    let limit = SlotLimit { soft_pages: 16 * MIB, hard_pages: FAR_AWAY };
    notifier.set_limit(uid.into(), limit).unwrap();
    let mut hog = Hog::start(uid);
    let begun = Instant::now();
    for _ in 0..100 {
        hog.execute("touch 5000");
        hog.execute("free");
    }
    let most = begun.elapsed().div_duration_f64(CROSSING) as u64 + 1;
    let crossings = notifier.usage(uid.into()).unwrap().soft_crossings;
    assert!((1..=most).contains(&crossings), "{crossings} of at most {most}");
}

#[test]
fn a_limit_below_the_usage_is_reported_at_once() {
    let uid = Uid(61_102);
    let Some(mut notifier) = notifier() else { return };
    let mut hog = Hog::start(uid);
    hog.execute("touch 5000");
    let limit = SlotLimit { soft_pages: 1000, hard_pages: 2000 };
    notifier.set_limit(uid.into(), limit).unwrap();
    let events = all_events(&mut notifier);
    assert!(matches!(events[0], Event::SoftCrossed { .. }), "{events:?}");
    // A scan never kills: the crossing is reported to the owner, which decides.
    assert!(matches!(events[1], Event::HardCrossed { killed: None, .. }), "{events:?}");
    assert!(hog.is_alive());
}

#[test]
fn the_largest_process_dies_in_its_own_fault_without_an_armed_victim() {
    let uid = Uid(61_103);
    let Some(mut notifier) = notifier() else { return };
    notifier.set_limit(uid.into(), LIMIT).unwrap();
    let mut small = Hog::start(uid);
    small.execute("touch 2000");
    let mut large = Hog::start(uid);
    confirm(&mut notifier, uid.into());
    large.begin(TOO_MUCH);
    let (killed, pages, stale) = wait_for(&mut notifier, "the kill", hard_crossing);
    let killed = killed.expect("the crossing killed a process");
    assert_eq!((killed.id.pid, killed.by, stale), (large.pid(), KilledBy::UnarmedSelf, false));
    // The first page above the limit; a fault that maps several pages at once would map this many.
    assert!((64 * MIB + 1..64 * MIB + 17 + fault_batch()).contains(&pages), "at {pages} pages");
    assert!(killed.pages > 50 * MIB, "{killed:?}");
    assert_eq!(killed.comm, Comm::new(b"memory-hog"));
    assert!(large.was_killed() && small.is_alive());
}

#[test]
fn lazily_freed_pages_are_measured_before_a_kill() {
    let uid = Uid(61_131);
    let Some(mut notifier) = notifier() else { return };
    notifier.set_limit(uid.into(), LIMIT).unwrap();
    let mut hog = Hog::start(uid);
    hog.execute("touch 8000");
    confirm(&mut notifier, uid.into());
    hog.execute("lazyfree");
    // As the daemon does when the machine's counter has grown.
    notifier.doubt(uid.into(), 8000);
    hog.begin("touch 12000");
    let (killed, ..) = wait_for(&mut notifier, "the crossing", hard_crossing);
    assert_eq!(killed, None);
    // All that the measurement confirms counts.
    let usage = notifier.usage(uid.into()).unwrap();
    assert!(usage.unconfirmed_pages >= 8000, "{usage:?}");
    assert_eq!(hog.answer(), "ok");
    confirm(&mut notifier, uid.into());
    hog.begin("touch 100");
    assert!(hog.was_killed());
}

#[test]
fn the_largest_process_dies_in_anothers_fault_without_an_armed_victim() {
    let uid = Uid(61_114);
    let Some(mut notifier) = notifier() else { return };
    if !can_kill_others() {
        test_support::skip("this kernel has no bpf_send_signal_task (Linux 6.13)");
        return;
    }
    notifier.set_limit(uid.into(), LIMIT).unwrap();
    let mut large = Hog::start(uid);
    large.execute("touch 10000");
    let mut small = Hog::start(uid);
    confirm(&mut notifier, uid.into());
    small.execute("touch 7000");
    let (killed, pages, _) = wait_for(&mut notifier, "the kill", hard_crossing);
    let killed = killed.expect("the crossing killed a process");
    assert_eq!((killed.id.pid, killed.by), (large.pid(), KilledBy::UnarmedOther));
    assert!((64 * MIB + 1..64 * MIB + 17 + fault_batch()).contains(&pages), "at {pages} pages");
    assert!(large.was_killed() && small.is_alive());
}

#[test]
fn the_armed_victim_dies_in_its_own_fault() {
    let uid = Uid(61_104);
    let Some(mut notifier) = notifier() else { return };
    notifier.set_limit(uid.into(), LIMIT).unwrap();
    // The idle process is larger: it would be killed if the hog were not armed.
    let mut idle = Hog::start(uid);
    idle.execute("touch 9000");
    let mut hog = Hog::start(uid);
    let armed = victim(&notifier, &hog);
    notifier.arm(uid.into(), Some(armed)).unwrap();
    confirm(&mut notifier, uid.into());
    hog.begin(TOO_MUCH);
    let (killed, pages, _) = wait_for(&mut notifier, "the kill", hard_crossing);
    let killed = killed.expect("the crossing killed a process");
    assert_eq!(killed.id, armed);
    assert_eq!(killed.by, KilledBy::ArmedSelf);
    assert!((64 * MIB + 1..64 * MIB + 17 + fault_batch()).contains(&pages), "at {pages} pages");
    assert!(hog.was_killed() && idle.is_alive());
}

#[test]
fn the_armed_victim_dies_while_another_process_crosses_the_limit() {
    let uid = Uid(61_105);
    let Some(mut notifier) = notifier() else { return };
    if !can_kill_others() {
        test_support::skip("this kernel has no bpf_send_signal_task (Linux 6.13)");
        return;
    }
    notifier.set_limit(uid.into(), LIMIT).unwrap();
    let mut idle = Hog::start(uid);
    idle.execute("touch 9000");
    let armed = victim(&notifier, &idle);
    notifier.arm(uid.into(), Some(armed)).unwrap();
    let mut grower = Hog::start(uid);
    confirm(&mut notifier, uid.into());
    grower.execute("touch 8000");
    let (killed, ..) = wait_for(&mut notifier, "the kill", hard_crossing);
    let killed = killed.expect("the crossing killed a process");
    assert_eq!((killed.id.pid, killed.by), (idle.pid(), KilledBy::ArmedOther));
    assert!(idle.was_killed() && grower.is_alive());
    eventually("the victim's pages are gone", || {
        notifier.usage(uid.into()).unwrap().dying_pages == 0
    });
    assert!(notifier.usage(uid.into()).unwrap().latched, "until the owner releases it");
}

#[test]
fn a_process_with_the_victims_tgid_but_another_start_time_lives() {
    let uid = Uid(61_106);
    let Some(mut notifier) = notifier() else { return };
    notifier.set_limit(uid.into(), LIMIT).unwrap();
    notifier.set_unarmed_kills(uid.into(), UnarmedKills::Forbidden).unwrap();
    let mut innocent = Hog::start(uid);
    innocent.execute("touch 9000");
    let mut armed = victim(&notifier, &innocent);
    armed.start_time -= 1;
    notifier.arm(uid.into(), Some(armed)).unwrap();
    let mut grower = Hog::start(uid);
    confirm(&mut notifier, uid.into());
    grower.execute("touch 8000");
    let (killed, _, stale) = wait_for(&mut notifier, "the crossing", hard_crossing);
    assert_eq!(killed, None);
    assert!(stale || !can_kill_others());
    // Nor is the innocent process killed when it is the one that grows.
    innocent.execute("touch 100");
    assert!(innocent.is_alive() && grower.is_alive());
    assert_eq!(notifier.usage(uid.into()).unwrap().kills, 0);
}

#[test]
fn a_process_of_another_user_is_not_killed_even_when_armed() {
    let uid = Uid(61_107);
    let Some(mut notifier) = notifier() else { return };
    notifier.set_limit(uid.into(), LIMIT).unwrap();
    notifier.set_unarmed_kills(uid.into(), UnarmedKills::Forbidden).unwrap();
    let mut stranger = Hog::start(Uid(62_107));
    let armed = victim(&notifier, &stranger);
    notifier.arm(uid.into(), Some(armed)).unwrap();
    let mut grower = Hog::start(uid);
    grower.execute("touch 17000");
    let (killed, ..) = wait_for(&mut notifier, "the crossing", hard_crossing);
    assert_eq!(killed, None);
    assert!(stranger.is_alive() && grower.is_alive());
}

#[test]
fn crossings_of_a_spared_user_are_reported_without_kills() {
    let uid = Uid(61_108);
    let Some(mut notifier) = notifier() else { return };
    notifier.set_limit(uid.into(), LIMIT).unwrap();
    notifier.set_unarmed_kills(uid.into(), UnarmedKills::Forbidden).unwrap();
    let mut hog = Hog::start(uid);
    hog.execute("touch 20000");
    let (killed, ..) = wait_for(&mut notifier, "the crossing", hard_crossing);
    assert_eq!(killed, None);
    assert!(hog.is_alive());
    assert_eq!(notifier.usage(uid.into()).unwrap().hard_crossings, 1, "reported once");
    // Once a victim is armed, the next fault kills it.
    let armed = victim(&notifier, &hog);
    notifier.arm(uid.into(), Some(armed)).unwrap();
    hog.begin("touch 200");
    let (killed, ..) = wait_for(&mut notifier, "the kill", hard_crossing);
    assert_eq!(killed.map(|killed| killed.id.pid), Some(hog.pid()));
    assert!(hog.was_killed());
}

#[test]
fn a_fork_never_kills_the_parent_unarmed() {
    let uid = Uid(61_109);
    let Some(mut notifier) = notifier() else { return };
    notifier.set_limit(uid.into(), LIMIT).unwrap();
    let mut hog = Hog::start(uid);
    hog.execute("touch 9000");
    // The child's pages are charged while the parent runs. They cross the limit, and no process is
    // killed for it: not the parent, whose memory did not grow.
    let child: i32 = hog.request("fork").parse().expect("the child's pid");
    let (killed, ..) = wait_for(&mut notifier, "the crossing", hard_crossing);
    assert!(killed.is_none_or(|killed| killed.id.pid as i32 == child), "{killed:?}");
    assert!(notifier.usage(uid.into()).unwrap().pages > 64 * MIB);
    assert!(hog.is_alive());
}

#[test]
fn a_fork_kills_not_even_the_armed_victim_before_it_is_measured() {
    let uid = Uid(61_116);
    let Some(mut notifier) = notifier() else { return };
    notifier.set_limit(uid.into(), LIMIT).unwrap();
    let mut hog = Hog::start(uid);
    hog.execute("touch 9000");
    let armed = victim(&notifier, &hog);
    notifier.arm(uid.into(), Some(armed)).unwrap();
    confirm(&mut notifier, uid.into());
    hog.request("fork");
    let (killed, pages, _) = wait_for(&mut notifier, "the crossing", hard_crossing);
    assert_eq!(killed, None);
    assert!(pages > LIMIT.hard_pages);
    // Confirmed growth does not reach the limit.
    hog.execute("touch 100");
    let usage = notifier.usage(uid.into()).unwrap();
    assert!(usage.unconfirmed_pages >= 9000 && usage.kills == 0, "{usage:?}");

    let measured = Correction {
        pages: -9000,
        summed_pages: usage.summed_pages(),
        unconfirmed_pages: usage.unconfirmed_pages,
        unlisted_pages: 0,
    };
    notifier.correct(uid.into(), measured).unwrap();
    hog.execute("touch 100");
    let usage = notifier.usage(uid.into()).unwrap();
    assert_eq!((usage.unconfirmed_pages, usage.kills), (0, 0));
    assert!((9000..10_500).contains(&usage.live_pages()), "{usage:?}");

    // The child has written to its pages: they are not shared any more.
    notifier.correct(uid.into(), Correction::default()).unwrap();
    hog.begin("touch 100");
    let (killed, ..) = wait_for(&mut notifier, "the kill", hard_crossing);
    assert_eq!(killed.map(|killed| killed.id), Some(armed));
    assert!(hog.was_killed());
}

#[test]
fn pages_added_to_the_sum_are_reported_without_kills() {
    let uid = Uid(61_117);
    let Some(mut notifier) = notifier() else { return };
    notifier.set_limit(uid.into(), LIMIT).unwrap();
    let mut hog = Hog::start(uid);
    hog.execute("touch 9000");
    confirm(&mut notifier, uid.into());
    let correction = Correction { pages: 10_000, ..Correction::default() };
    notifier.correct(uid.into(), correction).unwrap();
    hog.execute("touch 100");
    let (killed, pages, _) = wait_for(&mut notifier, "the crossing", hard_crossing);
    assert_eq!(killed, None);
    assert!(pages > 19_000);
    // The sum alone is still enforced in the page fault.
    hog.begin(TOO_MUCH);
    let (killed, ..) = wait_for(&mut notifier, "the kill", hard_crossing);
    assert!(killed.is_some() && hog.was_killed());
}

#[test]
fn one_of_eight_allocators_dies_and_the_next_after_the_latch_is_released() {
    let uid = Uid(61_110);
    let Some(mut notifier) = notifier() else { return };
    notifier.set_limit(uid.into(), LIMIT).unwrap();
    let mut hogs: Vec<Hog> = (0..8).map(|_| Hog::start(uid)).collect();
    for (number, hog) in hogs.iter_mut().enumerate() {
        // Together 180 MiB, so that one kill does not suffice. Each allocates more than those
        // before it, so that the largest is one that still grows, however they are scheduled.
        hog.begin(&format!("touch {}", 4000 + 500 * number));
    }
    let (killed, ..) = wait_for(&mut notifier, "the kill", |event| {
        hard_crossing(event).filter(|(killed, ..)| killed.is_some())
    });
    let first = killed.expect("chosen above").id.pid;
    for hog in &mut hogs {
        if hog.pid() == first {
            assert!(hog.was_killed());
        } else {
            assert_eq!(hog.answer(), "ok", "all others got their memory");
        }
    }
    let usage = notifier.usage(uid.into()).unwrap();
    assert!(usage.live_pages() > LIMIT.hard_pages, "still above: {usage:?}");
    assert_eq!((usage.kills, usage.latched), (1, true));
    assert_eq!(alive(&mut hogs), 7);

    notifier.release_latch(uid.into());
    for hog in hogs.iter_mut().filter(|hog| hog.pid() != first) {
        hog.begin("touch 50");
    }
    wait_for(&mut notifier, "the second kill", |event| {
        hard_crossing(event).filter(|(killed, ..)| killed.is_some())
    });
    eventually("another one is dead", || alive(&mut hogs) == 6);
    assert_eq!(notifier.usage(uid.into()).unwrap().kills, 2);
}

#[test]
fn the_owners_own_kill_holds_the_latch_and_counts_as_dying() {
    let uid = Uid(61_111);
    let Some(mut notifier) = notifier() else { return };
    notifier.set_limit(uid.into(), LIMIT).unwrap();
    let mut idle = Hog::start(uid);
    idle.execute("touch 9000");
    let chosen = victim(&notifier, &idle);
    assert!(notifier.take_latch(uid.into()).unwrap());
    notifier.count_dying(uid.into(), chosen).unwrap();
    assert!(!notifier.take_latch(uid.into()).unwrap(), "one at a time");
    let usage = notifier.usage(uid.into()).unwrap();
    assert!(usage.latched && usage.dying_pages >= 9000, "{usage:?}");
    assert!(usage.live_pages() < 1000);
    // Another process exceeds the limit (with the victim's pages), and none is killed for it.
    let mut grower = Hog::start(uid);
    grower.execute("touch 9000");
    assert!(grower.is_alive() && idle.is_alive());
    assert!(notifier.usage(uid.into()).unwrap().pages > LIMIT.hard_pages);
    drop(idle);
    eventually("the victim's pages are gone", || {
        notifier.usage(uid.into()).unwrap().dying_pages == 0
    });
    notifier.release_latch(uid.into());
    assert!(!notifier.usage(uid.into()).unwrap().latched);
}

#[test]
fn impossible_limits_and_unknown_users_are_refused() {
    let Some(mut notifier) = notifier() else { return };
    let uid = Uid(61_112);
    let limit = SlotLimit { soft_pages: 2, hard_pages: 1 };
    let message = notifier.set_limit(uid.into(), limit).unwrap_err().to_string();
    assert!(message.contains("uid 61112") && message.contains("2 pages"), "{message}");
    let none = SlotLimit { soft_pages: 0, hard_pages: 0 };
    assert!(notifier.set_limit(uid.into(), none).is_err());
    assert!(!notifier.is_attached());
    assert!(notifier.usage(uid.into()).is_none());
    let message = notifier.arm(uid.into(), None).unwrap_err().to_string();
    assert!(message.contains("uid 61112 has no limit"), "{message}");
    notifier.release_latch(uid.into());
}

#[test]
fn nothing_is_readable_before_something_happens() {
    let uid = Uid(61_113);
    let Some(mut notifier) = notifier() else { return };
    notifier.set_limit(uid.into(), LIMIT).unwrap();
    let mut hog = Hog::start(uid);
    hog.execute("touch 1000");
    let fd = notifier.events_fd();
    let mut fds = [rustix::event::PollFd::new(&fd, rustix::event::PollFlags::IN)];
    let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
    assert_eq!(rustix::event::poll(&mut fds, Some(&now)).unwrap(), 0);
    assert!(notifier.events_fd().as_fd().try_clone_to_owned().is_ok());
}

#[test]
fn without_an_armed_victim_the_growing_process_dies_not_a_larger_idle_one() {
    let uid = Uid(61_115);
    let Some(mut notifier) = notifier() else { return };
    let mut idle = Hog::start(uid);
    idle.execute("touch 9000");
    // The process was running before the limit, so it has not grown.
    notifier.set_limit(uid.into(), LIMIT).unwrap();
    let mut grower = Hog::start(uid);
    confirm(&mut notifier, uid.into());
    grower.begin("touch 8000");
    let (killed, ..) = wait_for(&mut notifier, "the kill", hard_crossing);
    let killed = killed.expect("the crossing killed a process");
    assert_eq!((killed.id.pid, killed.by), (grower.pid(), KilledBy::UnarmedSelf));
    assert!(grower.was_killed() && idle.is_alive());
}

#[test]
fn a_sample_has_the_process_group_and_the_session_leader_flag() {
    let Some(notifier) = notifier() else { return };
    let mut poller = memory_watch::ProcPoller::new().unwrap();
    let mut child = std::process::Command::new("setsid")
        .args(["--wait", "--fork", "sleep", "60"])
        .spawn()
        .expect("setsid of util-linux");
    let watches: [&mut dyn Watch; 2] = [&mut { notifier }, &mut poller];
    for watch in watches {
        let mut samples = Vec::new();
        eventually("setsid and its child, which leads a session", || {
            watch.processes(&mut samples).unwrap();
            let leader = samples.iter().find(|sample| sample.parent.tgid == child.id());
            leader.is_some_and(|leader| leader.session_leader && leader.group == leader.tgid)
        });
        let own = samples.iter().find(|sample| sample.tgid == child.id()).unwrap();
        assert!(!own.session_leader);
        assert_eq!(own.group as i32, rustix::process::getpgrp().as_raw_nonzero().get());
    }
    let mut samples = Vec::new();
    poller.processes(&mut samples).unwrap();
    let sleeper = samples.iter().find(|sample| sample.parent.tgid == child.id()).unwrap();
    let sleeper = rustix::process::Pid::from_raw(sleeper.tgid as i32).unwrap();
    rustix::process::kill_process(sleeper, rustix::process::Signal::KILL).unwrap();
    child.wait().unwrap();
}
