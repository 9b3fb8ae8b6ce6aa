//! Whose word about a user's limit counts.
//!
//! A limit has layers. The *base* is root's: what was set while running, else what the configuration
//! says of this user, else what it says of every user. The *own* layer is the user's and can only be
//! lower than the base, so a user can tie its own hands and untie them again, but never get at what
//! root has set.

use crate::limit::Limit;

/// Who asks for a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asker {
    /// May do anything that makes sense.
    Root,
    /// A user, for itself.
    User(u32),
}

/// Where a limit comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The configuration, of this user.
    Config,
    /// The configuration, of every ordinary user.
    Everyone,
    /// A request.
    Runtime,
}

impl Source {
    /// `config`, `default` or `runtime`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Config => "config",
            Self::Everyone => "default",
            Self::Runtime => "runtime",
        }
    }
}

/// Why a change was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The system runs as root.
    #[error("uid 0 cannot be limited: its victims would be the system's own services")]
    Root,
    /// `(uid_t) -1` means "no user".
    #[error("uid 4294967295 is no user")]
    NoUser,
    /// Only root rules others.
    #[error("uid {asker} may not change the limit of uid {uid}; only root may")]
    NotYours {
        /// Who asked.
        asker: u32,
        /// Whose limit it is.
        uid: u32,
    },
    /// Whose memory is counted together with others'.
    #[error(
        "uid {uid} shares the limit of the group \"{group}\" and has none of its own; the configuration says who is in it"
    )]
    InGroup {
        /// Whose limit was to change.
        uid: u32,
        /// The group's name.
        group: String,
    },
    /// Others are concerned as well.
    #[error("uid {asker} may not change the limit of the group \"{group}\"; only root may")]
    Groups {
        /// Who asked.
        asker: u32,
        /// The group's name.
        group: String,
    },
    /// Only the configuration speaks of cgroups.
    #[error("limits of cgroups and sessions are set in the configuration alone")]
    Cgroup,
    /// Neither a user nor a group.
    #[error(
        "{0} is no group's number, and no uid that can be limited: those from 4294836224 on stand for cgroups and groups"
    )]
    NoGroup(u32),
    /// A user may only lower.
    #[error(
        "uid {uid} may not raise its limit above {base_bytes} bytes, which {by} has set; only root may"
    )]
    Raise {
        /// Whose limit it is.
        uid: u32,
        /// Hard limit of the base, bytes.
        base_bytes: u64,
        /// Who set the base.
        by: &'static str,
    },
    /// A user may not clear what is not its own.
    #[error("the limit of uid {uid} was set by {by}; only root may clear it")]
    NotYoursToClear {
        /// Whose limit it is.
        uid: u32,
        /// Who set the base.
        by: &'static str,
    },
    /// Nothing to clear.
    #[error("uid {0} has no limit")]
    NoLimit(u32),
    /// One user is no exception until it has a limit of its own.
    #[error(
        "the limit of uid {0} is that of every ordinary user; give it one of its own, or change the configuration"
    )]
    Everyones(u32),
}

/// The layers of a user's limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Layers {
    everyone: Option<Limit>,
    config: Option<Limit>,
    runtime: Option<Limit>,
    own: Option<Limit>,
}

impl Layers {
    /// The limit that counts, and where it comes from. What of the memory counts is the configuration's word where it
    /// says anything of the user: a number that was set while running is of the same kinds.
    pub fn effective(&self) -> Option<(Limit, Source)> {
        let (limit, source) = self.own.map(|own| (own, Source::Runtime)).or(self.base())?;
        let configured = self.config.or(self.everyone);
        Some((limit.counting(configured.unwrap_or(limit).count()), source))
    }

    fn base(&self) -> Option<(Limit, Source)> {
        let of = |limit: Option<Limit>, source| limit.map(|limit| (limit, source));
        of(self.runtime, Source::Runtime)
            .or(of(self.config, Source::Config))
            .or(of(self.everyone, Source::Everyone))
    }

    /// What one source says.
    pub fn layer(&self, source: Source) -> Option<Limit> {
        match source {
            Source::Config => self.config,
            Source::Everyone => self.everyone,
            Source::Runtime => self.runtime,
        }
    }

    /// What the user itself says.
    pub fn own(&self) -> Option<Limit> {
        self.own
    }

