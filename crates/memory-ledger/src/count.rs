//! What of a process's memory counts.

use std::fmt;

/// Kinds of memory that count against a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Count {
    /// Anonymous memory: heaps, stacks.
    pub anon: bool,
    /// Shared memory and files of tmpfs that are mapped, in full with each process that maps them.
    pub shmem: bool,
    /// What was swapped out.
    pub swap: bool,
    /// Mapped pages of files, in full with each process that maps them.
    pub file: bool,
}

impl Count {
    /// Their names in a configuration, in the order of the fields.
    pub const NAMES: [&str; 4] = ["anon", "shmem", "swap", "file"];

    /// Of these names; unknown ones are left out.
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

    /// The names of those that count.
    pub fn names(self) -> impl Iterator<Item = &'static str> {
        let counts = [self.anon, self.shmem, self.swap, self.file];
        Self::NAMES.into_iter().zip(counts).filter(|(_, counts)| *counts).map(|(name, _)| name)
    }

    /// The same, where they are not the usual ones; empty where they are.
    pub fn unusual_names(self) -> Vec<String> {
        let unusual = self != Self::default();
        self.names().filter(|_| unusual).map(str::to_owned).collect()
    }
}

impl Default for Count {
    /// All that comes back with a kill and with nothing else: without pages of files.
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
    fn names_say_what_counts() {
        assert_eq!(Count::of(["swap", "anon", "shmem"]), Count::default());
        let all = Count::of(Count::NAMES);
        assert_eq!((all.to_string().as_str(), all.file), ("anon, shmem, swap, file", true));
        assert_eq!(Count::of(["file", "cache"]).to_string(), "file");
        assert_eq!(Count::of(["file"]).unusual_names(), ["file"]);
        assert!(Count::default().unusual_names().is_empty());
    }
}
