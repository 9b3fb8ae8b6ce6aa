//! The latest decisions with their reasons, including those of earlier daemons, and their counters
//! since the start.

use std::collections::{BTreeMap, VecDeque};

use control::oomd::{
    AccountRef, Candidate, Counters, Event, KilledBy, Kills, Outcome, ProcessDetails,
    SoftLimitWarning, Trigger, Why,
};

use crate::history::{History, KEPT};
use crate::notifications::pre_kill_hook::PreKillInfo;
use crate::notifications::queue::NotificationQueue;

/// Capacity of the queue of events, which the event loop empties in each iteration.
const MOST_NEWS: usize = 256;

/// The latest decisions in memory.
pub struct Records {
    kept: Partitioned,
    last_id: u64,
    counters: Counters,
    history: Option<History>,
    notifications: Option<NotificationQueue>,
    /// Events for subscribers; `None`: there are no subscribers.
    news: Option<VecDeque<Event>>,
}

impl Default for Records {
    fn default() -> Self {
        let counters = no_counts();
        Self {
            kept: Partitioned::new(KEPT),
            last_id: 0,
            counters,
            history: None,
            notifications: None,
            news: None,
        }
    }
}

impl Records {
    /// Continues an existing history and appends to it.
    pub fn of(history: History, before: Partitioned) -> Self {
        let last_id = before.last_id();
        Self { history: Some(history), last_id, kept: before, ..Self::default() }
    }

    /// Decisions of earlier daemons whose victims may not have exited yet.
    pub fn dying(&self) -> Vec<Why> {
        self.kept.iter().filter(|why| why.outcome == Outcome::Dying).cloned().collect()
    }

    /// Records a decision and assigns its id.
    pub fn add(&mut self, mut why: Why) -> u64 {
        self.last_id += 1;
        why.id = self.last_id;
        count_decision(&mut self.counters, &why);
        self.notifications.iter().for_each(|queue| queue.decided(&why));
        self.note(|| Event::Decided { why: Box::new(why.clone()) });
        self.history.iter().for_each(|history| history.write(&why));
        self.kept.insert(why);
        self.last_id
    }

    /// Counts a crossing of a hard limit that a measurement has refuted.
    pub fn count_refuted_crossing(&mut self) {
        self.counters.refuted_crossings += 1;
    }

    /// Number of victims since the start.
    pub fn kills(&self) -> u64 {
        self.counters.kills.iter().map(|kills| kills.count).sum()
    }

    /// Sets the queue of notifications.
    pub fn notify_through(&mut self, notifications: NotificationQueue) {
        self.notifications = Some(notifications);
    }

    /// The queue of notifications, if one is set.
    pub fn notifications(&mut self) -> Option<&mut NotificationQueue> {
        self.notifications.as_mut()
    }

    /// Runs the pre-kill hook. Returns when the kill may proceed.
    pub fn run_pre_kill_hook(&self, info: PreKillInfo) {
        if let Some(notifications) = &self.notifications {
            notifications.run_pre_kill_hook(info);
        }
    }

    /// Reports that an account has crossed a level of its limit.
    pub fn near_limit(&mut self, near: SoftLimitWarning) {
        self.notifications.iter().for_each(|queue| queue.soft_limit_crossed(near.clone()));
        // The event of a login session goes to the session's user, that of another cgroup only to
        // root.
        let owner = near.members.first().filter(|_| near.cgroup.is_some());
        let account = owner.map_or(near.account, |uid| AccountRef::user(*uid));
        self.note(|| Event::SoftLimitCrossed(SoftLimitWarning { account, ..near }));
    }

    fn note(&mut self, event: impl FnOnce() -> Event) {
        // The event loop takes the events in every iteration. An iteration with this many events is
        // not expected; further events are dropped.
        if let Some(news) = self.news.as_mut().filter(|news| news.len() < MOST_NEWS) {
            news.push_back(event());
        }
    }

    /// Starts collecting events for subscribers.
    pub fn collect_news(&mut self) {
        self.news.get_or_insert_default();
    }

    /// Stops collecting events: there are no subscribers.
    pub fn stop_collecting_news(&mut self) {
        self.news = None;
    }

