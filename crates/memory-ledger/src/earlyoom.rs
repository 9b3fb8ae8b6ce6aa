//! earlyoom's rules, for those who replace it: when somebody has to go, and who.
//!
//! What is decided here is what earlyoom's manual and its behaviour say: both memory and swap have to be short, the
//! process with the largest `oom_score` (or the largest resident set) goes, and names add to that or subtract from it.
//! The numbers are earlyoom's own.

use std::cmp::Ordering;

/// What `--prefer` adds to a process's `oom_score`, and `--avoid` takes from it.
pub const NAMED_OOM_SCORE: i64 = 300;
/// The same where the resident set decides, KiB: 3 GiB.
pub const NAMED_RSS_KIB: i64 = 3 << 20;
/// Memory that several programs can fill together, KiB a millisecond.
const MEMORY_FILL: f64 = 6_000.0;
/// Swap that they can fill, KiB a millisecond.
const SWAP_FILL: f64 = 800.0;
/// Between two looks, milliseconds.
const PAUSE_MS: (f64, f64) = (100.0, 1_000.0);
/// Such a process is left alone, as by the kernel.
const OOM_SCORE_ADJ_NEVER: i32 = -1000;
/// The kernel's father of its own threads.
const KTHREADD: u32 = 2;

/// The machine at one moment, KiB.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reading {
    /// `MemAvailable`.
    pub available: u64,
    /// `AnonPages`.
    pub anon: u64,
    /// `SwapFree`.
    pub swap_free: u64,
    /// `SwapTotal`.
    pub swap_total: u64,
}

impl Reading {
    /// What programs have and could have, KiB.
    pub fn total(&self) -> u64 {
        self.available.saturating_add(self.anon)
    }

    /// Available memory, percent of [`total`](Reading::total).
    pub fn memory_percent(&self) -> f64 {
        percent(self.available, self.total())
    }

    /// Free swap, percent; without swap 0, so that memory alone decides.
    pub fn swap_percent(&self) -> f64 {
        percent(self.swap_free, self.swap_total)
    }
}

fn percent(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 * 100.0 / whole as f64 }
}

/// A pair of levels, percent.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pair {
    /// At or below it somebody gets SIGTERM.
    pub term: f64,
    /// At or below it somebody gets SIGKILL.
    pub kill: f64,
}

impl Pair {
    /// The lower of both, each.
    pub fn lower(self, other: Self) -> Self {
        Self { term: self.term.min(other.term), kill: self.kill.min(other.kill) }
    }
}

impl Default for Pair {
    fn default() -> Self {
        Self { term: 10.0, kill: 5.0 }
    }
}

/// When to act.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Levels {
    /// Of available memory.
    pub memory: Pair,
    /// Of free swap.
    pub swap: Pair,
}

/// What has to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Act {
    /// Somebody is asked to end.
    Term,
    /// Somebody is killed.
    Kill,
}

impl Levels {
    /// What a reading calls for: both memory and swap have to be at or below their level.
    pub fn act(&self, reading: &Reading) -> Option<Act> {
        let (memory, swap) = (reading.memory_percent(), reading.swap_percent());
        if memory <= self.memory.kill && swap <= self.swap.kill {
            Some(Act::Kill)
        } else if memory <= self.memory.term && swap <= self.swap.term {
            Some(Act::Term)
        } else {
            None
        }
    }

    /// When the next look is due, milliseconds: not before what is left could be filled.
    pub fn pause_ms(&self, reading: &Reading) -> u64 {
        let left = |now: f64, level: f64, whole: u64| (now - level).max(0.0) / 100.0 * whole as f64;
        let memory = left(reading.memory_percent(), self.memory.term, reading.total());
        let swap = left(reading.swap_percent(), self.swap.term, reading.swap_total);
        let pause = memory / MEMORY_FILL + swap / SWAP_FILL;
        pause.clamp(PAUSE_MS.0, PAUSE_MS.1) as u64
    }
}

