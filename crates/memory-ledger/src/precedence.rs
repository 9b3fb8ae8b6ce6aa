//! Limit precedence.
//!
//! The *base* limit is set by root: a runtime limit, else the configured limit of the user, else
//! the configured default of every user. The *own* limit is set by the user itself and can only be
//! lower than the base, so a user can lower and restore its own limit, but never exceed the one
//! that root has set.
//!
//! A limit that is lowered below the usage takes effect after a *grace*: until then the limit that
//! was in force before holds.

use crate::account::{AccountId, Uid};
use crate::limit::{Bytes, Limit};

/// The user that requests a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Requester {
    /// May make any valid change.
    Root,
    /// A user, which may change its own limit.
    User(Uid),
}

/// Origin of a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The configuration, for this user.
    Config,
    /// The configuration, for every ordinary user.
    Default,
    /// A request at run time.
    Runtime,
}

impl Source {
    /// `config`, `default` or `runtime`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Config => "config",
            Self::Default => "default",
            Self::Runtime => "runtime",
        }
    }
}

/// Reason for refusing a change.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// uid 0: system services run as root.
    #[error("uid 0 cannot be limited: the system's own services would be killed")]
    Root,
    /// `(uid_t) -1` means "no user".
    #[error("uid 4294967295 is no user")]
    NoUser,
    /// Only root may change limits of others.
    #[error("uid {requester} may not change the limit of {account}; only root may")]
    NotYours {
        /// The user that requested the change.
        requester: Uid,
        /// The account that the request was for.
        account: AccountId,
    },
    /// The user's memory is counted together with that of other users.
    #[error(
        "uid {uid} shares the limit of the group \"{group}\" and has none of its own: change that \
         of @{group}, or give the user one in the configuration"
    )]
    InGroup {
        /// The user that the request was for.
        uid: Uid,
        /// The group's name.
        group: String,
    },
    /// A group's limit concerns other users as well.
    #[error("the limit of group \"{group}\" can be changed by root only, not by uid {requester}")]
    Groups {
        /// The user that requested the change.
        requester: Uid,
        /// The group's name.
        group: String,
    },
    /// Limits of cgroups are set in the configuration only.
    #[error("limits of cgroups and sessions cannot be set at run time: set them in oomd.toml")]
    Cgroup,
    /// Above [`Uid::LAST_LIMITABLE`].
    #[error("uid {0} cannot be limited: numbers from 4294836224 on are cgroups and groups")]
    Reserved(Uid),
    /// The configuration does not define this group (any more).
    #[error("oomd.toml has no group with this name")]
    NoGroup,
    /// A user may only lower its limit.
    #[error(
        "{by} set the limit of {account} to {}; the user can only lower it",
        Bytes(*.base_bytes)
    )]
    Raise {
        /// The account that the request was for.
        account: AccountId,
        /// Hard limit of the base, bytes.
        base_bytes: u64,
        /// Origin of the base limit.
        by: &'static str,
    },
    /// A user may clear only its own limit.
    #[error("{by} set the limit of {account}; only root can clear it")]
    NotYoursToClear {
        /// The account that the request was for.
        account: AccountId,
        /// Origin of the base limit.
        by: &'static str,
    },
    /// There is no limit to clear.
    #[error("{0} has no limit")]
    NoLimit(AccountId),
    /// Only limits that were set at run time can be cleared.
    #[error(
        "the limit of {0} is the configuration's, and none was set at run time; to exempt it: \
         headroom limit set USER none"
    )]
    Configured(AccountId),
}

/// Delays a lowered limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grace {
    /// The limit that was in force before, and still is.
    pub limit: Limit,
    /// End, nanoseconds, CLOCK_MONOTONIC.
    pub until_ns: u64,
}

/// All limits that are set for a user, by source.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LimitLayers {
    default: Option<Limit>,
    config: Option<Limit>,
    runtime: Option<Limit>,
    own: Option<Limit>,
    grace: Option<Grace>,
}

