//! Calls that clients submit by shared memory.

use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicBool, Ordering};

use binder_client::{Client, Errno, Options};
use binder_ring::page::{Outcome, ParcelBytes};
use binder_ring::turn::{Submitted, Turn, Watch};
use binder_ring::{RING_BYTES, RING_FILES, RING_INTERRUPT, VERSION};
use binder_uapi::command::{self, BC_ENTER_LOOPER};
use binder_uapi::ioctl::BINDER_WRITE_READ;
use binder_uapi::{BINDER_TYPE_FD, BinderTransactionData, BinderWriteRead, TF_ONE_WAY};
use e2e::bus::RINGS;
use e2e::random::Random;
use e2e::ring_client::{Ring, TOKEN, attach};
use e2e::{Bus, Mapping, Peer, wait};
use rustix::fs::SealFlags;

use crate::files::{NOBODY, descriptors};
use crate::on_this_bus;
use crate::support::{CALL, expect_echo, manager, open, peer};

const LIBRARY: &str = "libbinder_ring_preload.so";
const PEER: &str = env!("CARGO_BIN_EXE_peer");

/// Runs a test on a bus that accepts rings.
fn on_bus_with_rings(test: fn(&Bus)) {
    let start = || {
        Bus::start_with(Mapping::Passthrough, |command| {
            command.arg("--rings");
        })
    };
    on_this_bus(start(), Mapping::Passthrough, test);
}

/// The calls of the program are carried by rings, from the first call of each thread on.
fn over_rings(command: &mut Command) -> &mut Command {
    let library = test_support::programs::library(LIBRARY);
    command.env("LD_PRELOAD", library).env("BINDER_RING_REQUESTS", "1")
}

/// Starts a peer whose calls are carried by rings.
fn start_over_rings(bus: &Bus, words: &[&str]) -> Peer {
    Peer::start_by(Path::new(PEER), &bus.device("binder"), words, |mut it| {
        over_rings(&mut it).spawn()
    })
}

fn run_over_rings(command: &mut Command) -> Output {
    over_rings(command).output().unwrap()
}

#[test]
fn the_tests_of_calls_pass_over_rings() {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.env(RINGS, "1").args(["--test-threads", "4"]);
    for group in ["calls", "deaths", "blocking", "freezing", "hostile", "identity"] {
        command.arg(format!("{group}::"));
    }
    command.args(["files::passthrough::a_hundred", "files::passthrough::a_file"]);
    command.args(["files::passthrough::a_receiver_whose_table", "stress::passthrough"]);
    let output = run_over_rings(&mut command);
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}");
    assert!(text.contains("stress::passthrough") && text.contains("0 ignored"), "{text}");
}

#[test]
fn the_conformance_cases_have_the_same_transcripts_over_rings() {
    on_bus_with_rings(|bus| {
        let program = test_support::programs::built("conformance", "conformance");
        let command = || {
            let mut command = Command::new(&program);
            command.arg("--device").arg(bus.device("binder"));
            command
        };
        let by_requests = command().output().unwrap();
        let over_rings = run_over_rings(&mut command());
        assert!(by_requests.status.success() && over_rings.status.success());
        let [expected, found] =
            [&by_requests, &over_rings].map(|it| String::from_utf8_lossy(&it.stdout));
        assert!(expected.lines().count() > 5_000, "{expected}");
        // The library passes a pointer of its own where FUSE cannot read the client's.
        let as_by_the_kernel = "P1 BINDER_SET_CONTEXT_MGR at 0x0 = ok\n\
                                P2 sets up\n\
                                P2 BINDER_SET_CONTEXT_MGR = EBUSY";
        assert!(found.contains(as_by_the_kernel), "{found}");
        let expected = expected.replace(
            "P1 BINDER_SET_CONTEXT_MGR at 0x0 = EFAULT\n\
             P2 sets up\n\
             P2 BINDER_SET_CONTEXT_MGR = ok",
            as_by_the_kernel,
        );
        for (number, (expected, found)) in expected.lines().zip(found.lines()).enumerate() {
            assert_eq!(found, expected, "line {number}");
        }
        assert_eq!(found.lines().count(), expected.lines().count());
    });
}

