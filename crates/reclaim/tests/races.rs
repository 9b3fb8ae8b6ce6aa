//! Victims that exit or exec concurrently: ten thousand attempts, no other process is harmed, and
//! no descriptor is leaked. In a test program of its own: a concurrent test would open descriptors,
//! too.

mod support;

use std::time::Instant;

use reclaim::{Options, Progress, Reaper, Reclaim, Victim};
use support::forked::{Child, Deed};
use support::{PATIENCE, state};

const TRIES: u32 = 10_000;

/// Pseudo-random numbers, the same in every run.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u32) -> u32 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) % u64::from(end)) as u32
    }
}

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

/// Signal, release and boost, until the victim has exited.
fn reclaim(victim: Victim, reaper: &Reaper, token: u64) {
    let mut reclaim = Reclaim::new(victim);
    let start = Instant::now();
    while reclaim.step(reaper, token) != Progress::Gone {
        reaper.drain(|found, done| {
            if found == token {
                reclaim.helped(done);
            }
        });
        assert!(start.elapsed() < PATIENCE, "{reclaim:?}");
        std::thread::yield_now();
    }
}

#[test]
fn a_racing_victim_harms_no_other_process_and_leaks_no_descriptor() {
    let bystander = Child::born(Deed::Wait, 0);
    let reaper = Reaper::start(2).unwrap();
    let mut random = Random(7);
    // The first attempt opens descriptors that stay open.
    let mut open = 0;
    let (mut killed, mut missed) = (0, 0);
    for at in 0..TRIES {
        let deed = [Deed::Exit, Deed::Exec][at as usize % 2];
        let turns = random.below(60_000);
        let child = Child::born(deed, turns);
        for _ in 0..random.below(30_000) {
            std::hint::black_box(());
        }
        match Victim::open(child.pid()) {
            // In one call, which has a reaper of its own, or in steps with a common reaper.
            Ok(victim) if at % 16 == 0 => {
                assert_eq!(victim.kill(&Options::default()).unwrap().wait().map(|s| s.gone), Ok(1));
            }
            Ok(victim) => {
                victim.send_kill().unwrap();
                reclaim(victim, &reaper, at.into());
            }
            Err(error) => panic!("our child has not been waited for: {error}"),
        }
        match (child.end(), deed) {
            (Err(libc::SIGKILL), _) => killed += 1,
            (Ok(0), Deed::Exit) => missed += 1,
            (end, _) => panic!("it ended by itself: {end:?}"),
        }
        if at == 0 {
            open = descriptors();
        }
    }
    assert!(killed > TRIES / 4 && missed > 0, "{killed} killed, {missed} were faster");
    assert_eq!(state(bystander.pid()), Some('S'));
    drop(reaper);
    // The reaper's own descriptors are closed.
    assert!(descriptors() < open, "{} descriptors, {open} at first", descriptors());
}
