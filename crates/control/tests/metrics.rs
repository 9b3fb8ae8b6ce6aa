//! The text for Prometheus is parsed as by its own parser, with its conventions checked.

use std::collections::{BTreeMap, BTreeSet};

use control::metrics::{Binderd, Oomd, Sources, text};
use control::oomd::{AccountRef, Counters, Histogram, KilledBy, Kills, Trigger, UserLimit};
use control::{Uid, binderd, oomd};

/// A family: its type, and its samples by name with labels.
#[derive(Debug, Default)]
struct Family {
    kind: String,
    helped: bool,
    samples: Vec<(String, BTreeMap<String, String>, f64)>,
}

fn is_name(name: &str) -> bool {
    !name.is_empty()
        && !name.starts_with(|c: char| c.is_ascii_digit())
        && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

/// Splits `name{a="b",c="d"} 5` into its parts.
fn sample(line: &str) -> (String, BTreeMap<String, String>, f64) {
    let (series, value) = line.rsplit_once(' ').expect(line);
    let value: f64 = value.parse().expect(line);
    let (name, labels) = match series.split_once('{') {
        Some((name, rest)) => (name, rest.strip_suffix('}').expect(line)),
        None => (series, ""),
    };
    assert!(is_name(name), "{line}");
    let mut found = BTreeMap::new();
    let mut rest = labels;
    while !rest.is_empty() {
        let (label, after) = rest.split_once("=\"").expect(line);
        assert!(is_name(label), "{line}");
        let mut value = String::new();
        let mut chars = after.char_indices();
        let end = loop {
            match chars.next().expect(line) {
                (at, '"') => break at,
                (_, '\\') => match chars.next().expect(line).1 {
                    'n' => value.push('\n'),
                    c @ ('"' | '\\') => value.push(c),
                    c => panic!("{line}: escaped {c}"),
                },
                (_, c) => value.push(c),
            }
        };
        assert!(found.insert(label.to_owned(), value).is_none(), "{line}: {label} twice");
        rest = after[end + 1..].trim_start_matches(',');
    }
    (name.to_owned(), found, value)
}

/// Parses all families; each sample must follow its header, and no series may occur twice.
fn parse(text: &str) -> BTreeMap<String, Family> {
    let mut families: BTreeMap<String, Family> = BTreeMap::new();
    let mut current = String::new();
    let mut series = BTreeSet::new();
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            let (name, help) = rest.split_once(' ').expect(line);
            assert!(help.ends_with('.'), "{line}");
            assert!(!families.contains_key(name), "{name} is there twice");
            families.entry(name.to_owned()).or_default().helped = true;
        } else if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').expect(line);
            families.get_mut(name).expect("TYPE after HELP").kind = kind.to_owned();
            current = name.to_owned();
        } else if !line.starts_with('#') {
            let (name, labels, value) = sample(line);
            assert!(series.insert((name.clone(), labels.clone())), "twice: {line}");
            let family = families.get_mut(&current).expect(line);
            let suffixes: &[&str] =
                if family.kind == "histogram" { &["_bucket", "_sum", "_count"] } else { &[""] };
            assert!(suffixes.iter().any(|end| name == format!("{current}{end}")), "{line}");
            family.samples.push((name, labels, value));
        }
    }
    for (name, family) in &families {
        assert!(name.starts_with("headroom_") && family.helped, "{name}");
        assert!(
            ["gauge", "counter", "histogram"].contains(&&*family.kind),
            "{name}: {}",
            family.kind
        );
        assert_eq!(name.ends_with("_total"), family.kind == "counter", "{name}");
        if family.kind == "histogram" {
            let buckets: Vec<_> =
                family.samples.iter().filter(|s| s.0.ends_with("_bucket")).collect();
            assert!(buckets.is_sorted_by(|a, b| a.2 <= b.2), "{name}: {buckets:?}");
            assert_eq!(buckets.last().unwrap().1["le"], "+Inf");
            let count = family.samples.iter().find(|s| s.0.ends_with("_count")).unwrap();
            assert_eq!(count.2, buckets.last().unwrap().2);
        }
    }
    families
}

fn sources() -> Sources {
    let limit = |number| UserLimit {
        account: AccountRef::user(Uid(number)),
        group: None,
        cgroup: None,
        members: Vec::new(),
        counts: Vec::new(),
        hard_bytes: 1 << 40,
        soft_bytes: 9 << 30,
        used_bytes: 5 << 30,
        dying_bytes: 4096,
        peak_bytes: 6 << 30,
        usage_source: None,
        leased_bytes: 0,
        leaseholders: 0,
        source: "config".into(),
        details: control::oomd::LimitDetails::default(),
    };
    let of_cgroup = UserLimit { cgroup: Some("/a/\"b\"".into()), ..limit(4_294_836_224) };
    let mut reclaim = Histogram::default();
    [7, 70_000, 80_000, 99_000_000].into_iter().for_each(|micros| reclaim.add(micros));
    let kills = |trigger, killer, count| Kills { trigger, killer, count };
    let oomd = Oomd {
        status: oomd::Status {
            version: "1\"2\\3\n".into(),
            protocol: 1,
            pid: 1,
            notifier: "bpf".into(),
            attached: true,
            limited_users: 2,
            limited_cgroups: 1,
            kills: 3,
            given_back_bytes: 17,
            leaseholders: 1,
            refused: 2,
            degraded: vec!["a".into()],
            ..Default::default()
        },
        limits: vec![limit(1000), limit(1001), of_cgroup],
        counters: Counters {
            kills: vec![
                kills(Trigger::Notifier, KilledBy::Kernel, 2),
                kills(Trigger::Stall, KilledBy::Daemon, 1),
            ],
            processes: 9,
            reclaim,
            ..Counters::default()
        },
    };
    let binderd = Binderd {
        status: binderd::Status {
            version: "1".into(),
            protocol: 1,
            pid: 2,
            mount: "/dev/binderfs".into(),
            mapping: "passthrough".into(),
            devices: 3,
            processes: 4,
            transactions: 5,
            touched_pages: 6,
            idle_pages: 7,
            reclaimed_pages: 8,
            owner_quota_bytes: 9,
            largest_owner_bytes: 10,
            rings: 13,
            degraded: Vec::new(),
        },
        counts: Some((vec![("BC_REPLY".into(), 11)], vec![("BR_OK".into(), 12)])),
    };
    Sources { oomd: Ok(oomd), binderd: Ok(binderd) }
}

