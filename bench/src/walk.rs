//! earlyoom's scan for a victim: the files of `/proc` that it reads, in its order, without its
//! rules.

use std::fs::File;
use std::io::Read;

use anyhow::{Context, Result};

/// The victim that the walk selects.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Walked {
    /// Its pid.
    pub pid: u32,
    /// Its `oom_score`.
    pub score: u64,
    /// Its resident pages.
    pub rss_pages: u64,
    /// Number of processes considered.
    pub considered: u32,
}

/// Reads `oom_score` of each process; of those whose score is at least the worst so far, the memory
/// (`statm`); of a new worst one whether it may be killed at all, its name and its arguments.
pub fn walk() -> Result<Walked> {
    let mut worst = Walked::default();
    let mut buffer = Vec::with_capacity(4096);
    for entry in std::fs::read_dir("/proc").context("/proc")? {
        let name = entry.context("/proc")?.file_name();
        let Some(pid) = name.to_str().and_then(|name| name.parse::<u32>().ok()) else { continue };
        if pid <= 1 {
            continue;
        }
        worst.considered += 1;
        // A process that has exited meanwhile is skipped.
        let Some(score) = number(pid, "oom_score", 0, &mut buffer) else { continue };
        if score < worst.score as i64 {
            continue;
        }
        let Some(rss_pages) = number(pid, "statm", 1, &mut buffer) else { continue };
        let (score, rss_pages) = (score as u64, rss_pages as u64);
        if rss_pages == 0 || (score == worst.score && rss_pages <= worst.rss_pages) {
            continue;
        }
        if number(pid, "oom_score_adj", 0, &mut buffer) == Some(-1000) {
            continue;
        }
        for file in ["comm", "cmdline"] {
            read(pid, file, &mut buffer);
        }
        worst = Walked { pid, score, rss_pages, ..worst };
    }
    Ok(worst)
}

fn read(pid: u32, file: &str, buffer: &mut Vec<u8>) -> Option<()> {
    buffer.clear();
    File::open(format!("/proc/{pid}/{file}")).ok()?.read_to_end(buffer).ok()?;
    Some(())
}

/// The number in column `place` of a file.
fn number(pid: u32, file: &str, place: usize, buffer: &mut Vec<u8>) -> Option<i64> {
    read(pid, file, buffer)?;
    std::str::from_utf8(buffer).ok()?.split_whitespace().nth(place)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_walk_finds_a_process_with_memory_among_all_processes() {
        let found = walk().unwrap();
        assert!(found.pid > 1 && found.rss_pages > 0 && found.considered > 1, "{found:?}");
    }
}
