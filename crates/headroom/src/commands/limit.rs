//! `headroom limit`: users' limits.

use std::fmt::Write;
use std::path::Path;

use anyhow::ensure;
use control::configuration::ConfiguredLimit;
use control::oomd::{AccountRef, LimitLayer, MemberUsage, PendingLimit, Reply, Request, UserLimit};
use headroom_linux::machine_memory::Meminfo;
use serde_json::json;
use unicode_width::UnicodeWidthStr;

use crate::arguments::{Globals, GraceOption, LimitCommand};
use crate::helpers::client::{call_oomd, unexpected};
use crate::helpers::output::{self, printable};
use crate::helpers::quantity::{Amount, Size};
use crate::helpers::user::{self, User, Visibility};

/// Runs the command.
pub fn limit(globals: &Globals, command: &LimitCommand) -> anyhow::Result<()> {
    match command {
        LimitCommand::Set { user, size, soft, grace } => {
            set(globals, user, size, soft.as_ref(), grace)
        }
        LimitCommand::Get { user } => get(globals, user),
        LimitCommand::List => {
            let (limits, defaults) = (limits(globals)?, defaults(globals));
            let document = json!({ "limits": limits, "defaults": defaults });
            output::print_as(globals.format(), &document, || {
                if limits.is_empty() && defaults.is_empty() {
                    return format!("{}\n", Visibility::ours().no_limit());
                }
                table(&limits, &defaults)
            })
        }
        LimitCommand::Clear { user, grace } => {
            let account = user.account(&globals.oomd_socket)?;
            done(globals, &Request::ClearLimit { account, grace_s: grace.seconds })?;
            let limit = limits(globals)?.into_iter().find(|limit| user.has(limit));
            let document = json!({ "limit": limit });
            output::print_as(globals.format(), &document, || cleared(user, limit.as_ref()))
        }
    }
}

fn set(
    globals: &Globals,
    user: &User,
    hard: &Amount,
    soft: Option<&Amount>,
    grace: &GraceOption,
) -> anyhow::Result<()> {
    let machine_bytes = Meminfo::read(Path::new("/proc"))?.total.unwrap_or(0);
    let hard = hard.of(machine_bytes)?;
    let soft = soft.map(|soft| soft.of(hard.0)).transpose()?;
    ensure!(
        hard.0 > 0,
        "a limit of 0 would kill every process; to remove the limit: headroom limit set {user} none"
    );
    if let Some(soft) = soft {
        ensure!(soft <= hard, "the soft limit ({soft}) is above the hard limit ({hard})");
    }
    let account = user.account(&globals.oomd_socket)?;
    let soft_bytes = soft.map(|soft| soft.0);
    let request =
        Request::SetLimit { account, hard_bytes: hard.0, soft_bytes, grace_s: grace.seconds };
    done(globals, &request)?;
    get(globals, user)
}

fn get(globals: &Globals, user: &User) -> anyhow::Result<()> {
    let mut limit = limits(globals)?.into_iter().find(|limit| user.has(limit));
    if let (None, User::Uid(uid)) = (&limit, user) {
        // A limit that applies once the user has a process. A daemon of an earlier version does
        // not know the request.
        let request = Request::GetLimit { account: AccountRef::user(*uid) };
        if let Ok(Reply::Limits { mut limits }) = call_oomd(&globals.oomd_socket, &request) {
            limit = limits.pop();
        }
    }
    if limit.is_none() {
        // Accounts of users exist without a limit; groups and cgroups exist only with one.
        user.account(&globals.oomd_socket)?;
        let hidden = match (Visibility::ours(), user) {
            (Visibility::Own(us), User::Uid(uid)) => us != *uid,
            _ => false,
        };
        ensure!(!hidden, "the limit of {user} is visible to {user} and root only");
    }
    output::print_as(globals.format(), &json!({ "limit": limit }), || match &limit {
        Some(limit) => table(std::slice::from_ref(limit), &[]),
        None => format!("{user} has no limit\n"),
    })
}

/// The limit that applies after one was cleared.
fn cleared(user: &User, limit: Option<&UserLimit>) -> String {
    let Some(limit) = limit else { return format!("{user} has no limit\n") };
    let source = &limit.source;
    match &limit.details.grace {
        Some(PendingLimit { hard_bytes, seconds }) => {
            let (used, hard) = (Size(limit.used_bytes), Size(*hard_bytes));
            format!(
                "{user} uses {used} of {hard}, the limit by {source}: it is enforced in {seconds} \
                 s, and the user was notified; at once: headroom limit set {user} {hard_bytes} \
                 --grace 0\n"
            )
        }
        None => {
            let hard = Size(limit.hard_bytes);
            format!("{user} has a limit of {hard} still, which another source has set: {source}\n")
        }
    }
}