impl LimitLayers {
    /// The limit in force, and the source of the limit that holds once there is no grace. The kinds
    /// of memory that count are those of the configured limit or default, if there is one: a limit
    /// that was set at run time counts the same kinds.
    pub fn effective(&self) -> Option<(Limit, Source)> {
        let (limit, source) = self.after_grace()?;
        let held = self.grace.map_or(limit, |grace| grace.limit);
        Some((held.counting(limit.count()), source))
    }

    /// The limit that holds once there is no grace, and its source.
    pub fn after_grace(&self) -> Option<(Limit, Source)> {
        let (limit, source) = self.own.map(|own| (own, Source::Runtime)).or(self.base())?;
        let configured = self.config.or(self.default);
        Some((limit.counting(configured.unwrap_or(limit).count()), source))
    }

    /// The grace of a lowered limit.
    pub fn grace(&self) -> Option<Grace> {
        self.grace
    }

    pub(crate) fn with_grace(self, grace: Option<Grace>) -> Self {
        Self { grace, ..self }
    }

    fn base(&self) -> Option<(Limit, Source)> {
        let of = |limit: Option<Limit>, source| limit.map(|limit| (limit, source));
        of(self.runtime, Source::Runtime)
            .or(of(self.config, Source::Config))
            .or(of(self.default, Source::Default))
    }

    /// The limit of one source.
    pub fn layer(&self, source: Source) -> Option<Limit> {
        match source {
            Source::Config => self.config,
            Source::Default => self.default,
            Source::Runtime => self.runtime,
        }
    }

    /// The limit that the user has set for itself.
    pub fn own(&self) -> Option<Limit> {
        self.own
    }

    fn base_by(&self) -> &'static str {
        match self.base() {
            Some((_, Source::Config | Source::Default)) => "the configuration",
            _ => "root",
        }
    }

    /// Returns the limits after a change of the configuration: `config` is the limit of this user,
    /// and `default` that of every user. A runtime limit stays, but the user's own limit is dropped
    /// if it is above the new base.
    pub fn configured(self, config: Option<Limit>, default: Option<Limit>) -> Self {
        let new = Self { config, default, ..self };
        let base = new.base().map(|(limit, _)| limit.hard_bytes());
        let own = self.own.filter(|own| base.is_none_or(|base| own.hard_bytes() <= base));
        Self { own, ..new }
    }

    fn may_change(account: AccountId, requester: Requester) -> Result<(), Refusal> {
        match (account, requester) {
            (AccountId::User(Uid::ROOT), _) => Err(Refusal::Root),
            (AccountId::User(Uid::NONE), _) => Err(Refusal::NoUser),
            (AccountId::User(uid), _) if !uid.is_limitable() => Err(Refusal::Reserved(uid)),
            (_, Requester::User(requester)) if account != AccountId::User(requester) => {
                Err(Refusal::NotYours { requester, account })
            }
            _ => Ok(()),
        }
    }

    /// Returns the limits after `requester` has set a limit.
    pub fn with(
        self,
        account: AccountId,
        limit: Limit,
        source: Source,
        requester: Requester,
    ) -> Result<Self, Refusal> {
        Self::may_change(account, requester)?;
        match (requester, self.base()) {
            (Requester::Root, _) => Ok(match source {
                // A runtime limit by root replaces the user's own limit, too.
                Source::Runtime => Self { runtime: Some(limit), own: None, grace: None, ..self },
                Source::Config => self.configured(Some(limit), self.default),
                Source::Default => self.configured(self.config, Some(limit)),
            }),
            (Requester::User(_), Some((base, _))) if limit.hard_bytes() > base.hard_bytes() => {
                let (base_bytes, by) = (base.hard_bytes(), self.base_by());
                Err(Refusal::Raise { account, base_bytes, by })
            }
            (Requester::User(_), _) => Ok(Self { own: Some(limit), ..self }),
        }
    }

    /// Returns the limits after `requester` has cleared the limit: root clears all limits of this
    /// user that were set at run time, a user its own limit.
    pub fn without(self, account: AccountId, requester: Requester) -> Result<Self, Refusal> {
        Self::may_change(account, requester)?;
        match (requester, self.effective()) {
            (_, None) => Err(Refusal::NoLimit(account)),
            (Requester::Root, _) if self.runtime.or(self.own).is_none() => {
                Err(Refusal::Configured(account))
            }
            (Requester::Root, _) => Ok(Self { runtime: None, own: None, grace: None, ..self }),
            (Requester::User(_), _) if self.own.is_some() => Ok(Self { own: None, ..self }),
            (Requester::User(_), _) => {
                Err(Refusal::NotYoursToClear { account, by: self.base_by() })
            }
        }
    }
}

