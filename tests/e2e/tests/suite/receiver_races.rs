//! Receivers of files that execute another program, exit, fork, are stopped or change their uid
//! while they get them.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use binder_client::{ClientError, Parcel, Payload, Session};
use control::binderd::{Call, Outcome, Reply, Request, TraceFilter};
use e2e::random::Random;
use e2e::{Bus, wait};

use crate::files::{NOBODY, send_pipes};
use crate::support::{CALL, open, peer};
use crate::trace::read_on;

crate::both_mappings! {
    receivers_that_are_disturbed_get_their_files_or_not_and_nothing_else_changes
}

/// Number of deliveries; by default few.
const DELIVERIES: &str = "HEADROOM_FD_RACES";
const DEFAULT_DELIVERIES: u64 = 200;
/// Files of a message: each one is several steps of the delivery.
const FILES: usize = 16;
/// Ends the receiver; see `receiver_races.c`.
const STOP: u32 = 99;
/// Longest time from the message to the disturbance, microseconds: most deliveries are over then.
const MAX_DELAY_US: u64 = 1500;

/// What happens to a receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Disturbance {
    Execute,
    ExecuteSetuid,
    Exit,
    Fork,
    Stop,
    ChangeUid,
}

impl Disturbance {
    const ALL: [Self; 6] =
        [Self::Execute, Self::ExecuteSetuid, Self::Exit, Self::Fork, Self::Stop, Self::ChangeUid];

    fn action(self) -> &'static str {
        match self {
            Self::Execute | Self::ExecuteSetuid => "execute",
            Self::Exit => "exit",
            Self::Fork => "fork",
            Self::Stop => "stop",
            Self::ChangeUid => "uid",
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::ExecuteSetuid => "setuid",
            other => other.action(),
        }
    }

    /// Whether the receiver goes on reading.
    fn goes_on(self) -> bool {
        matches!(self, Self::Fork | Self::Stop | Self::ChangeUid)
    }
}

/// The receiver's program, and a copy that runs as root.
struct Programs {
    folder: tempfile::TempDir,
}

impl Programs {
    fn build() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let everybody = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(folder.path(), everybody).unwrap();
        let programs = Self { folder };
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/suite/receiver_races.c");
        let mut compiler = Command::new("cc");
        // At fixed addresses: those of the receiver mean something in the program that follows.
        compiler.args(["-Wall", "-Wextra", "-Werror", "-O1", "-no-pie", "-fno-pie", "-pthread"]);
        let built = compiler.arg("-o").arg(programs.plain()).arg(source).output().unwrap();
        assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
        std::fs::copy(programs.plain(), programs.setuid()).unwrap();
        let setuid = std::fs::Permissions::from_mode(0o4755);
        std::fs::set_permissions(programs.setuid(), setuid).unwrap();
        programs
    }

    fn plain(&self) -> PathBuf {
        self.folder.path().join("receiver")
    }

    fn setuid(&self) -> PathBuf {
        self.folder.path().join("setuid")
    }
}

/// Killed when dropped.
struct Receiver(Child);

impl Receiver {
    fn start(bus: &Bus, programs: &Programs, what: Disturbance, delay_us: u64) -> Self {
        let victim = match what {
            Disturbance::ExecuteSetuid => programs.setuid(),
            _ => programs.plain(),
        };
        let mut command = Command::new(programs.plain());
        command.arg(bus.device("binder")).args([what.action(), &delay_us.to_string()]).arg(victim);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut receiver = Self(command.spawn().unwrap());
        let mut line = String::new();
        let output = receiver.0.stdout.take().unwrap();
        BufReader::new(output).read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n");
        receiver
    }

    fn disturb(&mut self) {
        self.0.stdin.as_mut().unwrap().write_all(b"!").unwrap();
    }

