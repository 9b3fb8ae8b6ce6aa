//! `headroom why --follow`, with a simulated daemon.

mod support;

use std::io::{BufRead, BufReader};
use std::process::Stdio;
use std::sync::mpsc::channel;
use std::time::Duration;

use control::oomd::{
    AccountRef, Event, LimitLevel, Outcome, Reply, Request, SoftLimitWarning, Why,
};
use control::{Server, Uid};
use support::headroom;
use test_support::decision;

fn why(id: u64, outcome: Outcome) -> Why {
    Why {
        account: AccountRef::user(Uid(4_000_000_001)),
        killer: Some(control::oomd::KilledBy::Daemon),
        outcome,
        ..decision(id)
    }
}

fn back() -> Outcome {
    Outcome::Reclaimed { bytes_back: 5, micros: 6, mreleased: false }
}

#[test]
fn a_desktop_gets_notices() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = Server::bind(&dir.path().join("oomd.sock"), 0o600).unwrap();
    // Replaces the real `notify-send`: it records its arguments.
    let bin = dir.path().join("bin");
    std::fs::create_dir(&bin).unwrap();
    let log = dir.path().join("log");
    let script = format!("#!/bin/sh\necho \"$4|$5\" >> {}\n", log.display());
    std::fs::write(bin.join("notify-send"), script).unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(bin.join("notify-send"), mode).unwrap();
    let mut start = |path: &str| {
        let mut command = headroom(dir.path());
        command.arg("notify").env("PATH", path).stdout(Stdio::piped());
        let child = command.spawn().unwrap();
        let begun = std::time::Instant::now();
        while !server.has_subscribers() {
            assert!(begun.elapsed() < Duration::from_secs(20), "it does not subscribe");
            let answer = |_, request: Result<Request, String>| match request {
                Ok(Request::Subscribe) => Reply::Subscribed,
                request => panic!("{request:?}"),
            };
            server.serve_subscribers(answer, |reply| matches!(reply, Reply::Subscribed));
            std::thread::sleep(Duration::from_millis(2));
        }
        let mut why = why(1, back());
        why.victim = Some(control::oomd::Candidate {
            uid: None,
            pid: 77,
            comm: "a<b>".into(),
            rss_bytes: 1,
            swap_bytes: 0,
            unmapped_bytes: 0,
            grown_bytes: 0,
            details: None,
        });
        server.publish(&Reply::Event(Event::Ended { why: Box::new(why) }), |_| true);
        child
    };
    let mut child = start(&format!("{}:/bin:/usr/bin", bin.display()));
    let begun = std::time::Instant::now();
    let text = loop {
        match std::fs::read_to_string(&log) {
            Ok(text) if text.ends_with('\n') => break text,
            _ => assert!(begun.elapsed() < Duration::from_secs(20), "no notification"),
        }
        std::thread::sleep(Duration::from_millis(2));
    };
    child.kill().unwrap();
    child.wait().unwrap();
    let expected =
        "A process was killed|killed a&lt;b> (pid 77) of user 4000000001: 5 B back in 6 µs\n";
    assert_eq!(text, expected);
}

#[test]
fn past_events_are_listed_oldest_first_and_new_ones_once_they_end() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = Server::bind(&dir.path().join("oomd.sock"), 0o600).unwrap();
    let (publish, news) = channel::<Event>();
    let (stop, stopped) = channel::<()>();
    let daemon = std::thread::spawn(move || {
        while stopped.try_recv().is_err() {
            let answer = |_, request| match request {
                Ok(Request::Subscribe) => Reply::Subscribed,
                // Newest first; the outcome of the third one follows as an event.
                Ok(Request::Why { .. }) => Reply::Why {
                    records: vec![why(3, Outcome::Dying), why(2, back()), why(1, back())],
                },
                request => panic!("{request:?}"),
            };
            server.serve_subscribers(answer, |reply| matches!(reply, Reply::Subscribed));
            if server.has_subscribers() {
                news.try_iter().for_each(|event| server.publish(&Reply::Event(event), |_| true));
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    });
    for (event, outcome) in [("decided", Outcome::Dying), ("ended", back())] {
        let why = Box::new(why(3, outcome));
        let event = if event == "ended" { Event::Ended { why } } else { Event::Decided { why } };
        publish.send(event).unwrap();
    }
    publish.send(Event::Ended { why: Box::new(why(1, back())) }).unwrap();
    publish
        .send(Event::SoftLimitCrossed(SoftLimitWarning {
            account: AccountRef::user(Uid(4_000_000_001)),
            group: None,
            cgroup: None,
            members: Vec::new(),
            level: LimitLevel::Soft,
            used_bytes: 1,
            hard_bytes: 2,
            grace_s: None,
        }))
        .unwrap();
    let mut command = headroom(dir.path());
    let mut child = command.args(["why", "-f", "--json"]).stdout(Stdio::piped()).spawn().unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let events: Vec<serde_json::Value> =
        lines.take(4).map(|line| serde_json::from_str(&line.unwrap()).unwrap()).collect();
    stop.send(()).unwrap();
    daemon.join().unwrap();
    // The daemon has exited: the command reports that and exits.
    assert_eq!(child.wait().unwrap().code(), Some(1));
    let ids: Vec<_> = events[..3].iter().map(|event| event["why"]["id"].as_u64()).collect();
    assert_eq!(ids, [Some(1), Some(2), Some(3)]);
    assert_eq!(events[3]["event"], "soft-limit-crossed");
}