/// A change that was allowed and is not in force yet, so that the watcher can be updated first and
/// nothing has to be rolled back when that fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "nothing changes until it is applied"]
pub struct Change {
    /// The account that changes.
    pub account: AccountId,
    pub(crate) layers: LimitLayers,
}

impl Change {
    /// All limits of the account after the change.
    pub fn layers(&self) -> &LimitLayers {
        &self.layers
    }

    /// The limit in force after the change.
    pub fn limit(&self) -> Option<Limit> {
        self.layers.effective().map(|(limit, _)| limit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limit::Count;

    const ALICE: AccountId = AccountId::User(Uid(1000));
    const OWN: Requester = Requester::User(Uid(1000));

    fn mib(n: u64) -> Limit {
        Limit::new(n << 20, None).unwrap()
    }

    fn hard(layers: LimitLayers) -> Option<u64> {
        layers.effective().map(|(limit, _)| limit.hard_bytes() >> 20)
    }

    fn root_set(n: u64) -> LimitLayers {
        LimitLayers::default().with(ALICE, mib(n), Source::Runtime, Requester::Root).unwrap()
    }

    fn set(layers: LimitLayers, n: u64, requester: Requester) -> Result<LimitLayers, Refusal> {
        layers.with(ALICE, mib(n), Source::Runtime, requester)
    }

    #[test]
    fn a_user_can_set_and_clear_its_own_limit() {
        let free = LimitLayers::default();
        let tied = set(free, 100, OWN).unwrap();
        assert_eq!(hard(tied), Some(100));
        let looser = set(tied, 200, OWN).unwrap();
        assert_eq!(hard(looser), Some(200), "its own limit is its own to raise");
        assert_eq!(hard(looser.without(ALICE, OWN).unwrap()), None);
    }

    #[test]
    fn a_user_may_lower_roots_limit_and_lift_it_back_but_not_further() {
        let lowered = set(root_set(100), 50, OWN).unwrap();
        assert_eq!(hard(lowered), Some(50));
        assert_eq!(hard(set(lowered, 100, OWN).unwrap()), Some(100));
        let refused = set(lowered, 101, OWN).unwrap_err();
        assert_eq!(refused, Refusal::Raise { account: ALICE, base_bytes: 100 << 20, by: "root" });
        assert_eq!(hard(lowered.without(ALICE, OWN).unwrap()), Some(100));
    }

    #[test]
    fn a_user_cannot_clear_limits_of_root_or_the_configuration() {
        let refused = root_set(100).without(ALICE, OWN).unwrap_err();
        assert_eq!(refused, Refusal::NotYoursToClear { account: ALICE, by: "root" });
        let config =
            LimitLayers::default().with(ALICE, mib(9), Source::Config, Requester::Root).unwrap();
        let refused = config.without(ALICE, OWN).unwrap_err();
        assert_eq!(refused, Refusal::NotYoursToClear { account: ALICE, by: "the configuration" });
    }

    #[test]
    fn a_user_cannot_change_the_limit_of_another() {
        let bob = Requester::User(Uid(1001));
        let refused = Err(Refusal::NotYours { requester: Uid(1001), account: ALICE });
        assert_eq!(set(root_set(100), 50, bob), refused);
        assert_eq!(root_set(100).without(ALICE, bob), refused);
    }

    #[test]
    fn the_counted_kinds_come_from_the_configuration() {
        let files = Count { file: true, ..Count::default() };
        let config = LimitLayers::default().configured(Some(mib(100).counting(files)), None);
        let counts = |layers: LimitLayers| layers.effective().unwrap().0.count();
        assert_eq!(counts(set(config, 50, OWN).unwrap()), files);
        assert_eq!(counts(set(config, 300, Requester::Root).unwrap()), files);
        assert_eq!(counts(root_set(100)), Count::default());
    }

    #[test]
    fn a_limit_set_by_root_replaces_all_layers() {
        let lowered = set(root_set(100), 50, OWN).unwrap();
        assert_eq!(hard(set(lowered, 80, Requester::Root).unwrap()), Some(80));
        assert_eq!(hard(lowered.without(ALICE, Requester::Root).unwrap()), None);
    }

    #[test]
    fn the_default_limit_applies_to_users_without_their_own() {
        let default_only = LimitLayers::default().configured(None, Some(mib(100)));
        assert_eq!(default_only.effective(), Some((mib(100), Source::Default)));
        assert_eq!(default_only.without(ALICE, Requester::Root), Err(Refusal::Configured(ALICE)));
        let refused = default_only.without(ALICE, OWN).unwrap_err();
        assert_eq!(refused, Refusal::NotYoursToClear { account: ALICE, by: "the configuration" });
        let own = set(default_only, 200, Requester::Root).unwrap();
        assert_eq!(hard(own), Some(200));
        assert_eq!(own.without(ALICE, Requester::Root).unwrap(), default_only);
        assert_eq!(hard(default_only.configured(Some(mib(7)), Some(mib(9)))), Some(7));
    }

    #[test]
    fn clearing_returns_to_the_limit_of_the_configuration() {
        let config = LimitLayers::default().configured(Some(mib(300)), Some(mib(100)));
        let raised = set(config, 500, Requester::Root).unwrap();
        assert_eq!(raised.without(ALICE, Requester::Root), Ok(config));
        assert_eq!(config.without(ALICE, Requester::Root), Err(Refusal::Configured(ALICE)));
        let exempt = raised.with(ALICE, Limit::NONE, Source::Runtime, Requester::Root).unwrap();
        assert_eq!(exempt.effective(), Some((Limit::NONE, Source::Runtime)));
        assert_eq!(hard(set(exempt, 50, OWN).unwrap()), Some(50), "it may limit itself");
    }

    #[test]
    fn a_reload_keeps_run_time_limits_up_to_the_configured_one() {
        let lowered = set(LimitLayers::default().configured(Some(mib(100)), None), 50, OWN);
        let lowered = lowered.unwrap();
        assert_eq!(hard(lowered.configured(Some(mib(80)), None)), Some(50));
        assert_eq!(hard(lowered.configured(Some(mib(40)), None)), Some(40));
        assert_eq!(hard(lowered.configured(None, None)), Some(50), "tied by itself");
        let roots = set(lowered, 300, Requester::Root).unwrap();
        assert_eq!(hard(roots.configured(Some(mib(40)), None)), Some(300));
        assert_eq!(hard(roots.configured(None, None)), Some(300));
    }

    #[test]
    fn system_accounts_cannot_be_limited_and_a_missing_limit_cannot_be_cleared() {
        let free = LimitLayers::default();
        let set = |uid: Uid, requester| free.with(uid.into(), mib(9), Source::Runtime, requester);
        assert_eq!(set(Uid::ROOT, Requester::Root), Err(Refusal::Root));
        assert_eq!(set(Uid::ROOT, Requester::User(Uid::ROOT)), Err(Refusal::Root));
        assert_eq!(set(Uid::NONE, Requester::Root), Err(Refusal::NoUser));
        let reserved = Uid(Uid::LAST_LIMITABLE.0 + 1);
        assert_eq!(set(reserved, Requester::Root), Err(Refusal::Reserved(reserved)));
        assert_eq!(free.without(ALICE, Requester::Root), Err(Refusal::NoLimit(ALICE)));
        assert_eq!(free.without(ALICE, OWN), Err(Refusal::NoLimit(ALICE)));
    }
}
