//! Reload of a configuration against a naive model: the limit of each user, source by source.

use memory_ledger::{AccountId, GroupId, Groups, Ledger, Limit, Refusal, Requester, Source, Uid};
use proptest::prelude::*;

const USERS: [Uid; 4] = [Uid(1000), Uid(1001), Uid(1002), Uid(1003)];
const ALICE: AccountId = AccountId::User(Uid(1000));
const BOB: AccountId = AccountId::User(Uid(1001));

#[derive(Clone, Debug)]
enum Step {
    /// A configuration: MiB of each user (0: not in it), and of the default limit.
    Reload([u64; 4], u64),
    RootSets(usize, u64),
    UserSets(usize, u64),
    RootClears(usize),
    UserClears(usize),
    /// A process of the user is seen while the default limit applies.
    Seen(usize),
}

fn step() -> impl Strategy<Value = Step> {
    let mib = prop_oneof![Just(0u64), 1u64..8];
    let four = [mib.clone(), mib.clone(), mib.clone(), mib.clone()];
    prop_oneof![
        3 => (four, mib).prop_map(|(users, default_limit)| Step::Reload(users, default_limit)),
        2 => (0usize..4, 1u64..8).prop_map(|(user, mib)| Step::RootSets(user, mib)),
        3 => (0usize..4, 1u64..8).prop_map(|(user, mib)| Step::UserSets(user, mib)),
        1 => (0usize..4).prop_map(Step::RootClears),
        1 => (0usize..4).prop_map(Step::UserClears),
        3 => (0usize..4).prop_map(Step::Seen),
    ]
}

/// Limits of one user by source, MiB; 0: none.
#[derive(Clone, Copy, Debug, Default)]
struct Sources {
    default_limit: u64,
    config: u64,
    runtime: u64,
    own: u64,
}

impl Sources {
    fn base(&self) -> u64 {
        [self.runtime, self.config, self.default_limit]
            .into_iter()
            .find(|mib| *mib > 0)
            .unwrap_or(0)
    }

    fn counts(&self) -> u64 {
        if self.own > 0 { self.own } else { self.base() }
    }

    fn clamp(&mut self) {
        if self.base() > 0 && self.own > self.base() {
            self.own = 0;
        }
    }
}

fn limit(mib: u64) -> Limit {
    Limit::new(mib << 20, None).unwrap()
}

#[derive(Default)]
struct World {
    ledger: Ledger,
    sources: [Sources; 4],
    default_limit: u64,
}

impl World {
    fn apply(&mut self, step: &Step) {
        match *step {
            Step::Reload(users, default_limit) => self.reload(users, default_limit),
            Step::RootSets(user, mib) => {
                let (account, source) = (USERS[user].into(), Source::Runtime);
                let change =
                    self.ledger.plan_set(account, limit(mib), source, Requester::Root).unwrap();
                self.ledger.apply(change);
                (self.sources[user].runtime, self.sources[user].own) = (mib, 0);
            }
            Step::UserSets(user, mib) => {
                let (uid, sources) = (USERS[user], &mut self.sources[user]);
                let requester = Requester::User(uid);
                let plan = self.ledger.plan_set(uid.into(), limit(mib), Source::Runtime, requester);
                let may = sources.base() == 0 || mib <= sources.base();
                assert_eq!(plan.is_ok(), may);
                if let Ok(change) = plan {
                    self.ledger.apply(change);
                    sources.own = mib;
                }
            }
            Step::RootClears(user) => {
                let sources = &mut self.sources[user];
                let plan = self.ledger.plan_clear(USERS[user].into(), Requester::Root);
                assert_eq!(plan.is_ok(), sources.own + sources.runtime > 0);
                if let Ok(change) = plan {
                    self.ledger.apply(change);
                    (sources.own, sources.runtime) = (0, 0);
                }
            }
            Step::UserClears(user) => {
                let sources = &mut self.sources[user];
                let plan = self.ledger.plan_clear(USERS[user].into(), Requester::User(USERS[user]));
                assert_eq!(plan.is_ok(), sources.own > 0);
                if let Ok(change) = plan {
                    self.ledger.apply(change);
                    sources.own = 0;
                }
            }
            Step::Seen(user) if self.default_limit > 0 => {
                if let Some(change) =
                    self.ledger.plan_default(USERS[user], limit(self.default_limit))
                {
                    self.ledger.apply(change);
                }
                self.sources[user].default_limit = self.default_limit;
                self.sources[user].clamp();
            }
            Step::Seen(user) => {
                // The user has no process left: without any other limit its account is removed.
                let forgotten = self.ledger.plan_forget(USERS[user]);
                assert!(forgotten.is_none(), "the default limit has no state to drop");
            }
        }
    }