    fn base_by(&self) -> &'static str {
        match self.base() {
            Some((_, Source::Config | Source::Everyone)) => "the configuration",
            _ => "root",
        }
    }

    /// These layers after the configuration has changed its mind about this user: it says `config` of
    /// it, and `everyone` of every user. What was set while running stays, but a user's own layer must
    /// not be above the base.
    pub fn configured(self, config: Option<Limit>, everyone: Option<Limit>) -> Self {
        let new = Self { config, everyone, ..self };
        let base = new.base().map(|(limit, _)| limit.hard_bytes());
        let own = self.own.filter(|own| base.is_none_or(|base| own.hard_bytes() <= base));
        Self { own, ..new }
    }

    fn may_change(uid: u32, asker: Asker) -> Result<(), Refusal> {
        match asker {
            _ if uid == 0 => Err(Refusal::Root),
            _ if uid == u32::MAX => Err(Refusal::NoUser),
            Asker::User(asker) if asker != uid => Err(Refusal::NotYours { asker, uid }),
            _ => Ok(()),
        }
    }

    /// These layers after `asker` has set a limit.
    pub fn with(
        self,
        uid: u32,
        limit: Limit,
        source: Source,
        asker: Asker,
    ) -> Result<Self, Refusal> {
        Self::may_change(uid, asker)?;
        match (asker, self.base()) {
            (Asker::Root, _) => Ok(match source {
                // Root's word replaces the user's own layer, too.
                Source::Runtime => Self { runtime: Some(limit), own: None, ..self },
                Source::Config => self.configured(Some(limit), self.everyone),
                Source::Everyone => self.configured(self.config, Some(limit)),
            }),
            (Asker::User(_), Some((base, _))) if limit.hard_bytes() > base.hard_bytes() => {
                let (base_bytes, by) = (base.hard_bytes(), self.base_by());
                Err(Refusal::Raise { uid, base_bytes, by })
            }
            (Asker::User(_), _) => Ok(Self { own: Some(limit), ..self }),
        }
    }

    /// These layers after `asker` has cleared the limit: root all that is about this user alone, a user
    /// its own layer.
    pub fn without(self, uid: u32, asker: Asker) -> Result<Self, Refusal> {
        Self::may_change(uid, asker)?;
        match (asker, self.effective()) {
            (_, None) => Err(Refusal::NoLimit(uid)),
            (Asker::Root, Some((_, Source::Everyone))) => Err(Refusal::Everyones(uid)),
            (Asker::Root, _) => Ok(Self { everyone: self.everyone, ..Self::default() }),
            (Asker::User(_), _) if self.own.is_some() => Ok(Self { own: None, ..self }),
            (Asker::User(_), _) => Err(Refusal::NotYoursToClear { uid, by: self.base_by() }),
        }
    }
}

/// A change that was allowed and is not in force yet, so that the watcher can be told first and
/// nothing has to be taken back when that fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "nothing changes until it is applied"]
pub struct Change {
    /// Whose limit.
    pub uid: u32,
    pub(crate) layers: Layers,
}

impl Change {
    /// All that is said of the user afterwards.
    pub fn layers(&self) -> &Layers {
        &self.layers
    }

