//! Figures, not verdicts: `cargo test --release -p memory-watch --test measure -- --ignored
//! --nocapture --test-threads 1`.

mod support;

use std::time::Duration;
use std::time::Instant;

use memory_ledger::Uid;
use memory_watch::Event;
use memory_watch::Notifier;
use memory_watch::SlotLimit;
use memory_watch::Watch;
use memory_watch::notifier::CountRuns;
use support::FAR_AWAY;
use support::Hog;
use support::MIB;
use support::notifier;

const FAR: SlotLimit = SlotLimit { soft_pages: FAR_AWAY, hard_pages: FAR_AWAY };
const NEAR: SlotLimit = SlotLimit { soft_pages: 1, hard_pages: FAR_AWAY };
const PAGES: u64 = 20_000;
const ROUNDS: usize = 20;

#[test]
#[ignore = "prints figures"]
fn events_a_fault_and_nanoseconds_an_event() {
    let (uid, other) = (Uid(61_301), Uid(61_302));
    let Some(mut notifier) = notifier() else { return };
    let _count = CountRuns::start().unwrap();
    println!("zone        processes  events/fault  account changes/fault  ns/event");
    for (name, limit) in [("other uid", None), ("far", Some(FAR)), ("near", Some(NEAR))] {
        for processes in [1, 8] {
            // Another user is limited in any case: attached.
            notifier.set_limit(other.into(), FAR).unwrap();
            if let Some(limit) = limit {
                notifier.set_limit(uid.into(), limit).unwrap();
            }
            let mut hogs: Vec<Hog> = (0..processes).map(|_| Hog::start(uid)).collect();
            let changes =
                |notifier: &Notifier| notifier.usage(uid.into()).map_or(0, |usage| usage.events);
            let (before, changes_before) = (notifier.run_stats().unwrap(), changes(&notifier));
            hogs.iter_mut().for_each(|hog| hog.begin(&format!("touch {PAGES}")));
            hogs.iter_mut().for_each(|hog| assert_eq!(hog.answer(), "ok"));
            let after = notifier.run_stats().unwrap();
            let (runs, faults) = (after.runs - before.runs, (PAGES * processes) as f64);
            println!(
                "{name:<11} {processes:>9}  {:>12.3}  {:>21.3}  {:>8.1}",
                runs as f64 / faults,
                (changes(&notifier) - changes_before) as f64 / faults,
                (after.run_time_ns - before.run_time_ns) as f64 / runs as f64,
            );
            notifier.clear_limit(uid.into()).unwrap();
        }
    }
    println!("recursion misses: {}", notifier.run_stats().unwrap().recursion_misses);
}

#[test]
#[ignore = "prints figures"]
fn cpu_time_a_fault() {
    let (uid, other) = (Uid(61_311), Uid(61_312));
    let Some(mut notifier) = notifier() else { return };
    let mut series = vec![Vec::new(); 4];
    for _ in 0..7 {
        for (mode, figures) in series.iter_mut().enumerate() {
            match mode {
                0 => (),
                1 => notifier.set_limit(other.into(), FAR).unwrap(),
                2 => notifier.set_limit(uid.into(), FAR).unwrap(),
                _ => notifier.set_limit(uid.into(), NEAR).unwrap(),
            }
            let mut hog = Hog::start(uid);
            figures.push(hog.ask("burn 16384 8").parse::<u64>().unwrap());
            notifier.clear_limit(uid.into()).unwrap();
            notifier.clear_limit(other.into()).unwrap();
        }
    }
    println!("mode                 CPU ns/fault: min  median");
    for (name, mut figures) in ["detached", "other uid limited", "far", "near"].iter().zip(series) {
        figures.sort_unstable();
        println!("{name:<31} {:>7} {:>7}", figures[0], figures[3]);
    }
}

