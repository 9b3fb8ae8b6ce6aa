//! Patterns of control groups that a limit applies to.
//!
//! A pattern is a path from the root of the hierarchy in which `*` and `?` match within one
//! folder's name. Each cgroup that matches has the limit by itself, including all its descendants.
//! A login session is a cgroup as well, with the names that systemd gives:
//! `/user.slice/user-UID.slice/session-N.scope`.

use std::fmt;
use std::ops::RangeInclusive;

use crate::account_id::{Uid, is_ordinary};
use crate::limit::Limit;
use crate::rules::Pattern;

/// Maximum length of a pattern, bytes.
const LONGEST: usize = 1024;

/// One folder of a pattern.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Folder {
    /// Exactly this name.
    Named(String),
    /// All names that match the pattern.
    Like(Pattern),
}

impl Folder {
    fn new(name: &str) -> Result<Self, PatternError> {
        match name {
            "" | "." | ".." => Err(PatternError::Folder(name.to_owned())),
            name if name.contains(['*', '?']) => {
                Pattern::glob(name).map(Self::Like).map_err(|_| PatternError::TooLong)
            }
            name => Ok(Self::Named(name.to_owned())),
        }
    }

    /// The name matches.
    pub fn matches(&self, name: &str) -> bool {
        match self {
            Self::Named(own) => own == name,
            Self::Like(pattern) => pattern.matches(name),
        }
    }
}

/// Reason for rejecting a pattern.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PatternError {
    /// The path does not begin at the root.
    #[error(
        "a cgroup is a path from the root of the hierarchy, like \"/system.slice/ci-*.service\""
    )]
    NotFromRoot,
    /// The path is the root itself.
    #[error("\"/\" is the whole machine, which [machine] is about")]
    Root,
    /// `//`, `.` or `..`, or a `/` at the end.
    #[error(
        "no cgroup is called \"{0}\": there is one \"/\" between two names, and none at the end"
    )]
    Folder(String),
    /// The compiled pattern would take too much memory.
    #[error("this pattern is too long: at most {LONGEST} bytes")]
    TooLong,
}

/// A pattern of cgroup paths.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CgroupPattern {
    text: String,
    folders: Vec<Folder>,
    /// Matches only cgroups of ordinary users.
    of_ordinary: bool,
}

impl CgroupPattern {
    /// Parses a path with wild cards.
    pub fn new(text: &str) -> Result<Self, PatternError> {
        let names = text.strip_prefix('/').ok_or(PatternError::NotFromRoot)?;
        if names.is_empty() {
            return Err(PatternError::Root);
        }
        if text.len() > LONGEST {
            return Err(PatternError::TooLong);
        }
        let folders = names.split('/').map(Folder::new).collect::<Result<_, _>>()?;
        Ok(Self { text: text.to_owned(), folders, of_ordinary: false })
    }

    /// Matches each login session of a user; `None`: of every ordinary user.
    pub fn sessions_of(uid: Option<Uid>) -> Result<Self, PatternError> {
        let user = uid.map_or("*".to_owned(), |uid| uid.to_string());
        let pattern = Self::new(&format!("/user.slice/user-{user}.slice/session-*.scope"))?;
        Ok(Self { of_ordinary: uid.is_none(), ..pattern })
    }

    /// The components of the path, from the root.
    pub fn folders(&self) -> &[Folder] {
        &self.folders
    }

    /// The path matches. `ordinary` are the uids of local ordinary users.
    pub fn matches(&self, path: &str, ordinary: &RangeInclusive<Uid>) -> bool {
        let mut names = path.strip_prefix('/').unwrap_or_default().split('/');
        self.folders.iter().all(|folder| names.next().is_some_and(|name| folder.matches(name)))
            && names.next().is_none()
            && (!self.of_ordinary || owner_of(path).is_some_and(|uid| is_ordinary(ordinary, uid)))
    }

    /// How specific the pattern is: number of letters that are no wild cards.
    fn letters(&self) -> usize {
        self.text.chars().filter(|c| !matches!(c, '*' | '?')).count()
    }
}

/// The pattern as it was written, with a suffix for sessions of all ordinary users.
impl fmt::Display for CgroupPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)?;
        f.write_str(if self.of_ordinary { " (of ordinary users)" } else { "" })
    }
}

/// The user that owns the slice of a cgroup, by systemd's names.
pub fn owner_of(path: &str) -> Option<Uid> {
    let slice = path.strip_prefix("/user.slice/user-")?.split('/').next()?;
    slice.strip_suffix(".slice")?.parse().ok().map(Uid)
}

