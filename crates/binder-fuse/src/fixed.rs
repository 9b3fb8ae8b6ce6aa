//! What node ids of the mount refer to, and the entries that exist independently of the devices:
//! folders, `binder-control`, features, logs.

use serde::{Deserialize, Serialize};

use crate::wire::types::ROOT_ID;

/// Identifies a device; never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub(crate) struct DeviceId(pub(crate) u64);

/// The entry that a node id refers to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    Root,
    Control,
    Features,
    Feature,
    /// `binder_logs`.
    Logs,
    Log(Log),
    /// `binder_logs/proc`.
    Processes,
    Device(DeviceId),
}

/// A file of `binder_logs`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Log {
    FailedTransactions,
    State,
    Stats,
    LastTransactions,
    Transactions,
    /// All opens of a pid.
    Process(u32),
}

/// The fixed name that adds devices.
pub(crate) const CONTROL_NAME: &str = "binder-control";
const FEATURES_ID: u64 = 3;
const FIRST_FEATURE_ID: u64 = 4;
const LAST_FEATURE_ID: u64 = 6;
const LOGS_ID: u64 = 7;
const PROCESSES_ID: u64 = 8;
/// Node ids from here on are not fixed.
pub(crate) const FIRST_FREE_ID: u64 = 64;
/// Node ids of files of `binder_logs/proc`: this and the pid.
pub(crate) const PROCESS_IDS: u64 = 1 << 62;
const FEATURE_CONTENT: &[u8] = b"1\n";

/// A fixed entry.
pub(crate) struct Fixed {
    pub(crate) id: u64,
    pub(crate) parent: u64,
    pub(crate) name: &'static str,
    pub(crate) place: Place,
}

const fn entry(id: u64, parent: u64, name: &'static str, place: Place) -> Fixed {
    Fixed { id, parent, name, place }
}

/// All fixed entries. Clients detect features by the presence of their files: one that is not
/// implemented has no file, as with an older kernel; a file that contains "0" would be taken for a
/// feature by clients that only check whether it exists.
const FIXED: [Fixed; 12] = [
    entry(2, ROOT_ID, CONTROL_NAME, Place::Control),
    entry(FEATURES_ID, ROOT_ID, "features", Place::Features),
    entry(LOGS_ID, ROOT_ID, "binder_logs", Place::Logs),
    entry(FIRST_FEATURE_ID, FEATURES_ID, "extended_error", Place::Feature),
    entry(5, FEATURES_ID, "freeze_notification", Place::Feature),
    entry(LAST_FEATURE_ID, FEATURES_ID, "oneway_spam_detection", Place::Feature),
    entry(9, LOGS_ID, "failed_transaction_log", Place::Log(Log::FailedTransactions)),
    entry(PROCESSES_ID, LOGS_ID, "proc", Place::Processes),
    entry(10, LOGS_ID, "state", Place::Log(Log::State)),
    entry(11, LOGS_ID, "stats", Place::Log(Log::Stats)),
    entry(12, LOGS_ID, "transaction_log", Place::Log(Log::LastTransactions)),
    entry(13, LOGS_ID, "transactions", Place::Log(Log::Transactions)),
];

/// `binder_logs` of a tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Logs {
    Present,
    Absent,
}

/// The fixed entries of a tree with or without logs, and their numbers.
pub(crate) fn all(logs: Logs) -> impl Iterator<Item = (u64, &'static Fixed)> {
    (0..).zip(FIXED.iter()).filter(move |(_, entry)| logs == Logs::Present || entry.id < LOGS_ID)
}

/// The place of a fixed node; `None` for one that is not fixed.
pub(crate) fn place(node: u64, logs: Logs) -> Option<Place> {
    if node == ROOT_ID {
        return Some(Place::Root);
    }
    if logs == Logs::Present
        && let Some(pid) = node.checked_sub(PROCESS_IDS)
    {
        return u32::try_from(pid).ok().map(|pid| Place::Log(Log::Process(pid)));
    }
    all(logs).find(|(_, entry)| entry.id == node).map(|(_, entry)| entry.place)
}

/// The node of a name in a folder.
pub(crate) fn lookup(parent: u64, name: &str, logs: Logs) -> Option<u64> {
    if logs == Logs::Present && parent == PROCESSES_ID {
        let pid: u32 = name.parse().ok()?;
        return (pid.to_string() == name).then(|| process_node(pid));
    }
    all(logs).find(|(_, one)| one.parent == parent && one.name == name).map(|(_, one)| one.id)
}

/// The node of a pid in `binder_logs/proc`.
pub(crate) fn process_node(pid: u32) -> u64 {
    PROCESS_IDS + u64::from(pid)
}

/// Whether a node is a feature file. Those are fixed for the lifetime of the tree.
pub(crate) fn is_feature(node: u64) -> bool {
    (FIRST_FEATURE_ID..=LAST_FEATURE_ID).contains(&node)
}

/// The requested part of a feature file.
pub(crate) fn read_feature(offset: u64, size: u32) -> &'static [u8] {
    part(FEATURE_CONTENT, offset, size)
}

/// The part of a file that `read(2)` requests.
pub(crate) fn part(content: &[u8], offset: u64, size: u32) -> &[u8] {
    let start = usize::try_from(offset).unwrap_or(usize::MAX).min(content.len());
    let end = content.len().min(start.saturating_add(size as usize));
    &content[start..end]
}

/// Bytes of a feature file.
pub(crate) fn feature_size() -> u64 {
    FEATURE_CONTENT.len() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_nodes_are_unique_and_found_both_ways() {
        for (_, one) in all(Logs::Present) {
            assert_eq!(lookup(one.parent, one.name, Logs::Present), Some(one.id), "{}", one.name);
            assert_eq!(place(one.id, Logs::Present), Some(one.place), "{}", one.name);
            assert!(one.id < FIRST_FREE_ID);
        }
    }

    #[test]
    fn logs_exist_only_if_enabled() {
        assert_eq!(lookup(ROOT_ID, "binder_logs", Logs::Absent), None);
        assert_eq!(place(LOGS_ID, Logs::Absent), None);
        assert_eq!(lookup(PROCESSES_ID, "1", Logs::Absent), None);
        assert_eq!(place(process_node(1), Logs::Absent), None);
        let node = lookup(PROCESSES_ID, "4711", Logs::Present).unwrap();
        assert_eq!(place(node, Logs::Present), Some(Place::Log(Log::Process(4711))));
        for odd in ["", "04711", "+1", "-1", "4294967296", "self"] {
            assert_eq!(lookup(PROCESSES_ID, odd, Logs::Present), None, "{odd:?}");
        }
    }

    #[test]
    fn a_feature_file_reads_one_and_a_newline() {
        let node = lookup(FEATURES_ID, "extended_error", Logs::Absent).unwrap();
        assert!(is_feature(node) && !is_feature(LOGS_ID));
        assert_eq!(read_feature(0, 4096), b"1\n");
        assert_eq!(read_feature(1, 4096), b"\n");
        assert_eq!(read_feature(2, 4096), b"");
        assert_eq!(read_feature(u64::MAX, 1), b"");
        assert_eq!(lookup(FEATURES_ID, "no_such_feature", Logs::Present), None);
    }
}
