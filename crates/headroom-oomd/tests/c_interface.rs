//! tmalloc from a C program: its header, its library, and the five calls of the original interface.

mod support;

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use control::Uid;
use support::daemon::Daemon;
use support::{MIB, compile, privileged};

const UID: Uid = Uid(63_150);
/// Limit that the program sets for itself, bytes.
const LOWERED: u64 = 16 * MIB;

/// Compiles the program against the header and the static library that this test was built with.
fn build(program: &Path) {
    let us = std::env::current_exe().unwrap();
    let library = us.parent().unwrap().join("libtmalloc.a");
    assert!(library.is_file(), "{} is missing: build the package tmalloc first", library.display());
    let header = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tmalloc/include");
    let words = ["-std=c11", "-D_DEFAULT_SOURCE", "-lpthread", "-ldl", "-lm", "-I"];
    let arguments = [library.as_path()].into_iter().chain(words.map(Path::new)).chain([&*header]);
    compile("c_client.c", program, &Vec::from_iter(arguments));
}

#[test]
fn a_c_program_reserves_allocates_and_is_refused_in_time() {
    if !privileged() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    std::fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o755)).unwrap();
    let program = dir.path().join("c_client");
    build(&program);
    let daemon = Daemon::start("", &[]);
    daemon.set_limit(UID, 32 * MIB);
    let output = Command::new(&program)
        .env("HEADROOM_LEASE_SOCKET", daemon.lease_socket())
        .env("HEADROOM_OOMD_SOCKET", daemon.socket())
        .uid(UID.0)
        .current_dir("/")
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let stdout = String::from_utf8(output.stdout).unwrap();
    let found: BTreeMap<&str, i64> = stdout
        .lines()
        .map(|line| line.rsplit_once(' ').unwrap())
        .map(|(what, number)| (what, number.parse().unwrap()))
        .collect();
    let expected = [
        ("headroom", 1),
        ("reserved", 1),
        ("released", 0),
        ("released twice", 1),
        ("committed", 0),
        ("too much", 1),
        ("zeroed", 1),
        ("kept", 1),
        ("transaction reserved", 0),
        ("transaction committed", 0),
        ("limit lowered", 0),
        ("limits seen", 1),
        ("limit", LOWERED as i64),
        ("another's limit", 1),
        ("refused", 1),
        ("granted again", 1),
    ];
    let stderr = String::from_utf8_lossy(&output.stderr);
    for (what, number) in expected {
        assert_eq!(found.get(what), Some(&number), "{what}: {stdout}{stderr}");
    }
    assert!(output.status.success(), "{}: {stdout}{stderr}", output.status);
    let bytes = found["bytes"] as u64;
    // The rest is the program itself, and larger blocks that it freed before.
    assert!((LOWERED / 100 * 80..=LOWERED).contains(&bytes), "{bytes} bytes were granted");
    let limit = daemon.limit(UID).unwrap();
    assert!(limit.peak_bytes <= limit.hard_bytes, "{limit:?}");
    assert_eq!(daemon.status().kills, 0);
}