#[test]
fn all_that_is_counted_is_read_back() {
    let families = parse(&text(&sources(), None));
    let value = |name: &str, labels: &[(&str, &str)]| {
        let family = families.values().flat_map(|family| &family.samples);
        let has = |of: &BTreeMap<String, String>| {
            labels.iter().all(|(label, value)| of.get(*label).is_some_and(|it| it == value))
        };
        let found: Vec<_> = family.filter(|s| s.0 == name && has(&s.1)).collect();
        assert_eq!(found.len(), 1, "{name} {labels:?}: {found:?}");
        found[0].2
    };
    assert_eq!(value("headroom_up", &[("daemon", "oomd")]), 1.0);
    assert_eq!(value("headroom_up", &[("daemon", "binderd")]), 1.0);
    assert_eq!(value("headroom_user_memory_bytes", &[("uid", "1001")]), (5u64 << 30) as f64);
    assert_eq!(value("headroom_user_memory_limit_bytes", &[("uid", "1000")]), (1u64 << 40) as f64);
    let of_cgroup = value("headroom_cgroup_memory_bytes", &[("cgroup", "/a/\"b\"")]);
    assert_eq!(of_cgroup, (5u64 << 30) as f64);
    assert_eq!(families["headroom_user_memory_bytes"].samples.len(), 2);
    let kernel = [("reason", "notifier"), ("killer", "kernel")];
    assert_eq!(value("headroom_kills_total", &kernel), 2.0);
    assert_eq!(value("headroom_kills_total", &[("reason", "stall")]), 1.0);
    assert_eq!(value("headroom_processes_killed_total", &[]), 9.0);
    assert_eq!(value("headroom_reclaim_seconds_bucket", &[("le", "0.1")]), 3.0);
    assert_eq!(value("headroom_reclaim_seconds_sum", &[]), 99.150007);
    assert_eq!(value("headroom_oomd_info", &[("version", "1\"2\\3\n")]), 1.0);
    assert_eq!(value("headroom_binder_buffer_bytes", &[]), 6.0 * 4096.0);
    assert_eq!(value("headroom_binder_rings", &[]), 13.0);
    assert_eq!(value("headroom_binder_commands_total", &[("command", "BC_REPLY")]), 11.0);
    assert_eq!(value("headroom_binder_returns_total", &[("return", "BR_OK")]), 12.0);
}

#[test]
fn an_exempt_user_has_no_limit_to_compare_its_memory_with() {
    let mut sources = sources();
    let Ok(oomd) = &mut sources.oomd else { panic!() };
    oomd.limits[0].details.exempt = true;
    let families = parse(&text(&sources, None));
    let users = |name: &str| families[name].samples.iter().map(|it| it.1["uid"].clone());
    assert!(users("headroom_user_memory_bytes").eq(["1000", "1001"]));
    for name in ["headroom_user_memory_limit_bytes", "headroom_user_memory_soft_limit_bytes"] {
        assert!(users(name).eq(["1001"]), "{name}");
    }
}

#[test]
fn users_have_a_second_label_with_their_names_on_request() {
    let name_of = |uid: Uid| (uid == Uid(1001)).then(|| "al\"ice".to_owned());
    let families = parse(&text(&sources(), Some(name_of)));
    let samples = &families["headroom_user_memory_bytes"].samples;
    let labels: Vec<_> =
        samples.iter().map(|sample| (&sample.1["uid"], sample.1.get("user"))).collect();
    let (without, with) = (&"1000".to_owned(), &"1001".to_owned());
    assert_eq!(labels, [(without, None), (with, Some(&"al\"ice".to_owned()))]);
}

#[test]
fn a_daemon_that_does_not_answer_is_a_comment_and_a_zero() {
    let output = text(&Sources { oomd: Err("gone\naway".into()), ..sources() }, None);
    assert!(output.starts_with("# headroom-oomd: gone away\n"), "{output}");
    let families = parse(&output);
    let up = &families["headroom_up"].samples;
    assert_eq!(up.iter().map(|sample| sample.2).collect::<Vec<_>>(), [0.0, 1.0]);
    assert!(!families.contains_key("headroom_kills_total"));
    assert!(families.contains_key("headroom_binder_opens"));
}
