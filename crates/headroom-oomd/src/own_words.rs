//! What users say of their own processes.
//!
//! It counts where a user's own limit is concerned, among that user's processes: nobody can put another's process in
//! front of its own. Rules of the administrator count before it.

use std::collections::BTreeMap;

use control::oomd::Importance;
use memory_ledger::{Process, ProcessId, Stance, Uid};

/// Processes of one user that something may be said of.
const MOST_OF_A_USER: usize = 256;

/// By process: whose it is, and what was said.
#[derive(Debug, Default)]
pub struct OwnWords {
    said: BTreeMap<ProcessId, (Uid, Stance)>,
}

impl OwnWords {
    /// Takes note. `process` belongs to the user who says it.
    pub fn say(&mut self, process: &Process, importance: Importance) -> Result<(), String> {
        let stance = match importance {
            Importance::Ordinary => {
                self.said.remove(&process.id);
                return Ok(());
            }
            Importance::Avoid => Stance::Avoid,
            Importance::Prefer => Stance::Prefer,
        };
        let of_the_user = self.said.values().filter(|(uid, _)| *uid == process.uid).count();
        if of_the_user >= MOST_OF_A_USER && !self.said.contains_key(&process.id) {
            let uid = process.uid;
            return Err(format!(
                "uid {uid} has said something of {MOST_OF_A_USER} processes already"
            ));
        }
        self.said.insert(process.id, (process.uid, stance));
        Ok(())
    }

    /// Has it count among a user's processes, of which no rule speaks. `shared`: others would die in place of those that
    /// it wants spared, so they are not.
    pub fn apply(&self, uid: Uid, processes: &mut [Process], shared: bool) {
        for process in processes.iter_mut().filter(|process| process.uid == uid) {
            if let Some((said_by, stance)) = self.said.get(&process.id)
                && *said_by == uid
                && process.stance == Stance::Ordinary
                && !(shared && *stance == Stance::Avoid)
            {
                process.stance = *stance;
            }
        }
    }

    /// Forgets whoever is not among these.
    pub fn forget_gone(&mut self, processes: &[Process]) {
        if self.said.is_empty() || processes.is_empty() {
            return;
        }
        let mut there: Vec<ProcessId> = processes.iter().map(|process| process.id).collect();
        there.sort_unstable();
        self.said.retain(|id, _| there.binary_search(id).is_ok());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(pid: u32, uid: u32) -> Process {
        Process { id: ProcessId { pid, start_time: 1 }, ..Process::of(Uid(uid)) }
    }

    #[test]
    fn a_word_counts_among_the_users_own_processes_and_below_a_rule() {
        let mut words = OwnWords::default();
        words.say(&process(1, 7), Importance::Avoid).unwrap();
        words.say(&process(2, 7), Importance::Prefer).unwrap();
        let ruled = Process { stance: Stance::Never, ..process(2, 7) };
        // Another one has the id of the first by now.
        let mut processes = [process(1, 8), ruled, process(1, 7)];
        words.apply(Uid(7), &mut processes, false);
        assert_eq!(processes.map(|it| it.stance), [Stance::Ordinary, Stance::Never, Stance::Avoid]);
        words.say(&process(1, 7), Importance::Ordinary).unwrap();
        let mut processes = [process(1, 7)];
        words.apply(Uid(7), &mut processes, false);
        assert_eq!(processes[0].stance, Stance::Ordinary);
    }

    #[test]
    fn who_shares_a_limit_can_offer_its_own_processes_but_not_others_in_place_of_them() {
        let mut words = OwnWords::default();
        words.say(&process(1, 7), Importance::Avoid).unwrap();
        words.say(&process(2, 7), Importance::Prefer).unwrap();
        let mut processes = [process(1, 7), process(2, 7), process(3, 8)];
        words.apply(Uid(7), &mut processes, true);
        let expected = [Stance::Ordinary, Stance::Prefer, Stance::Ordinary];
        assert_eq!(processes.map(|it| it.stance), expected);
    }

    #[test]
    fn a_user_cannot_fill_our_memory_with_words() {
        let mut words = OwnWords::default();
        for pid in 0..MOST_OF_A_USER as u32 {
            words.say(&process(pid, 7), Importance::Avoid).unwrap();
        }
        assert!(words.say(&process(9999, 7), Importance::Avoid).is_err());
        words.say(&process(9999, 8), Importance::Avoid).unwrap();
        words.say(&process(5, 7), Importance::Prefer).unwrap();
        words.forget_gone(&[process(5, 7), process(9999, 8)]);
        assert_eq!(words.said.len(), 2);
    }
}