/// What is known of a process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Process {
    /// Which.
    pub pid: u32,
    /// Its parent.
    pub parent_pid: u32,
    /// Effective uid.
    pub uid: u32,
    /// The kernel's word on who is to blame.
    pub oom_score: i64,
    /// Its owner's word.
    pub oom_score_adj: i32,
    /// Resident set, KiB; 0 where the first thread has ended and others go on.
    pub rss_kib: i64,
    /// All of it has ended, and nobody has waited for it.
    pub zombie: bool,
    /// Its name matches `--prefer`.
    pub preferred: bool,
    /// Its name matches `--avoid`.
    pub avoided: bool,
    /// Its name matches `--ignore`.
    pub ignored: bool,
}

/// How a victim is chosen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Taste {
    /// By resident set, not by `oom_score`.
    pub by_rss: bool,
    /// Root's processes are left alone.
    pub ignore_root: bool,
}

impl Taste {
    fn is_eligible(&self, process: &Process) -> bool {
        let of_the_kernel = process.pid <= KTHREADD || process.parent_pid == KTHREADD;
        let of_root = self.ignore_root && process.uid == 0;
        let spared =
            process.zombie || process.ignored || process.oom_score_adj == OOM_SCORE_ADJ_NEVER;
        !(of_the_kernel || of_root || spared)
    }

    /// What its name changes counted in: `oom_score` and resident set.
    fn weight(&self, process: &Process) -> (i64, i64) {
        let sign = i64::from(process.preferred) - i64::from(process.avoided);
        match self.by_rss {
            true => (process.oom_score, process.rss_kib.saturating_add(sign * NAMED_RSS_KIB)),
            false => (process.oom_score.saturating_add(sign * NAMED_OOM_SCORE), process.rss_kib),
        }
    }

