//! What has happened so far, in numbers: commands and returns by kind, objects by kind.

use crate::debug::counters::{COMMANDS, CommandCounts, RETURNS, count};
use crate::driver::Driver;
use crate::keys::ProcessId;

impl Driver {
    /// What has happened so far.
    pub fn command_counts(&self) -> CommandCounts {
        let all = &self.statistics.all;
        CommandCounts {
            commands: COMMANDS.into_iter().zip(all.commands).collect(),
            returns: RETURNS.into_iter().zip(all.returns).collect(),
        }
    }

    /// Calls and one-ways that were delivered since the start; replies are not counted.
    pub fn transactions_delivered(&self) -> u64 {
        self.statistics.delivered
    }

    /// The next command of `process` starts with `bytes`.
    pub(crate) fn count_command(&mut self, process: ProcessId, bytes: &[u8]) {
        let Some(word) = bytes.first_chunk().map(|word| u32::from_ne_bytes(*word)) else { return };
        count(&mut self.statistics.all.commands, word);
        if let Some(process) = self.processes.get_mut(process) {
            count(&mut process.counters.commands, word);
        }
    }

    /// `process` is handed the returns in `bytes`.
    pub(crate) fn count_returns(&mut self, process: ProcessId, mut bytes: &[u8]) {
        while let Some(word) = bytes.first_chunk().map(|word| u32::from_ne_bytes(*word)) {
            count(&mut self.statistics.all.returns, word);
            if let Some(process) = self.processes.get_mut(process) {
                count(&mut process.counters.returns, word);
            }
            // The word carries the size of its payload in 14 bits.
            let len = 4 + (word >> 16 & 0x3fff) as usize;
            bytes = bytes.get(len..).unwrap_or_default();
        }
    }
}