    /// Fails unless it exits with code 0.
    fn expect_end(&mut self, what: Disturbance, round: u64) {
        let pid = rustix::process::Pid::from_child(&self.0);
        let status = wait::until(wait::PATIENCE, || {
            if what == Disturbance::Stop {
                // It may stop after an earlier signal.
                let _ = rustix::process::kill_process(pid, rustix::process::Signal::CONT);
            }
            self.0.try_wait().unwrap()
        });
        let status = status.unwrap_or_else(|| {
            panic!("round {round}, {what:?}: it hangs: {}", wait::describe(self.0.id()))
        });
        assert!(status.success(), "round {round}, {what:?}: {status}");
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// How long deliveries took: from the message until the receiver had its files, or the sender's
/// message was refused.
#[derive(Default)]
struct Times(BTreeMap<&'static str, (Vec<u64>, usize)>);

impl Times {
    fn add(&mut self, what: Disturbance, calls: &[Call]) {
        for call in calls {
            let (times, refused) = self.0.entry(what.name()).or_default();
            if call.outcome != Outcome::Done {
                *refused += 1;
            }
            times.push(call.waited_ns.unwrap_or(call.took_ns));
        }
    }

    fn table(&mut self) -> String {
        let mut text = String::from("disturbance  deliveries  not done  ms: median  p99  most\n");
        for (what, (times, refused)) in &mut self.0 {
            times.sort_unstable();
            let at = |part: usize| times[(times.len() - 1) * part / 100] as f64 / 1e6;
            let _ = writeln!(
                text,
                "{what:11}  {:10}  {refused:8}  {:10.2}  {:.2}  {:.2}",
                times.len(),
                at(50),
                at(99),
                at(100)
            );
        }
        text
    }
}

fn receivers_that_are_disturbed_get_their_files_or_not_and_nothing_else_changes(bus: &Bus) {
    let count = std::env::var(DELIVERIES).map_or(DEFAULT_DELIVERIES, |text| text.parse().unwrap());
    let seed = Random::fresh_seed();
    let mut random = Random::new(seed);
    let programs = Programs::build();
    let file = std::fs::File::open("/dev/null").unwrap();
    let client = open(bus);
    let mut session = Session::new(&client);
    let mut times = Times::default();
    let (_, mut from, _) = read_on(bus, 0, &TraceFilter::default());
    for round in 0..count {
        let what = Disturbance::ALL[(round % Disturbance::ALL.len() as u64) as usize];
        // Short times are more likely: the first steps of a delivery take some microseconds each.
        let most = random.below(MAX_DELAY_US);
        let delay_us = random.below(most);
        let mut receiver = Receiver::start(bus, &programs, what, delay_us);
        std::thread::sleep(Duration::from_micros(random.below(2000)));
        let parcel = (0..FILES).fold(Parcel::new(), |parcel, _| parcel.fd(file.as_fd()));
        receiver.disturb();
        match session.oneway(0, CALL, parcel.payload()) {
            Ok(_) | Err(ClientError::DeadReply | ClientError::FailedReply) => {}
            Err(error) => panic!("seed {seed}, round {round}, {what:?}: {error}"),
        }
        if what.goes_on() {
            session.oneway(0, STOP, Payload::bytes(&[])).unwrap();
        }
        receiver.expect_end(what, round);
        let calls = TraceFilter { code: Some(CALL), ..TraceFilter::default() };
        let (calls, next, _) = read_on(bus, from, &calls);
        from = next;
        times.add(what, &calls);
    }
    println!("seed {seed}: {count} deliveries\n{}", times.table());
    drop(session);
    // Each worker is free, and serves others.
    let _service = peer(bus, &["files", NOBODY]);
    let mut session = Session::new(&client);
    send_pipes(&mut session, 3).unwrap();
    let upgraded = wait::until(wait::PATIENCE, || {
        let reply = bus.request(Request::Upgrade { program: None }).unwrap();
        matches!(reply, Reply::Upgraded(_)).then_some(())
    });
    assert!(upgraded.is_some(), "a worker is lost: {}", bus.log());
    send_pipes(&mut session, 3).unwrap();
}
