//! Rebuilds what the serialised state leaves out because it follows from the rest.

use crate::driver::Driver;

impl Driver {
    /// Completes a driver that was read back, and verifies it; the error names the first
    /// contradiction. No state makes it panic.
    pub(super) fn restore(&mut self) -> Result<(), String> {
        // Everything after that may look up any key.
        self.check_keys()?;
        for (id, account) in self.accounts.iter() {
            self.accounts_by_owner.insert(account.owner, id);
        }
        for process in self.processes.values_mut() {
            process.refs.index_nodes(|reference| self.refs[reference].node);
        }
        for buffer in self.buffers.values().filter(|buffer| buffer.queued_for.is_some()) {
            if let Some(process) = self.processes.get_mut(buffer.process) {
                // Checked sums: the bytes may be those of a damaged state.
                let bytes = process.untaken_bytes.checked_add(buffer.layout.total);
                process.untaken_bytes = bytes.ok_or("untaken bytes overflow")?;
            }
        }
        for (place, process, page) in self.idle_pages.places() {
            let area = self.processes.get_mut(process).and_then(|entry| entry.area.as_mut());
            if !area.is_some_and(|area| area.pages.restore_place(page, place)) {
                return Err(format!("page {page} of {process:?} is listed but not idle"));
            }
        }
        self.check_invariants()
    }
}