    /// Events since the last call.
    pub fn take_news(&mut self) -> VecDeque<Event> {
        self.news.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Counters since the start.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// The decision with this id, if it is kept.
    pub fn get(&self, id: u64) -> Option<&Why> {
        self.kept.get(id)
    }

    /// Adds the details of a decision's victim, if it has none: they were read after the signal.
    pub fn describe(&mut self, id: u64, read: impl FnOnce(&Candidate) -> Option<ProcessDetails>) {
        let victim = self.kept.get_mut(id).and_then(|why| why.victim.as_mut());
        if let Some(victim) = victim.filter(|victim| victim.details.is_none()) {
            victim.details = read(victim).map(Box::new);
        }
    }

    /// Records the outcome of a decision.
    pub fn finish(&mut self, id: u64, outcome: Outcome) {
        let Some(why) = self.kept.get_mut(id) else { return };
        count_outcome(&mut self.counters, &outcome);
        why.outcome = outcome;
        self.history.iter().for_each(|history| history.write(why));
        self.notifications.iter().for_each(|queue| queue.ended(why));
        let why = why.clone();
        self.note(|| Event::Ended { why: Box::new(why) });
    }

    /// The latest `last` decisions, newest first, about these accounts, or about all.
    pub fn latest(&self, last: u32, of: Option<&[AccountRef]>) -> Vec<Why> {
        let wanted = |why: &&Why| of.is_none_or(|of| of.contains(&why.account));
        self.kept.iter().rev().filter(wanted).take(last as usize).cloned().collect()
    }
}

/// All combinations of trigger and killer, so that each counter exists, at 0, before the first
/// kill.
const KINDS: [(Trigger, KilledBy); 9] = [
    (Trigger::Notifier, KilledBy::Kernel),
    (Trigger::Notifier, KilledBy::Daemon),
    (Trigger::Timer, KilledBy::Daemon),
    (Trigger::Request, KilledBy::Daemon),
    (Trigger::LimitSet, KilledBy::Daemon),
    (Trigger::SoftLimit, KilledBy::Daemon),
    (Trigger::Memory, KilledBy::Daemon),
    (Trigger::Forecast, KilledBy::Daemon),
    (Trigger::Stall, KilledBy::Daemon),
];

/// All counters at 0.
fn no_counts() -> Counters {
    let kills = |(trigger, killer)| Kills { trigger, killer, count: 0 };
    Counters { kills: KINDS.map(kills).into(), ..Counters::default() }
}

/// Counts a decision.
fn count_decision(counters: &mut Counters, why: &Why) {
    if why.outcome == Outcome::Observed {
        return;
    }
    let Some(killer) = why.killer else {
        counters.without_victim += 1;
        return;
    };
    counters.processes += why.killed().count() as u64;
    let same = |kills: &&mut Kills| (kills.trigger, kills.killer) == (why.trigger, killer);
    match counters.kills.iter_mut().find(same) {
        Some(kills) => kills.count += 1,
        None => counters.kills.push(Kills { trigger: why.trigger, killer, count: 1 }),
    }
    if let Some(micros) = why.decide_micros {
        counters.decide.add(micros);
    }
}

/// Counts the outcome of a decision.
fn count_outcome(counters: &mut Counters, outcome: &Outcome) {
    match outcome {
        Outcome::Reclaimed { bytes_back, micros, .. } => {
            counters.bytes_back = counters.bytes_back.saturating_add(*bytes_back);
            counters.reclaim.add(*micros);
        }
        Outcome::Stuck { .. } => counters.stuck += 1,
        Outcome::Dying | Outcome::Unknown | Outcome::Observed | Outcome::NoVictim { .. } => {}
    }
}

/// At most `most` decisions by id. If there is no room, the oldest decision of the account (user,
/// group, cgroup) with the most decisions is evicted: a user whose processes are killed again and
/// again evicts its own decisions.
#[derive(Clone, Debug)]
pub struct Partitioned {
    most: usize,
    by_id: BTreeMap<u64, Why>,
    /// Ids of each account's decisions, oldest first.
    by_account: BTreeMap<AccountRef, VecDeque<u64>>,
}

impl Partitioned {
    /// Empty, with room for `most`.
    pub fn new(most: usize) -> Self {
        Self { most: most.max(1), by_id: BTreeMap::new(), by_account: BTreeMap::new() }
    }

    /// Adds a decision, or replaces a kept one by its new state.
    pub fn insert(&mut self, why: Why) {
        let (id, account) = (why.id, why.account);
        if let Some(kept) = self.by_id.get_mut(&id) {
            if kept.account == account {
                *kept = why;
            }
            return;
        }
        if self.by_id.len() >= self.most {
            self.evict();
        }
        self.by_id.insert(id, why);
        let ids = self.by_account.entry(account).or_default();
        // The id is nearly always the highest, so the insertion is at the end.
        let at = ids.partition_point(|kept| *kept < id);
        ids.insert(at, id);
    }

    fn evict(&mut self) {
        // Among accounts with equally many decisions, the one with the oldest decision.
        let largest = self
            .by_account
            .iter()
            .max_by_key(|(_, ids)| (ids.len(), std::cmp::Reverse(ids.front().copied())));
        let Some(account) = largest.map(|(account, _)| *account) else { return };
        let Some(ids) = self.by_account.get_mut(&account) else { return };
        if let Some(id) = ids.pop_front() {
            self.by_id.remove(&id);
        }
        if ids.is_empty() {
            self.by_account.remove(&account);
        }
    }

    /// The decision with this id.
    pub fn get(&self, id: u64) -> Option<&Why> {
        self.by_id.get(&id)
    }

    /// Mutable access to a decision. The caller must not change its account, which is the key of
    /// the partition.
    pub fn get_mut(&mut self, id: u64) -> Option<&mut Why> {
        self.by_id.get_mut(&id)
    }