#[test]
fn only_sealed_memory_of_the_opener_is_attached() {
    on_bus_with_rings(|bus| {
        let client = open(bus);
        let before = bus.descriptors();
        let whole = SealFlags::SHRINK;
        let attempts = [
            (RING_BYTES, whole, VERSION + 1, TOKEN),
            (RING_BYTES, whole, VERSION, TOKEN + 1),
            (RING_BYTES, SealFlags::GROW, VERSION, TOKEN),
            (RING_BYTES / 2, whole, VERSION, 0),
            (RING_BYTES * 2, whole, VERSION, TOKEN),
        ];
        for (bytes, seals, version, token) in attempts {
            let attached = Ring::new(bytes, seals).attach_as(&client, version, token);
            assert_eq!(attached, Err(Errno::INVAL), "{bytes} {seals:?} {version} {token}");
        }
        // Any file of the client may be named.
        let file = std::fs::File::open("/dev/zero").unwrap();
        for (number, errno) in [(file.as_raw_fd(), Errno::INVAL), (-1, Errno::BADF)] {
            assert_eq!(attach(&client, VERSION, number, 0).err(), Some(errno));
        }
        let closed = wait::until(wait::PATIENCE, || (bus.descriptors() <= before).then_some(()));
        assert!(closed.is_some(), "{} descriptors, {before} before", bus.descriptors());
        let mut ring = Ring::new(RING_BYTES, whole);
        ring.attach(&client).unwrap();
        assert_ne!(ring.page().words.watch(), Watch::Ended);
        // A second ring replaces the first.
        let mut second = Ring::new(RING_BYTES, whole);
        second.attach(&client).unwrap();
        assert_eq!(ring.page().words.watch(), Watch::Ended);
        drop(client);
        let ended = || (second.page().words.watch() == Watch::Ended).then_some(());
        assert!(wait::until(wait::PATIENCE, ended).is_some(), "the close does not end it");
    });
}

#[test]
fn a_bus_without_rings_refuses_them() {
    let bus = Bus::start_with(Mapping::Passthrough, |_| ());
    on_this_bus(bus, Mapping::Passthrough, |bus| {
        let client = open(bus);
        let attached = Ring::new(RING_BYTES, SealFlags::SHRINK).attach(&client);
        // The tests of this file may run over rings themselves.
        let accepts = std::env::var_os(RINGS).is_some();
        assert_eq!(attached.is_ok(), accepts);
    });
}

#[test]
fn a_client_that_writes_anything_to_its_ring_harms_itself_only() {
    on_bus_with_rings(|bus| {
        let seed = Random::fresh_seed();
        println!("seed {seed}");
        let mut random = Random::new(seed);
        let _manager = manager(bus);
        let innocent = open(bus);
        let mut session = binder_client::Session::new(&innocent);
        let client = Client::open(bus.device("vndbinder"), &Options::default()).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                let mut ring = Ring::new(RING_BYTES, SealFlags::SHRINK);
                for round in 0..2_000 {
                    if ring.page().words.watch() != Watch::On {
                        let _ = ring.attach(&client);
                    }
                    let words = ring.words();
                    for _ in 0..40 {
                        let at = match random.below(3) {
                            0 => random.below(RING_BYTES as u64 / 4),
                            _ => random.below(64),
                        };
                        let value = match random.below(4) {
                            0 => random.below(1 << 32) as u32,
                            1 => BINDER_WRITE_READ,
                            _ => random.below(300) as u32,
                        };
                        if at != 4 && at != 5 {
                            // SAFETY: within the mapping, which nothing of ours refers to.
                            unsafe { words.add(at as usize).write_volatile(value) };
                        }
                    }
                    let doorbell = ring.doorbell().word().cast_mut().cast::<u32>();
                    // SAFETY: as above.
                    unsafe { doorbell.write_volatile(random.below(1 << 32) as u32) };
                    ring.take_wake_ups();
                    let _ = ring.submit();
                    let number = 0_u32;
                    let also = [RING_INTERRUPT, RING_FILES][round % 2];
                    // SAFETY: the argument is a live value.
                    let _ = unsafe { client.ioctl_raw(also, &raw const number as usize) };
                }
            });
            for _ in 0..300 {
                expect_echo(&mut session, 0, b"innocent");
            }
        });
        expect_echo(&mut session, 0, b"afterwards");
    });
}

