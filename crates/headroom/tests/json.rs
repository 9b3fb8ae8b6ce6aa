//! The version in the output of each command that has `--json` output.

mod support;

use std::process::{Child, Command};

use control::oomd::{Explanation, Reloaded, Reply, Request};
use control::{binderd, oomd};
use serde_json::Value;
use support::help::{all_commands, commands};
use support::{FakeDaemon, headroom, run};

/// The version of docs/stability.md.
const VERSION: u64 = 1;

/// Commands with one document, or with a stream that ends by itself. `DIR` is the test's folder and
/// `PID` a process.
const DOCUMENTS: &[&[&str]] = &[
    &["limit", "set", "root", "1G"],
    &["limit", "get", "root"],
    &["limit", "list"],
    &["limit", "clear", "root"],
    &["config", "reload"],
    &["config", "import", "earlyoom", "-m 10"],
    &["run-oom-killer"],
    &["status"],
    &["metrics"],
    &["why"],
    &["explain"],
    &["top", "--once"],
    &["kill", "PID"],
    &["binder", "ls"],
    &["binder", "reclaim"],
    &["binder", "upgrade"],
    &["binder", "stat"],
    &["binder", "stat", "0.1", "2"],
    &["binder", "trace", "--seconds", "0.2"],
    &["doctor"],
];

/// Commands that print no document of ours, and documents that other tests check for they need
/// privileges, other programs or time: all documents are printed by one function.
const OTHERS: &[&str] = &[
    "up",
    "run",
    "notify",
    "reserve",
    "binder attach",
    "binder service-manager",
    "completions",
    "oom observe",
    "config check",
];
const PRIVILEGED: &[&str] =
    &["oom detach", "container cdi", "container remove", "container waydroid"];

fn fake_oomd(request: Request) -> Reply {
    match request {
        Request::Status => Reply::Status(oomd::Status {
            version: "0.1.0".into(),
            protocol: control::PROTOCOL_VERSION,
            pid: 1,
            notifier: "proc".into(),
            ..Default::default()
        }),
        Request::SetLimit { .. } | Request::ClearLimit { .. } => Reply::Done,
        Request::ListLimits => Reply::Limits { limits: Vec::new() },
        Request::RunOomKiller { .. } => Reply::OomKillerRan { kills: Vec::new() },
        Request::Why { .. } => Reply::Why { records: vec![test_support::decision(1)] },
        Request::Reload => Reply::Reloaded(Reloaded::default()),
        Request::Explain { .. } => Reply::Explained(Explanation {
            state: "below its limit".into(),
            victim: None,
            others: Vec::new(),
            runner_up: None,
            considered: 0,
            rule: "none".into(),
        }),
        other => Reply::Error { message: format!("{other:?}") },
    }
}

fn fake_binderd(request: binderd::Request) -> binderd::Reply {
    let status = binderd::Status {
        version: "0.1.0".into(),
        protocol: control::PROTOCOL_VERSION,
        pid: 1,
        mount: "/dev/binderfs".into(),
        mapping: "passthrough".into(),
        devices: 1,
        processes: 0,
        transactions: 0,
        touched_pages: 0,
        idle_pages: 0,
        reclaimed_pages: 0,
        owner_quota_bytes: 1,
        largest_owner_bytes: 0,
        rings: 0,
        degraded: Vec::new(),
    };
    match request {
        binderd::Request::Status => binderd::Reply::Status(status),
        binderd::Request::Ls => binderd::Reply::Ls { devices: Vec::new() },
        binderd::Request::Reclaim { .. } => {
            binderd::Reply::Reclaimed(binderd::Reclaimed::default())
        }
        binderd::Request::Upgrade { .. } => {
            let (from, to) = ("0.1.0".to_owned(), "0.1.0".to_owned());
            binderd::Reply::Upgraded(binderd::Upgraded { from, to, processes: 1, pause_us: 1 })
        }
        binderd::Request::Stat => binderd::Reply::Stat(binderd::Stat {
            commands: Vec::new(),
            returns: Vec::new(),
            status,
        }),
        binderd::Request::Trace { from, .. } => {
            let calls = if from.is_some() { vec![call()] } else { Vec::new() };
            binderd::Reply::Trace { calls, next: 1, lost: 0 }
        }
    }
}

fn call() -> binderd::Call {
    binderd::Call {
        sent_us: 1,
        device: "binder".into(),
        oneway: true,
        from: binderd::CallEnd { pid: 1, tid: 1, comm: "a".into() },
        to: None,
        handle: 1,
        node: 0,
        code: 1,
        flags: 0,
        bytes: 0,
        objects: 0,
        reply_bytes: None,
        waited_ns: None,
        took_ns: 1,
        outcome: binderd::Outcome::Dead,
        errno: 0,
        refusal: String::new(),
    }
}

/// A process for `kill`, ended on drop.
struct Victim(Child);

impl Victim {
    fn start() -> Self {
        Self(Command::new("sleep").arg("60").spawn().unwrap())
    }
}

impl Drop for Victim {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn every_json_document_has_the_version() {
    let dir = tempfile::tempdir().unwrap();
    let _oomd = FakeDaemon::start(dir.path().join("oomd.sock"), fake_oomd);
    let _binderd = FakeDaemon::start(dir.path().join("binderd.sock"), fake_binderd);
    let victim = Victim::start();
    let pid = victim.0.id().to_string();
    for words in DOCUMENTS {
        let arguments = words.iter().map(|word| word.replace("PID", &pid));
        let (_, stdout, stderr) = run(headroom(dir.path()).arg("--json").args(arguments));
        let documents: Vec<Value> = serde_json::Deserializer::from_str(&stdout)
            .into_iter()
            .collect::<Result<_, _>>()
            .unwrap_or_else(|error| panic!("{words:?}: {error}: {stdout}{stderr}"));
        assert!(!documents.is_empty(), "{words:?}: {stderr}");
        for document in documents {
            assert_eq!(document["version"], VERSION, "{words:?}: {document}");
        }
    }
}

#[test]
fn every_command_is_known_to_the_test_of_the_version() {
    let tested = |path: &str| {
        DOCUMENTS.iter().any(|words| words.join(" ").starts_with(path))
            || OTHERS.contains(&path)
            || PRIVILEGED.contains(&path)
    };
    let all = all_commands();
    let missing: Vec<String> = all
        .iter()
        .filter(|(_, help)| commands(help).is_empty())
        .map(|(path, _)| path.join(" "))
        .filter(|path| !tested(path))
        .collect();
    assert!(missing.is_empty(), "{missing:?}");
}