/// None if the daemon is of an earlier version.
fn defaults(globals: &Globals) -> Vec<ConfiguredLimit> {
    match call_oomd(&globals.oomd_socket, &Request::DefaultLimits) {
        Ok(Reply::DefaultLimits { limits }) => limits,
        _ => Vec::new(),
    }
}

fn limits(globals: &Globals) -> anyhow::Result<Vec<UserLimit>> {
    match call_oomd(&globals.oomd_socket, &Request::ListLimits)? {
        Reply::Limits { limits } => Ok(limits),
        reply => Err(unexpected(&reply)),
    }
}

fn done(globals: &Globals, request: &Request) -> anyhow::Result<()> {
    match call_oomd(&globals.oomd_socket, request)? {
        Reply::Done => Ok(()),
        reply => Err(unexpected(&reply)),
    }
}

fn table(limits: &[UserLimit], defaults: &[ConfiguredLimit]) -> String {
    let name = |it: &UserLimit| user::owner(it.account, it.group.as_deref(), it.cgroup.as_deref());
    let names: Vec<String> = limits.iter().map(name).collect();
    let default_names: Vec<String> = defaults.iter().map(default_name).collect();
    let all_names = names.iter().chain(&default_names);
    let width = all_names.map(|name| name.width()).max().unwrap_or(0).max(4);
    let mut text = format!(
        "{:<width$}  {:>11}  {:>11}  {:>11}  {:>6}  FROM\n",
        "USER", "LIMIT", "SOFT", "USED", ""
    );
    for (name, limit) in names.iter().zip(limits) {
        let _ = write!(
            text,
            "{}  {:>11}  {:>11}  {:>11}  {:>6}  {}",
            output::padded(name, width),
            Size(limit.hard_bytes),
            Size(limit.soft_bytes),
            Size(limit.used_bytes),
            percent(limit.used_bytes, limit.hard_bytes),
            limit.source,
        );
        if limit.dying_bytes > 0 {
            let _ = write!(text, "  ({} of it dying)", Size(limit.dying_bytes));
        }
        if limit.leased_bytes > 0 {
            let holders = output::count(limit.leaseholders, "process", "processes");
            let _ = write!(text, "  ({} leased to {holders})", Size(limit.leased_bytes));
        }
        if !limit.counts.is_empty() {
            let _ = write!(text, "  (of {})", limit.counts.join(", "));
        }
        if limit.group.is_some() {
            let users = output::count(limit.members.len() as u32, "user", "users");
            let _ = write!(text, "  ({users} together)");
        }
        if let Some(PendingLimit { hard_bytes, seconds }) = &limit.details.grace {
            let _ = write!(text, "  ({} in {seconds} s)", Size(*hard_bytes));
        }
        let other = limit.details.layers.iter().skip(1);
        for LimitLayer { source, hard_bytes } in other {
            let _ = write!(text, "  ({source}: {})", Size(*hard_bytes));
        }
        text.push('\n');
        for MemberUsage { uid, used_bytes } in &limit.details.member_usage {
            let name = output::padded(&format!("  {}", user::name(*uid)), width);
            let _ = writeln!(text, "{name}  {:>11}  {:>11}  {:>11}", "", "", Size(*used_bytes));
        }
    }
    for (name, limit) in default_names.iter().zip(defaults) {
        let (hard, soft) = (Size(limit.hard_bytes), Size(limit.soft_bytes));
        let name = output::padded(name, width);
        let _ = writeln!(text, "{name}  {hard:>11}  {soft:>11}  {:>11}  {:>6}  config", "", "");
    }
    text
}

/// As the owner of a limit that applies to each of several users.
fn default_name(limit: &ConfiguredLimit) -> String {
    if limit.user == "*" { "every ordinary user".to_owned() } else { printable(&limit.user) }
}

// `40.0%`.
fn percent(part: u64, whole: u64) -> String {
    if whole == 0 {
        return "-".into();
    }
    let tenths = u128::from(part) * 1000 / u128::from(whole);
    format!("{}.{}%", tenths / 10, tenths % 10)
}