/// A thread that has submitted a call runs: its number may mean another program.
#[test]
fn a_call_that_needs_more_than_the_ring_is_left_to_a_request() {
    on_bus_with_rings(|bus| {
        let _service = peer(bus, &["files", NOBODY]);
        let client = open(bus);
        let mut ring = Ring::new(RING_BYTES, SealFlags::SHRINK);
        let data = [0_u8; 64];
        let mut file = [0_u8; 24];
        file[..4].copy_from_slice(&BINDER_TYPE_FD.to_ne_bytes());
        let offset = [0_u8; 8];
        // A file, and bytes that are not in the ring.
        for (bytes, offsets) in [(&file[..], &offset[..]), (&data, &[])] {
            let parcel = BinderTransactionData {
                code: CALL,
                flags: TF_ONE_WAY,
                buffer: bytes.as_ptr() as u64,
                data_size: bytes.len() as u64,
                offsets: offsets.as_ptr() as u64,
                offsets_size: offsets.len() as u64,
                ..BinderTransactionData::default()
            };
            let mut commands = BC_ENTER_LOOPER.to_ne_bytes().to_vec();
            command::Command::Transaction { data: parcel, buffers_size: None }
                .write_to(&mut commands);
            let submit = || {
                if ring.page().words.watch() != Watch::On {
                    ring.attach(&client).ok()?;
                }
                let bwr = BinderWriteRead {
                    write_size: commands.len() as u64,
                    write_buffer: commands.as_ptr() as u64,
                    ..BinderWriteRead::default()
                };
                let at = bytes.as_ptr() as u64;
                let offsets_at = offsets.as_ptr() as u64;
                let parcel = ParcelBytes { at, bytes, offsets_at, offsets };
                let parcel = (!offsets.is_empty()).then_some(parcel);
                assert!(ring.page().write_call(bwr, &commands, parcel, &[]));
                match ring.submit() {
                    Submitted::Withdrawn(_) => return None,
                    Submitted::Seen | Submitted::WakeDaemon => ring.wake(),
                }
                wait::until(wait::PATIENCE, || {
                    (ring.page().words.turn() == Turn::Done).then_some(())
                })
            };
            assert!(
                wait::until(wait::PATIENCE, submit).is_some(),
                "{:?}",
                ring.page().words.watch()
            );
            let result = ring.page().read_result();
            assert_eq!(result.outcome, Outcome::Unfinished, "{result:?}");
            assert_eq!(result.argument.write_consumed, 4, "the command in front of it was run");
        }
    });
}

#[test]
fn a_call_that_is_not_taken_can_be_withdrawn() {
    on_bus_with_rings(|bus| {
        let client = open(bus);
        let mut ring = Ring::new(RING_BYTES, SealFlags::SHRINK);
        ring.attach(&client).unwrap();
        // A thread that does not call is not watched for long.
        let off = || (ring.page().words.watch() == Watch::Off).then_some(());
        assert!(wait::until(wait::PATIENCE, off).is_some(), "{:?}", ring.page().words.watch());
        let submitted = ring.submit();
        assert_eq!(submitted, binder_ring::turn::Submitted::Withdrawn(Watch::Off));
        assert_eq!(ring.page().words.turn(), Turn::Idle);
    });
}

/// The receiver fetches files, and submits the rest of its call to a ring that is not watched any
/// more.
#[test]
fn files_arrive_while_the_daemon_stops_watching_rings() {
    on_bus_with_rings(|bus| {
        let service = start_over_rings(bus, &["files", NOBODY]);
        service.expect("ready");
        let before = descriptors(service.pid());
        let waker = Client::open(bus.device("vndbinder"), &Options::default()).unwrap();
        let is_ended = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut ring = Ring::new(RING_BYTES, SealFlags::SHRINK);
                ring.attach(&waker).unwrap();
                while !is_ended.load(Ordering::Relaxed) {
                    if ring.page().words.watch() == Watch::Off {
                        ring.attach(&waker).unwrap();
                    }
                    ring.wake();
                }
            });
            let _end = Ends(&is_ended);
            for _ in 0..60 {
                start_over_rings(bus, &["files-cost", "30"]).wait_for_success();
            }
        });
        assert_eq!(descriptors(service.pid()), before, "the service's table has grown");
    });
}

/// Who takes the wake-ups of its own owner's doorbell delays that owner's calls, and loses none.
#[test]
fn a_doorbell_is_of_one_owner() {
    on_bus_with_rings(|bus| {
        let service = start_over_rings(bus, &["files", NOBODY]);
        service.expect("ready");
        let take = |words: &[&str]| {
            let thief = Peer::start_on(bus, Path::new(PEER), "binder", words);
            let doorbell = thief.line().expect("it names the doorbell");
            start_over_rings(bus, &["files-cost", "30"]).wait_for_success();
            (thief, doorbell)
        };
        let (_first, of_root) = take(&["doorbell"]);
        let (_second, also_of_root) = take(&["doorbell"]);
        let (_third, of_nobody) = take(&["as-nobody", "doorbell"]);
        assert_eq!(of_root, also_of_root);
        assert_ne!(of_root, of_nobody);
    });
}

