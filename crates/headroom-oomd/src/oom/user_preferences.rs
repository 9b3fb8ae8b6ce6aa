//! Users' preferences about their own processes.
//!
//! They apply to kills for the user's own limit, among that user's processes: no user can have
//! another user's process killed before its own. Rules of the administrator take precedence.

use std::collections::BTreeMap;

use control::oomd::Importance;
use memory_ledger::{KillPreference, Process, ProcessId, Uid};

/// Maximum number of preferences per user.
const MAX_OF_A_USER: usize = 256;

/// The users that an account holds memory of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sharing {
    /// One user.
    Alone,
    /// Several users.
    Shared,
}

#[derive(Clone, Copy, Debug)]
struct Preference {
    uid: Uid,
    preference: KillPreference,
}

/// Preferences by process.
#[derive(Debug, Default)]
pub(super) struct UserPreferences {
    of: BTreeMap<ProcessId, Preference>,
}

impl UserPreferences {
    /// Sets the preference of the user that owns the process.
    pub(super) fn set(&mut self, process: &Process, importance: Importance) -> Result<(), String> {
        let preference = match importance {
            Importance::Ordinary => {
                self.of.remove(&process.id);
                return Ok(());
            }
            Importance::Avoid => KillPreference::Avoid,
            Importance::Prefer => KillPreference::Prefer,
        };
        let of_the_user = self.of.values().filter(|it| it.uid == process.uid).count();
        if of_the_user >= MAX_OF_A_USER && !self.of.contains_key(&process.id) {
            let uid = process.uid;
            return Err(format!(
                "uid {uid} has set the preference of {MAX_OF_A_USER} processes already"
            ));
        }
        self.of.insert(process.id, Preference { uid: process.uid, preference });
        Ok(())
    }

    /// Applies a user's preferences to its processes, unless a rule matches them. In a shared
    /// account its processes cannot be spared, since other users' processes would be killed
    /// instead.
    pub(super) fn apply(&self, uid: Uid, processes: &mut [Process], sharing: Sharing) {
        for process in processes.iter_mut().filter(|process| process.uid == uid) {
            if let Some(preference) = self.of.get(&process.id)
                && preference.uid == uid
                && process.preference == KillPreference::Ordinary
                && (sharing == Sharing::Alone || preference.preference != KillPreference::Avoid)
            {
                process.preference = preference.preference;
            }
        }
    }

    /// Drops preferences for processes that are not in this list.
    pub(super) fn forget_gone(&mut self, processes: &[Process]) {
        if self.of.is_empty() || processes.is_empty() {
            return;
        }
        let mut there: Vec<ProcessId> = processes.iter().map(|process| process.id).collect();
        there.sort_unstable();
        self.of.retain(|id, _| there.binary_search(id).is_ok());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALICE: Uid = Uid(7);
    const BOB: Uid = Uid(8);

    fn process(pid: u32, uid: Uid) -> Process {
        Process { id: ProcessId { pid, start_time: 1 }, ..Process::of(uid) }
    }

    #[test]
    fn preferences_apply_to_own_processes_and_rank_below_rules() {
        let mut preferences = UserPreferences::default();
        preferences.set(&process(1, ALICE), Importance::Avoid).unwrap();
        preferences.set(&process(2, ALICE), Importance::Prefer).unwrap();
        let ruled = Process { preference: KillPreference::Never, ..process(2, ALICE) };
        // Another one has the id of the first by now.
        let mut processes = [process(1, BOB), ruled, process(1, ALICE)];
        preferences.apply(ALICE, &mut processes, Sharing::Alone);
        assert_eq!(
            processes.map(|it| it.preference),
            [KillPreference::Ordinary, KillPreference::Never, KillPreference::Avoid]
        );
        preferences.set(&process(1, ALICE), Importance::Ordinary).unwrap();
        let mut processes = [process(1, ALICE)];
        preferences.apply(ALICE, &mut processes, Sharing::Alone);
        assert_eq!(processes[0].preference, KillPreference::Ordinary);
    }

    #[test]
    fn users_of_a_shared_limit_can_prefer_their_own_processes_only() {
        let mut preferences = UserPreferences::default();
        preferences.set(&process(1, ALICE), Importance::Avoid).unwrap();
        preferences.set(&process(2, ALICE), Importance::Prefer).unwrap();
        let mut processes = [process(1, ALICE), process(2, ALICE), process(3, BOB)];
        preferences.apply(ALICE, &mut processes, Sharing::Shared);
        let expected = [KillPreference::Ordinary, KillPreference::Prefer, KillPreference::Ordinary];
        assert_eq!(processes.map(|it| it.preference), expected);
    }

    #[test]
    fn a_user_cannot_fill_our_memory_with_preferences() {
        let mut preferences = UserPreferences::default();
        for pid in 0..MAX_OF_A_USER as u32 {
            preferences.set(&process(pid, ALICE), Importance::Avoid).unwrap();
        }
        assert!(preferences.set(&process(9999, ALICE), Importance::Avoid).is_err());
        preferences.set(&process(9999, BOB), Importance::Avoid).unwrap();
        preferences.set(&process(5, ALICE), Importance::Prefer).unwrap();
        preferences.forget_gone(&[process(5, ALICE), process(9999, BOB)]);
        assert_eq!(preferences.of.len(), 2);
    }
}
