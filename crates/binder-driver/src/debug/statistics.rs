//! Counters since the start: commands and returns by kind, objects by kind.

use crate::debug::counters::{COMMANDS, CommandCounts, RETURNS, count};
use crate::driver::Driver;
use crate::keys::ProcessId;

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