#[test]
#[ignore = "prints figures"]
fn pages_over_the_limit_at_the_kill() {
    println!(
        "allocators armed   over at kill: median max   peak over: median max   victims   kill by"
    );
    for allocators in [1, 4, 8] {
        for armed in [false, true] {
            let Some(runs) = (0..ROUNDS).map(|_| overshoot(allocators, armed)).collect() else {
                return;
            };
            report(allocators, armed, runs);
        }
    }
}

struct Run {
    over_at_kill: i64,
    peak_over: i64,
    victims: usize,
    how: String,
}

fn report(allocators: usize, armed: bool, runs: Vec<Run>) {
    let sorted = |get: fn(&Run) -> i64| {
        let mut figures: Vec<i64> = runs.iter().map(get).collect();
        figures.sort_unstable();
        (figures[figures.len() / 2], figures[figures.len() - 1])
    };
    let (kill, peak) = (sorted(|run| run.over_at_kill), sorted(|run| run.peak_over));
    let victims: Vec<usize> = runs.iter().map(|run| run.victims).collect();
    let mut how: Vec<&str> = runs.iter().map(|run| run.how.as_str()).collect();
    how.sort_unstable();
    how.dedup();
    println!(
        "{allocators:>10} {armed:<6} {:>21} {:>3} {:>18} {:>6}   {}..{}      {}",
        kill.0,
        kill.1,
        peak.0,
        peak.1,
        victims.iter().min().unwrap_or(&0),
        victims.iter().max().unwrap_or(&0),
        how.join(",")
    );
}

/// One run: allocators break a limit of 64 MiB. The owner does nothing but arm the largest at the
/// soft crossing, if asked to; the first kill ends the run.
fn overshoot(allocators: usize, armed: bool) -> Option<Run> {
    let uid = Uid(61_320);
    let limit = SlotLimit { soft_pages: 56 * MIB, hard_pages: 64 * MIB };
    let mut notifier = notifier()?;
    notifier.set_limit(uid.into(), limit).unwrap();
    let mut hogs: Vec<Hog> = (0..allocators).map(|_| Hog::start(uid)).collect();
    // More than enough, and at most 220 MiB should nobody be killed.
    let each = (40 * MIB as usize + 24 * MIB as usize * allocators) / allocators;
    for (number, hog) in hogs.iter_mut().enumerate() {
        hog.begin(&format!("touch {}", each + 300 * number));
    }
    let mut kill = None;
    let deadline = Instant::now() + Duration::from_secs(10);
    while kill.is_none() {
        assert!(Instant::now() < deadline, "nobody was killed");
        let mut crossed = false;
        notifier.drain(&mut |event| match event {
            Event::SoftCrossed { .. } => crossed = true,
            Event::HardCrossed { pages, killed: Some(killed), .. } => kill = Some((pages, killed)),
            _ => (),
        });
        if crossed && armed {
            let mut samples = Vec::new();
            notifier.processes(&mut samples).unwrap();
            let own = samples.iter().filter(|sample| sample.uid == uid);
            let largest = own.max_by_key(|sample| sample.charged_pages()).map(|s| s.id());
            notifier.arm(uid.into(), largest).unwrap();
        }
        let fd = notifier.events_fd();
        let mut fds = [rustix::event::PollFd::new(&fd, rustix::event::PollFlags::IN)];
        let timeout = rustix::event::Timespec { tv_sec: 1, tv_nsec: 0 };
        rustix::event::poll(&mut fds, Some(&timeout)).unwrap();
    }
    let (pages, killed) = kill?;
    let mut victims = 0;
    for hog in &mut hogs {
        if hog.pid() == killed.id.pid || hog.answer() != "ok" {
            victims += usize::from(hog.was_killed());
        }
    }
    let usage = notifier.usage(uid.into())?;
    assert_eq!(usage.kills, 1);
    Some(Run {
        over_at_kill: pages as i64 - limit.hard_pages as i64,
        peak_over: usage.peak_pages as i64 - limit.hard_pages as i64,
        victims,
        how: format!("{:?}", killed.by),
    })
}