#[cfg(test)]
mod tests {
    use control::Uid;
    use control::oomd::LimitDetails;

    use super::*;

    /// A limit of a user that uses nothing.
    fn unused_limit() -> UserLimit {
        UserLimit {
            account: AccountRef::user(Uid(4_000_000_000)),
            group: None,
            cgroup: None,
            members: Vec::new(),
            counts: Vec::new(),
            hard_bytes: 0,
            soft_bytes: 0,
            used_bytes: 0,
            dying_bytes: 0,
            peak_bytes: 0,
            usage_source: None,
            leased_bytes: 0,
            leaseholders: 0,
            source: String::new(),
            details: LimitDetails::default(),
        }
    }

    #[test]
    fn the_table_shows_headroom_and_kills_in_flight() {
        let limit = UserLimit {
            hard_bytes: 256 << 20,
            soft_bytes: 230 << 20,
            used_bytes: 128 << 20,
            dying_bytes: 64 << 20,
            peak_bytes: 130 << 20,
            leased_bytes: 32 << 20,
            leaseholders: 3,
            source: "runtime".into(),
            ..unused_limit()
        };
        let text = table(std::slice::from_ref(&limit), &[]);
        for part in [
            "4000000000",
            "256.0 MiB",
            "230.0 MiB",
            "128.0 MiB",
            "50.0%",
            "runtime",
            "64.0 MiB of it",
            "32.0 MiB leased to 3 processes",
        ] {
            assert!(text.contains(part), "{part} is missing in\n{text}");
        }
        let group = Some("students".to_owned());
        let group = UserLimit {
            group,
            members: vec![Uid(7), Uid(8)],
            counts: vec!["file".into()],
            ..limit.clone()
        };
        let text = table(&[group], &[]);
        assert!(
            text.contains("@students") && text.contains("(of file)  (2 users together)"),
            "{text}"
        );
        assert!(!text.contains("4000000000"), "{text}");
        let of_cgroup = UserLimit { cgroup: Some("/a/ci.service".into()), ..limit };
        let text = table(&[of_cgroup], &[]);
        assert!(text.contains("/a/ci.service") && !text.contains("together"), "{text}");
    }

    #[test]
    fn the_table_shows_each_limit_its_source_members_and_defaults() {
        let layer =
            |source: &str, mib: u64| LimitLayer { source: source.into(), hard_bytes: mib << 20 };
        let limit = UserLimit {
            hard_bytes: 500 << 20,
            soft_bytes: 450 << 20,
            used_bytes: 250 << 20,
            source: "config".into(),
            details: LimitDetails {
                layers: vec![layer("config", 150), layer("default", 100)],
                grace: Some(PendingLimit { hard_bytes: 150 << 20, seconds: 42 }),
                exempt: false,
                member_usage: vec![MemberUsage { uid: Uid(4_000_000_001), used_bytes: 7 << 20 }],
            },
            ..unused_limit()
        };
        let default = ConfiguredLimit {
            user: "*".into(),
            hard_bytes: 100 << 20,
            soft_bytes: 90 << 20,
            warn_bytes: None,
            soft_signal_ms: None,
            exempt: false,
            counts: Vec::new(),
            members: Vec::new(),
        };
        let each = ConfiguredLimit { user: "each of @students".into(), ..default.clone() };
        let text = table(std::slice::from_ref(&limit), &[each, default]);
        let expected = "\
            USER                       LIMIT         SOFT         USED          FROM\n\
            4000000000             500.0 MiB    450.0 MiB    250.0 MiB   50.0%  config  \
            (150.0 MiB in 42 s)  (default: 100.0 MiB)\n  \
            4000000001                                       7.0 MiB\n\
            each of @students      100.0 MiB     90.0 MiB                       config\n\
            every ordinary user    100.0 MiB     90.0 MiB                       config\n";
        assert_eq!(text, expected);
        let user = User::Uid(Uid(4_000_000_000));
        let text = cleared(&user, Some(&limit));
        assert!(
            text.contains(
                "uses 250.0 MiB of 150.0 MiB, the limit by config: it is enforced in 42 s"
            ),
            "{text}"
        );
    }

    #[test]
    fn percentages_survive_extreme_numbers() {
        assert_eq!(percent(u64::MAX, 1), "1844674407370955161500.0%");
        assert_eq!(percent(1, 0), "-");
    }
}