/// The limit for the cgroups of a pattern, for each by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CgroupLimit {
    /// The cgroups that are limited.
    pub pattern: CgroupPattern,
    /// The limit of each of them.
    pub limit: Limit,
}

/// The limit of a cgroup: of the patterns that match, the most specific one applies; of two that
/// are equally specific, the later one.
pub fn limit_of(
    limits: &[CgroupLimit],
    path: &str,
    ordinary: &RangeInclusive<Uid>,
) -> Option<Limit> {
    let about = limits.iter().filter(|limit| limit.pattern.matches(path, ordinary));
    about.max_by_key(|limit| limit.pattern.letters()).map(|limit| limit.limit)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ORDINARY: RangeInclusive<Uid> = Uid(1000)..=Uid(60_000);

    fn matches(pattern: &str, path: &str) -> bool {
        CgroupPattern::new(pattern).unwrap().matches(path, &ORDINARY)
    }

    #[test]
    fn a_wild_card_stands_within_one_folders_name() {
        assert!(matches("/system.slice/ci-*.service", "/system.slice/ci-7.service"));
        assert!(!matches("/system.slice/ci-*.service", "/system.slice/ci-7.service/job"));
        assert!(!matches("/*", "/a/b") && matches("/*/?", "/a/b") && !matches("/a/b", "/a"));
        assert!(!matches("/a.b", "/axb") && !matches("/a", "a") && !matches("/a", ""));
    }

    #[test]
    fn invalid_cgroup_paths_are_refused_by_name() {
        let refused = |text: &str| CgroupPattern::new(text).unwrap_err();
        assert_eq!(refused("a/b"), PatternError::NotFromRoot);
        assert_eq!(refused(""), PatternError::NotFromRoot);
        assert_eq!(refused("/"), PatternError::Root);
        for text in ["/a/", "//a", "/a/../b", "/./a"] {
            assert!(matches!(refused(text), PatternError::Folder(_)), "{text}");
        }
        assert_eq!(refused(&format!("/{}", "*".repeat(LONGEST))), PatternError::TooLong);
    }

    #[test]
    fn sessions_are_those_of_ordinary_users_or_of_one() {
        let all = CgroupPattern::sessions_of(None).unwrap();
        let of = |uid| format!("/user.slice/user-{uid}.slice/session-c3.scope");
        assert!(all.matches(&of(1000), &ORDINARY) && all.matches(&of(60_000), &ORDINARY));
        assert!(all.matches(&of(1_682_401_104), &ORDINARY), "of a directory");
        assert!(!all.matches(&of(0), &ORDINARY) && !all.matches(&of(60_001), &ORDINARY));
        let one = CgroupPattern::sessions_of(Some(Uid(0))).unwrap();
        assert!(one.matches(&of(0), &ORDINARY) && !one.matches(&of(1000), &ORDINARY));
        let manager = "/user.slice/user-1000.slice/user@1000.service";
        assert!(!all.matches(manager, &ORDINARY));
        assert_eq!(owner_of(manager), Some(Uid(1000)));
        assert_eq!(owner_of("/user.slice/user-x.slice/session-1.scope"), None);
        assert_eq!(owner_of("/system.slice"), None);
    }

    #[test]
    fn the_most_specific_pattern_applies() {
        let limit = |pattern: Result<CgroupPattern, PatternError>, mib: u64| CgroupLimit {
            pattern: pattern.unwrap(),
            limit: Limit::new(mib << 20, None).unwrap(),
        };
        let limits = [
            limit(CgroupPattern::new("/a/job"), 1),
            limit(CgroupPattern::new("/a/*"), 2),
            limit(CgroupPattern::sessions_of(Some(Uid(1000))), 3),
            limit(CgroupPattern::sessions_of(None), 4),
            limit(CgroupPattern::new("/?/*"), 5),
        ];
        let of = |path: &str| limit_of(&limits, path, &ORDINARY).map(|it| it.hard_bytes() >> 20);
        assert_eq!(
            (of("/a/job"), of("/a/other"), of("/b/job"), of("/a")),
            (Some(1), Some(2), Some(5), None)
        );
        assert_eq!(of("/user.slice/user-1000.slice/session-1.scope"), Some(3));
        assert_eq!(of("/user.slice/user-1001.slice/session-1.scope"), Some(4));
    }
}
