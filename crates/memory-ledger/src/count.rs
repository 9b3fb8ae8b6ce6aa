//! The kinds of a process's memory that count against a limit.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Kinds of memory that count against a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Count {
    /// Anonymous memory: heaps, stacks.
    pub anon: bool,
    /// Mapped shared memory and tmpfs files, counted in full for each process that maps them.
    pub shmem: bool,
    /// Swapped-out memory.
    pub swap: bool,
    /// Mapped file pages, counted in full for each process that maps them.
    pub file: bool,
}

impl Count {
    /// Names of the kinds in the configuration, in the order of the fields.
    pub const NAMES: [&str; 4] = ["anon", "shmem", "swap", "file"];

    /// The kinds with these names; unknown names are ignored.
    pub fn of<'n>(names: impl IntoIterator<Item = &'n str>) -> Self {
        let mut count = Self { anon: false, shmem: false, swap: false, file: false };
        for name in names {
            match name {
                "anon" => count.anon = true,
                "shmem" => count.shmem = true,
                "swap" => count.swap = true,
                "file" => count.file = true,
                _ => {}
            }
        }
        count
    }

    /// The names of the kinds that count.
    pub fn names(self) -> impl Iterator<Item = &'static str> {
        let counts = [self.anon, self.shmem, self.swap, self.file];
        Self::NAMES.into_iter().zip(counts).filter(|(_, counts)| *counts).map(|(name, _)| name)
    }

    /// The names, if they differ from the default; empty otherwise.
    pub fn unusual_names(self) -> Vec<String> {
        let unusual = self != Self::default();
        self.names().filter(|_| unusual).map(str::to_owned).collect()
    }
}

impl Default for Count {
    /// All memory that only a kill frees: without file pages.
    fn default() -> Self {
        Self { anon: true, shmem: true, swap: true, file: false }
    }
}

impl fmt::Display for Count {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.names().collect::<Vec<_>>().join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_list_the_counted_kinds() {
        assert_eq!(Count::of(["swap", "anon", "shmem"]), Count::default());
        let all = Count::of(Count::NAMES);
        assert_eq!((all.to_string().as_str(), all.file), ("anon, shmem, swap, file", true));
        assert_eq!(Count::of(["file", "cache"]).to_string(), "file");
        assert_eq!(Count::of(["file"]).unusual_names(), ["file"]);
        assert!(Count::default().unusual_names().is_empty());
    }
}