/// The client in C, built with these flags in the folder.
fn hazards(folder: &Path, flags: &[&str]) -> PathBuf {
    let program = folder.join("ring_hazards");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/suite/ring_hazards.c");
    let mut compiler = Command::new("cc");
    compiler.args(["-Wall", "-Wextra", "-Werror", "-O1", "-g", "-pthread", "-o"]).arg(&program);
    let built = compiler.arg(source).args(flags).arg("-ldl").output().unwrap();
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    program
}

fn expect_success(command: &mut Command) {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {output:?}");
}

#[test]
fn programs_that_do_unusual_things_are_served() {
    on_bus_with_rings(|bus| {
        let folder = tempfile::tempdir().unwrap();
        let program = hazards(folder.path(), &[]);
        let _manager = manager(bus);
        let other = bus.device("hwbinder");
        for action in ["plain", "descriptors", "reopened", "vfork", "fork", "clone", "cancelled"] {
            let mut command = Command::new(&program);
            command.arg(bus.device("binder")).arg(action).arg(&other);
            expect_success(over_rings(&mut command));
        }
        // The library stays when the program unloads it.
        let library = test_support::programs::library(LIBRARY);
        let mut command = Command::new(&program);
        command.arg(bus.device("binder")).arg("unloaded").arg(library);
        expect_success(command.env("BINDER_RING_REQUESTS", "1"));
    });
}

#[test]
fn other_preloaded_libraries_and_sanitizers_do_not_disturb() {
    on_bus_with_rings(|bus| {
        let runtime = |name: &str| {
            let found =
                Command::new("cc").arg(format!("-print-file-name={name}")).output().unwrap();
            String::from_utf8(found.stdout).unwrap().trim().to_owned()
        };
        let tmalloc = test_support::programs::library("libtmalloc_preload.so");
        let cases = [
            ("-fsanitize=address,undefined", runtime("libasan.so")),
            ("-fsanitize=thread", runtime("libtsan.so")),
            ("-O2", tmalloc.display().to_string()),
        ];
        let _manager = manager(bus);
        for (flag, library) in &cases {
            let folder = tempfile::tempdir().unwrap();
            let program = hazards(folder.path(), &[flag]);
            let mut command = Command::new("setarch");
            // The thread sanitizer does not support all layouts of the address space.
            command.arg("--addr-no-randomize").arg(program).arg(bus.device("binder")).arg("plain");
            let ours = test_support::programs::library(LIBRARY);
            command.env("LD_PRELOAD", format!("{library} {}", ours.display()));
            expect_success(command.env("BINDER_RING_REQUESTS", "1"));
        }
    });
}

/// Says that the test has ended, also if it fails.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Others are served, and nothing is left of a client that leaves its ring in any state.
#[test]
fn a_ring_that_is_left_in_any_state_harms_nobody() {
    on_bus_with_rings(|bus| {
        let _manager = manager(bus);
        let innocent = open(bus);
        let mut session = binder_client::Session::new(&innocent);
        let program = Path::new(PEER);
        // The daemon keeps what it opens for the first ring.
        Peer::start_on(bus, program, "binder", &["ring", "done", "corrupts"]).wait_for_success();
        expect_echo(&mut session, 0, b"before");
        let before = bus.descriptors();
        for state in ["idle", "submitted", "taken", "done"] {
            for end in ["dies", "stops", "corrupts"] {
                let mut peer = Peer::start_on(bus, program, "binder", &["ring", state, end]);
                peer.expect("ready");
                if end == "stops" {
                    let is_stopped = || (wait::state(peer.pid()) == Some('T')).then_some(());
                    assert!(wait::until(wait::PATIENCE, is_stopped).is_some());
                    assert!(bus.status().unwrap().rings > 0, "{state}");
                }
                for _ in 0..20 {
                    expect_echo(&mut session, 0, b"meanwhile");
                }
                match end {
                    "corrupts" => peer.wait_for_success(),
                    _ => peer.kill(),
                }
            }
        }
        let closed = wait::until(wait::PATIENCE, || (bus.descriptors() <= before).then_some(()));
        assert!(closed.is_some(), "{} descriptors, {before} before", bus.descriptors());
        assert_eq!(bus.status().unwrap().rings, 0);
        expect_echo(&mut session, 0, b"afterwards");
    });
}