    fn reload(&mut self, users: [u64; 4], default_limit: u64) {
        let config: Vec<(AccountId, Limit)> = USERS
            .into_iter()
            .zip(users)
            .filter(|(_, mib)| *mib > 0)
            .map(|(uid, mib)| (uid.into(), limit(mib)))
            .collect();
        let for_all = (default_limit > 0).then(|| limit(default_limit));
        let changes = self.ledger.plan_reload(&config, for_all);
        let sizes: Vec<u64> =
            changes.iter().map(|c| c.limit().map_or(0, |limit| limit.hard_bytes())).collect();
        assert!(sizes.is_sorted(), "those that make room come first");
        changes.into_iter().for_each(|change| self.ledger.apply(change));
        assert!(self.ledger.plan_reload(&config, for_all).is_empty(), "once is enough");
        self.default_limit = default_limit;
        for (sources, mib) in self.sources.iter_mut().zip(users) {
            sources.config = mib;
            sources.default_limit = if sources.default_limit > 0 { default_limit } else { 0 };
            sources.clamp();
        }
    }

    fn check(&self) {
        for (uid, sources) in USERS.into_iter().zip(self.sources) {
            let counts =
                self.ledger.account(uid.into()).map_or(0, |it| it.limit().hard_bytes() >> 20);
            assert_eq!(counts, sources.counts(), "uid {uid}: {sources:?}");
            let layers = self.ledger.account(uid.into()).map(|it| it.layers()).unwrap_or_default();
            let mib = |limit: Option<Limit>| limit.map_or(0, |limit| limit.hard_bytes() >> 20);
            assert_eq!(mib(layers.own()), sources.own);
            assert_eq!(mib(layers.layer(Source::Runtime)), sources.runtime);
            assert_eq!(mib(layers.layer(Source::Config)), sources.config);
            assert_eq!(mib(layers.layer(Source::Default)), sources.default_limit);
            assert!(sources.base() == 0 || sources.counts() <= sources.base());
        }
    }
}

proptest! {
    #[test]
    fn precedence_does_not_depend_on_the_order_of_changes(
        steps in prop::collection::vec(step(), 1..40)
    ) {
        let mut world = World::default();
        for step in &steps {
            world.apply(step);
            world.check();
        }
    }
}

#[test]
fn a_user_with_the_default_limit_is_dropped_after_its_last_process() {
    let mut ledger = Ledger::default();
    ledger.apply(ledger.plan_default(Uid(1000), limit(5)).unwrap());
    assert!(ledger.plan_default(Uid(1000), limit(5)).is_none());
    ledger.apply(ledger.plan_default(Uid(1001), limit(5)).unwrap());
    let own = ledger.plan_set(BOB, limit(2), Source::Runtime, Requester::User(Uid(1001))).unwrap();
    ledger.apply(own);
    assert!(ledger.plan_forget(Uid(1001)).is_none(), "it has tied its own hands");
    ledger.apply(ledger.plan_forget(Uid(1000)).unwrap());
    assert!(ledger.account(ALICE).is_none() && ledger.account(BOB).is_some());
}

fn group(name: &str, uids: &[Uid]) -> Groups {
    Groups::new([(name.to_owned(), uids.to_vec())])
}

fn reload(
    ledger: &mut Ledger,
    groups: Groups,
    config: &[(AccountId, Limit)],
    default_limit: Option<Limit>,
) {
    ledger.set_groups(groups);
    for change in ledger.plan_reload(config, default_limit) {
        ledger.apply(change);
    }
}

#[test]
fn a_user_that_joins_a_group_loses_its_own_account() {
    let mut ledger = Ledger::default();
    ledger.apply(ledger.plan_default(Uid(1000), limit(5)).unwrap());
    ledger.apply(ledger.plan_set(BOB, limit(7), Source::Runtime, Requester::Root).unwrap());
    let students = group("students", &USERS[..2]);
    let account = students.account_of(Uid(1000));
    reload(&mut ledger, students, &[(account, limit(9))], Some(limit(5)));
    let accounts: Vec<AccountId> = ledger.accounts().iter().map(|account| account.id).collect();
    assert_eq!(accounts, [account]);
    assert!(ledger.plan_default(Uid(1000), limit(5)).is_none(), "it has a limit, with others");
    reload(&mut ledger, Groups::default(), &[], Some(limit(5)));
    assert!(ledger.accounts().is_empty(), "and so is a group's account that is no more");
    assert!(ledger.plan_default(Uid(1000), limit(5)).is_some());
}

#[test]
fn a_groups_limit_is_roots_to_change_and_its_members_have_none_of_their_own() {
    let mut ledger = Ledger::default();
    let students = group("students", &USERS[..1]);
    let account = students.account_of(Uid(1000));
    reload(&mut ledger, students, &[(account, limit(9))], None);
    let set = |account, requester| ledger.plan_set(account, limit(3), Source::Runtime, requester);
    let group = || "students".to_owned();
    let in_group = || Err(Refusal::InGroup { uid: Uid(1000), group: group() });
    assert_eq!(set(ALICE, Requester::Root), in_group());
    assert_eq!(set(ALICE, Requester::User(Uid(1000))), in_group());
    assert_eq!(ledger.plan_clear(ALICE, Requester::Root), in_group());
    let refused = Refusal::Groups { requester: Uid(1000), group: group() };
    assert_eq!(set(account, Requester::User(Uid(1000))), Err(refused));
    let other = AccountId::Group(GroupId::new(1).unwrap());
    assert_eq!(set(other, Requester::Root), Err(Refusal::NoGroup));
    let lowered = set(account, Requester::Root).unwrap();
    ledger.apply(lowered);
    assert_eq!(ledger.account(account).unwrap().limit(), limit(3));
}