    /// All decisions, oldest first.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &Why> {
        self.by_id.values()
    }

    /// Mutable access to all decisions, oldest first. The caller must not change their accounts.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut Why> {
        self.by_id.values_mut()
    }

    /// The highest id; 0: there are no decisions.
    pub fn last_id(&self) -> u64 {
        self.by_id.last_key_value().map_or(0, |(id, _)| *id)
    }

    /// Number of decisions.
    pub fn len(&self) -> usize {
        self.by_id.len()
    }

    /// Whether there are no decisions.
    pub fn is_empty(&self) -> bool {
        self.by_id.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use control::Uid;
    use test_support::decision;

    use super::*;

    const ALICE: Uid = Uid(7);
    const BOB: Uid = Uid(8);

    fn why(uid: Uid) -> Why {
        Why { account: AccountRef::user(uid), killer: Some(KilledBy::Daemon), ..decision(0) }
    }

    #[test]
    fn the_latest_thousand_are_kept_and_all_are_counted() {
        let mut records = Records::default();
        for i in 0..KEPT as u32 + 5 {
            assert_eq!(records.add(why(if i % 2 == 0 { ALICE } else { BOB })), u64::from(i) + 1);
        }
        assert_eq!(records.kills(), 1005);
        assert!(records.get(5).is_none() && records.get(0).is_none());
        assert_eq!(records.get(6).unwrap().id, 6);
        assert_eq!(records.get(1005).unwrap().id, 1005);
        assert!(records.get(1006).is_none());
        assert_eq!(records.latest(2, None).iter().map(|w| w.id).collect::<Vec<_>>(), [1005, 1004]);
        let of_one = records.latest(2, Some(&[AccountRef::user(BOB)]));
        assert_eq!(of_one.iter().map(|w| w.id).collect::<Vec<_>>(), [1004, 1002]);
        assert_eq!(records.latest(u32::MAX, None).len(), KEPT);
        // The other user's 270 further kills evict that user's own oldest decisions.
        let of_the_other = records.latest(u32::MAX, Some(&[AccountRef::user(ALICE)])).len();
        for _ in 0..270 {
            records.add(why(BOB));
        }
        assert!(
            records.latest(u32::MAX, Some(&[AccountRef::user(ALICE)])).len() + 1 >= of_the_other
        );
    }

    #[test]
    fn an_outcome_finds_its_record_unless_that_is_forgotten() {
        let mut records = Records::default();
        let id = records.add(why(BOB));
        let reason = "x".to_owned();
        records.finish(id, Outcome::Stuck { reason: reason.clone() });
        assert_eq!(records.get(id).unwrap().outcome, Outcome::Stuck { reason });
        records.finish(77, Outcome::Dying);
        assert_eq!(records.latest(9, None).len(), 1);
    }

    const CAROL: Uid = Uid(9);

    fn decision_of(id: u64, uid: Uid) -> Why {
        Why { account: AccountRef::user(uid), ..decision(id) }
    }

    fn ids(kept: &Partitioned, uid: Uid) -> Vec<u64> {
        kept.iter().filter(|why| why.account == AccountRef::user(uid)).map(|why| why.id).collect()
    }

    #[test]
    fn a_user_with_many_kills_forgets_its_own() {
        let mut kept = Partitioned::new(10);
        for id in 1..=3 {
            kept.insert(decision_of(id, ALICE));
        }
        for id in 4..=1000 {
            kept.insert(decision_of(id, BOB));
        }
        assert_eq!(ids(&kept, ALICE), [1, 2, 3]);
        assert_eq!(ids(&kept, BOB), (994..=1000).collect::<Vec<u64>>());
        assert_eq!((kept.len(), kept.last_id()), (10, 1000));
        // The next user's decision is kept at once.
        kept.insert(decision_of(1001, CAROL));
        assert_eq!((ids(&kept, CAROL), ids(&kept, ALICE)), (vec![1001], vec![1, 2, 3]));
    }

    #[test]
    fn with_equal_parts_the_oldest_goes() {
        let mut kept = Partitioned::new(4);
        for id in 1..=8 {
            kept.insert(decision_of(id, if id % 2 == 0 { ALICE } else { BOB }));
        }
        assert_eq!(kept.iter().map(|why| why.id).collect::<Vec<_>>(), [5, 6, 7, 8]);
    }

    #[test]
    fn a_later_entry_replaces_the_decision() {
        let mut kept = Partitioned::new(2);
        kept.insert(decision_of(1, ALICE));
        let end = Outcome::Stuck { reason: "x".to_owned() };
        kept.insert(Why { outcome: end.clone(), ..decision_of(1, ALICE) });
        assert_eq!((kept.len(), &kept.get(1).unwrap().outcome), (1, &end));
        // A damaged file does not move a decision to another account.
        kept.insert(decision_of(1, BOB));
        assert_eq!(kept.get(1).unwrap().account, AccountRef::user(ALICE));
        assert!(kept.get(2).is_none() && !kept.is_empty());
    }
}
