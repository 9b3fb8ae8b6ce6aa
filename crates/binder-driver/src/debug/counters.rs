//! Counters since the start: commands and returns by kind, objects by kind.

use serde::{Deserialize, Serialize};

use crate::driver::{Driver, ProcessId};

/// Kinds of commands, by their number.
pub const COMMANDS: [&str; 22] = [
    "BC_TRANSACTION",
    "BC_REPLY",
    "BC_ACQUIRE_RESULT",
    "BC_FREE_BUFFER",
    "BC_INCREFS",
    "BC_ACQUIRE",
    "BC_RELEASE",
    "BC_DECREFS",
    "BC_INCREFS_DONE",
    "BC_ACQUIRE_DONE",
    "BC_ATTEMPT_ACQUIRE",
    "BC_REGISTER_LOOPER",
    "BC_ENTER_LOOPER",
    "BC_EXIT_LOOPER",
    "BC_REQUEST_DEATH_NOTIFICATION",
    "BC_CLEAR_DEATH_NOTIFICATION",
    "BC_DEAD_BINDER_DONE",
    "BC_TRANSACTION_SG",
    "BC_REPLY_SG",
    "BC_REQUEST_FREEZE_NOTIFICATION",
    "BC_CLEAR_FREEZE_NOTIFICATION",
    "BC_FREEZE_NOTIFICATION_DONE",
];

/// Kinds of returns, by their number.
pub const RETURNS: [&str; 23] = [
    "BR_ERROR",
    "BR_OK",
    "BR_TRANSACTION",
    "BR_REPLY",
    "BR_ACQUIRE_RESULT",
    "BR_DEAD_REPLY",
    "BR_TRANSACTION_COMPLETE",
    "BR_INCREFS",
    "BR_ACQUIRE",
    "BR_RELEASE",
    "BR_DECREFS",
    "BR_ATTEMPT_ACQUIRE",
    "BR_NOOP",
    "BR_SPAWN_LOOPER",
    "BR_FINISHED",
    "BR_DEAD_BINDER",
    "BR_CLEAR_DEATH_NOTIFICATION_DONE",
    "BR_FAILED_REPLY",
    "BR_FROZEN_REPLY",
    "BR_ONEWAY_SPAM_SUSPECT",
    "BR_TRANSACTION_PENDING_FROZEN",
    "BR_FROZEN_BINDER",
    "BR_CLEAR_FREEZE_NOTIFICATION_DONE",
];

/// Commands and returns by number; one that overflows starts again.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Counters {
    pub commands: [u32; COMMANDS.len()],
    pub returns: [u32; RETURNS.len()],
}

/// Number of objects that were ever created, by kind. (The slabs have the current number.)
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct Made {
    pub processes: u32,
    pub threads: u32,
    pub nodes: u32,
    pub refs: u32,
    pub deaths: u32,
    pub freezes: u32,
    pub transactions: u32,
}

/// All counters.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Statistics {
    pub all: Counters,
    pub made: Made,
    /// Calls and one-way calls that were delivered to their receivers.
    pub delivered: u64,
}

/// The number of a `BC_` or `BR_` word, as an index.
fn number(word: u32) -> usize {
    (word & 0xff) as usize
}

fn count(counters: &mut [u32], word: u32) {
    if let Some(counter) = counters.get_mut(number(word)) {
        one_more(counter);
    }
}

/// Increments a counter; wraps around.
pub fn one_more(counter: &mut u32) {
    *counter = counter.wrapping_add(1);
}

/// Commands that were run and returns that were delivered since the start, by name. Each count
/// wraps around after 2^32 - 1.
#[derive(Clone, Debug)]
pub struct CommandCounts {
    /// `BC_` commands.
    pub commands: Vec<(&'static str, u32)>,
    /// `BR_` returns.
    pub returns: Vec<(&'static str, u32)>,
}

impl Driver {
    /// Number of commands and returns since the start, by kind.
    pub fn command_counts(&self) -> CommandCounts {
        let all = &self.statistics.all;
        CommandCounts {
            commands: COMMANDS.into_iter().zip(all.commands).collect(),
            returns: RETURNS.into_iter().zip(all.returns).collect(),
        }
    }

    /// Calls and one-way calls that were delivered since the start; replies are not counted.
    pub fn transactions_delivered(&self) -> u64 {
        self.statistics.delivered
    }

    /// Counts the next command of `process`, which starts with `bytes`.
    pub(crate) fn count_command(&mut self, process: ProcessId, bytes: &[u8]) {
        let Some(word) = bytes.first_chunk().map(|word| u32::from_ne_bytes(*word)) else { return };
        count(&mut self.statistics.all.commands, word);
        if let Some(process) = self.processes.get_mut(process) {
            count(&mut process.counters.commands, word);
        }
    }

    /// Counts the returns in `bytes`, which are delivered to `process`.
    pub(crate) fn count_returns(&mut self, process: ProcessId, mut bytes: &[u8]) {
        while let Some(word) = bytes.first_chunk().map(|word| u32::from_ne_bytes(*word)) {
            count(&mut self.statistics.all.returns, word);
            if let Some(process) = self.processes.get_mut(process) {
                count(&mut process.counters.returns, word);
            }
            // The size of the payload is in 14 bits of the word.
            let len = 4 + (word >> 16 & 0x3fff) as usize;
            bytes = bytes.get(len..).unwrap_or_default();
        }
    }
}

#[cfg(test)]
mod tests {
    use binder_uapi::{command, returns};

    use super::*;

    #[test]
    fn the_names_are_at_the_numbers_of_their_words() {
        for (word, name) in [
            (command::BC_TRANSACTION, "BC_TRANSACTION"),
            (command::BC_FREE_BUFFER, "BC_FREE_BUFFER"),
            (command::BC_DEAD_BINDER_DONE, "BC_DEAD_BINDER_DONE"),
            (command::BC_FREEZE_NOTIFICATION_DONE, "BC_FREEZE_NOTIFICATION_DONE"),
        ] {
            assert_eq!(COMMANDS[number(word)], name);
        }
        for (word, name) in [
            (returns::BR_ERROR, "BR_ERROR"),
            (returns::BR_TRANSACTION_COMPLETE, "BR_TRANSACTION_COMPLETE"),
            (returns::BR_NOOP, "BR_NOOP"),
            (returns::BR_TRANSACTION_PENDING_FROZEN, "BR_TRANSACTION_PENDING_FROZEN"),
            (returns::BR_CLEAR_FREEZE_NOTIFICATION_DONE, "BR_CLEAR_FREEZE_NOTIFICATION_DONE"),
        ] {
            assert_eq!(RETURNS[number(word)], name);
        }
    }

    #[test]
    fn an_unknown_command_is_not_counted() {
        let mut counters = [0; 2];
        count(&mut counters, 0x6301);
        count(&mut counters, 0x63ff);
        assert_eq!(counters, [0, 1]);
    }
}