    /// The limit that counts afterwards.
    pub fn limit(&self) -> Option<Limit> {
        self.layers.effective().map(|(limit, _)| limit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::count::Count;

    const ALICE: u32 = 1000;

    fn mib(n: u64) -> Limit {
        Limit::new(n << 20, None).unwrap()
    }

    fn hard(layers: Layers) -> Option<u64> {
        layers.effective().map(|(limit, _)| limit.hard_bytes() >> 20)
    }

    fn root_set(n: u64) -> Layers {
        Layers::default().with(ALICE, mib(n), Source::Runtime, Asker::Root).unwrap()
    }

    fn set(layers: Layers, n: u64, asker: Asker) -> Result<Layers, Refusal> {
        layers.with(ALICE, mib(n), Source::Runtime, asker)
    }

    #[test]
    fn a_user_may_tie_its_own_hands_and_untie_them() {
        let free = Layers::default();
        let tied = set(free, 100, Asker::User(ALICE)).unwrap();
        assert_eq!(hard(tied), Some(100));
        let looser = set(tied, 200, Asker::User(ALICE)).unwrap();
        assert_eq!(hard(looser), Some(200), "its own limit is its own to raise");
        assert_eq!(hard(looser.without(ALICE, Asker::User(ALICE)).unwrap()), None);
    }

    #[test]
    fn a_user_may_lower_roots_limit_and_lift_it_back_but_not_further() {
        let lowered = set(root_set(100), 50, Asker::User(ALICE)).unwrap();
        assert_eq!(hard(lowered), Some(50));
        assert_eq!(hard(set(lowered, 100, Asker::User(ALICE)).unwrap()), Some(100));
        let refused = set(lowered, 101, Asker::User(ALICE)).unwrap_err();
        assert_eq!(refused, Refusal::Raise { uid: ALICE, base_bytes: 100 << 20, by: "root" });
        assert_eq!(hard(lowered.without(ALICE, Asker::User(ALICE)).unwrap()), Some(100));
    }

    #[test]
    fn a_user_may_not_clear_what_root_or_the_configuration_has_set() {
        let refused = root_set(100).without(ALICE, Asker::User(ALICE)).unwrap_err();
        assert_eq!(refused, Refusal::NotYoursToClear { uid: ALICE, by: "root" });
        let config = Layers::default().with(ALICE, mib(9), Source::Config, Asker::Root).unwrap();
        let refused = config.without(ALICE, Asker::User(ALICE)).unwrap_err();
        assert_eq!(refused, Refusal::NotYoursToClear { uid: ALICE, by: "the configuration" });
    }

    #[test]
    fn a_user_may_not_touch_anybody_elses_limit() {
        let bob = Asker::User(1001);
        let refused = Err(Refusal::NotYours { asker: 1001, uid: ALICE });
        assert_eq!(set(root_set(100), 50, bob), refused);
        assert_eq!(root_set(100).without(ALICE, bob), refused);
    }

    #[test]
    fn what_counts_is_the_configurations_word_whoever_sets_the_number() {
        let files = Count { file: true, ..Count::default() };
        let config = Layers::default().configured(Some(mib(100).counting(files)), None);
        let counts = |layers: Layers| layers.effective().unwrap().0.count();
        assert_eq!(counts(set(config, 50, Asker::User(ALICE)).unwrap()), files);
        assert_eq!(counts(set(config, 300, Asker::Root).unwrap()), files);
        assert_eq!(counts(root_set(100)), Count::default());
    }

    #[test]
    fn roots_word_replaces_everything() {
        let lowered = set(root_set(100), 50, Asker::User(ALICE)).unwrap();
        assert_eq!(hard(set(lowered, 80, Asker::Root).unwrap()), Some(80));
        assert_eq!(hard(lowered.without(ALICE, Asker::Root).unwrap()), None);
    }

    #[test]
    fn what_is_said_of_everyone_counts_where_nothing_else_is_said() {
        let everyone = Layers::default().configured(None, Some(mib(100)));
        assert_eq!(everyone.effective(), Some((mib(100), Source::Everyone)));
        assert_eq!(everyone.without(ALICE, Asker::Root), Err(Refusal::Everyones(ALICE)));
        let refused = everyone.without(ALICE, Asker::User(ALICE)).unwrap_err();
        assert_eq!(refused, Refusal::NotYoursToClear { uid: ALICE, by: "the configuration" });
        let own = set(everyone, 200, Asker::Root).unwrap();
        assert_eq!(hard(own), Some(200));
        assert_eq!(own.without(ALICE, Asker::Root).unwrap(), everyone);
        assert_eq!(hard(everyone.configured(Some(mib(7)), Some(mib(9)))), Some(7));
    }

    #[test]
    fn a_new_configuration_leaves_what_was_set_meanwhile_but_not_above_it() {
        let lowered =
            set(Layers::default().configured(Some(mib(100)), None), 50, Asker::User(ALICE));
        let lowered = lowered.unwrap();
        assert_eq!(hard(lowered.configured(Some(mib(80)), None)), Some(50));
        assert_eq!(hard(lowered.configured(Some(mib(40)), None)), Some(40));
        assert_eq!(hard(lowered.configured(None, None)), Some(50), "tied by itself");
        let roots = set(lowered, 300, Asker::Root).unwrap();
        assert_eq!(hard(roots.configured(Some(mib(40)), None)), Some(300));
        assert_eq!(hard(roots.configured(None, None)), Some(300));
    }

    #[test]
    fn what_is_no_ordinary_user_cannot_be_limited_and_nothing_cannot_be_cleared() {
        let free = Layers::default();
        assert_eq!(free.with(0, mib(9), Source::Config, Asker::Root), Err(Refusal::Root));
        assert_eq!(free.with(0, mib(9), Source::Runtime, Asker::User(0)), Err(Refusal::Root));
        let nobody = free.with(u32::MAX, mib(9), Source::Runtime, Asker::Root);
        assert_eq!(nobody, Err(Refusal::NoUser));
        assert_eq!(free.without(ALICE, Asker::Root), Err(Refusal::NoLimit(ALICE)));
        assert_eq!(free.without(ALICE, Asker::User(ALICE)), Err(Refusal::NoLimit(ALICE)));
    }
}