    /// Who goes: the worst; of equals the first. `own_pid` is never chosen.
    pub fn choose<'p>(&self, processes: &'p [Process], own_pid: u32) -> Option<&'p Process> {
        let mut worst: Option<&Process> = None;
        let eligible = |process: &&Process| self.is_eligible(process) && process.pid != own_pid;
        for process in processes.iter().filter(eligible) {
            if worst.is_none_or(|worst| self.is_worse(process, worst)) {
                worst = Some(process);
            }
        }
        worst
    }

    fn is_worse(&self, process: &Process, than: &Process) -> bool {
        let (score, rss) = self.weight(process);
        let (other_score, other_rss) = self.weight(than);
        // A resident set of nothing says nothing: then the score decides, as it does without by_rss.
        let by_rss = self.by_rss && rss > 0 && other_rss > 0;
        let order = match by_rss {
            true => (rss, score).cmp(&(other_rss, other_score)),
            false => (score, rss).cmp(&(other_score, other_rss)),
        };
        order == Ordering::Greater
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reading(memory_percent: u64, swap_percent: u64) -> Reading {
        let (total, swap_total) = (8 << 20, 4 << 20);
        let available = total * memory_percent / 100;
        let swap_free = swap_total * swap_percent / 100;
        Reading { available, anon: total - available, swap_free, swap_total }
    }

    #[test]
    fn both_memory_and_swap_have_to_be_short() {
        let levels = Levels::default();
        for (memory, swap, act) in [
            (11, 0, None),
            (0, 11, None),
            (9, 9, Some(Act::Term)),
            (4, 9, Some(Act::Term)),
            (9, 4, Some(Act::Term)),
            (4, 4, Some(Act::Kill)),
        ] {
            assert_eq!(levels.act(&reading(memory, swap)), act, "{memory} % and {swap} %");
        }
        let no_swap = Reading { swap_total: 0, swap_free: 0, ..reading(4, 0) };
        assert_eq!(levels.act(&no_swap), Some(Act::Kill), "without swap memory decides");
        let whatever_swap = Levels { swap: Pair { term: 100.0, kill: 100.0 }, ..levels };
        assert_eq!(whatever_swap.act(&reading(4, 100)), Some(Act::Kill));
    }

    #[test]
    fn the_pause_is_as_long_as_it_takes_to_fill_what_is_left() {
        let levels = Levels::default();
        assert_eq!(levels.pause_ms(&reading(9, 9)), 100);
        assert_eq!(levels.pause_ms(&reading(90, 90)), 1000);
        // A fifth of 8 GiB above the level, KiB, at 6000 a millisecond.
        assert_eq!(levels.pause_ms(&reading(30, 0)), (8 << 20) / 5 / 6000);
    }

    fn process(pid: u32, oom_score: i64, rss_mib: i64) -> Process {
        let (parent_pid, uid, rss_kib) = (1000, 1000, rss_mib << 10);
        Process { pid, parent_pid, uid, oom_score, rss_kib, ..Process::default() }
    }

    fn chosen(taste: Taste, processes: &[Process]) -> Option<u32> {
        taste.choose(processes, 9).map(|process| process.pid)
    }

    #[test]
    fn the_largest_score_goes_and_of_equals_the_larger_then_the_first() {
        let taste = Taste::default();
        let large = process(11, 700, 10);
        assert_eq!(
            chosen(taste, &[process(10, 600, 900), large.clone(), process(12, 500, 50)]),
            Some(11)
        );
        assert_eq!(chosen(taste, &[large.clone(), process(12, 700, 11)]), Some(12));
        assert_eq!(chosen(taste, &[large.clone(), process(12, 700, 10)]), Some(11));
        let by_rss = Taste { by_rss: true, ..taste };
        assert_eq!(chosen(by_rss, &[process(10, 600, 900), large]), Some(10));
        assert_eq!(chosen(by_rss, &[process(10, 600, 0), process(12, 500, 50)]), Some(10));
        assert_eq!(chosen(taste, &[]), None);
    }

    #[test]
    fn names_weigh_three_hundred_points_or_three_gibibytes() {
        let taste = Taste::default();
        let (large, small) = (process(10, 700, 4000), process(11, 401, 1000));
        let preferred = Process { preferred: true, ..small.clone() };
        let avoided = Process { avoided: true, ..large.clone() };
        assert_eq!(chosen(taste, &[large.clone(), preferred.clone()]), Some(11));
        assert_eq!(chosen(taste, &[avoided.clone(), small.clone()]), Some(11));
        assert_eq!(chosen(taste, &[avoided.clone(), process(12, 399, 1)]), Some(10));
        let by_rss = Taste { by_rss: true, ..taste };
        assert_eq!(chosen(by_rss, &[large.clone(), preferred]), Some(11));
        assert_eq!(chosen(by_rss, &[avoided, small]), Some(11));
        let both = Process { preferred: true, avoided: true, ..large };
        assert_eq!(chosen(taste, &[both, process(12, 699, 1)]), Some(10));
    }

    #[test]
    fn some_are_never_chosen() {
        let taste = Taste::default();
        let worst = process(10, 900, 1);
        for spared in [
            Process { ignored: true, ..worst.clone() },
            Process { zombie: true, ..worst.clone() },
            Process { oom_score_adj: -1000, ..worst.clone() },
            Process { parent_pid: 2, ..worst.clone() },
            Process { pid: 1, ..worst.clone() },
            Process { pid: 2, ..worst.clone() },
            Process { pid: 9, ..worst.clone() },
        ] {
            assert_eq!(chosen(taste, std::slice::from_ref(&spared)), None, "{spared:?}");
        }
        let avoided = Process { avoided: true, oom_score: 200, ..worst.clone() };
        assert_eq!(chosen(taste, &[avoided]), Some(10), "rather than nobody");
        let of_root = Process { uid: 0, ..worst };
        assert_eq!(chosen(taste, std::slice::from_ref(&of_root)), Some(10));
        assert_eq!(chosen(Taste { ignore_root: true, ..taste }, &[of_root]), None);
    }
}
