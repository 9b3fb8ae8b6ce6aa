//! Compares our driver with the transcript of the kernel's own.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const HERE: &str = env!("CARGO_MANIFEST_DIR");
const SUITE: &str = env!("CARGO_BIN_EXE_conformance");
const START_PATIENCE: Duration = Duration::from_secs(20);
const END_PATIENCE: Duration = Duration::from_secs(20);

/// A running daemon; stopped and waited for on drop, and its mount is removed if it does not do
/// that.
struct Daemon {
    child: Child,
    mount: PathBuf,
}

impl Daemon {
    fn start(directory: &Path) -> Self {
        let binary = binary("headroom-binderd");
        let mount = directory.join("binderfs");
        fs::create_dir(&mount).expect("a directory for the mount");
        let log = File::create(directory.join("binderd.log")).expect("a log");
        let child = Command::new(&binary)
            .arg("--mount")
            .arg(&mount)
            .arg("--socket")
            .arg(directory.join("binderd.sock"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap_or_else(|error| panic!("{}: cannot start: {error}", binary.display()));
        let mut daemon = Self { child, mount };
        daemon.wait_until_ready(directory);
        daemon
    }

    fn wait_until_ready(&mut self, directory: &Path) {
        let until = Instant::now() + START_PATIENCE;
        let log = || fs::read_to_string(directory.join("binderd.log")).unwrap_or_default();
        while !self.mount.join("binder").exists() {
            let ended = self.child.try_wait().expect("a status");
            assert!(ended.is_none(), "headroom-binderd ended ({ended:?}):\n{}", log());
            assert!(Instant::now() < until, "headroom-binderd does not become ready:\n{}", log());
            std::thread::sleep(Duration::from_millis(10));
        }
        let socket = directory.join("binderd.sock");
        assert!(socket.exists(), "no socket:\n{}", log());
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let pid = rustix::process::Pid::from_child(&self.child);
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        let until = Instant::now() + END_PATIENCE;
        while matches!(self.child.try_wait(), Ok(None)) {
            if Instant::now() > until {
                let _ = self.child.kill();
                let _ = self.child.wait();
                break;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        // Fails if the daemon has removed its mount.
        let _ = rustix::mount::unmount(&self.mount, rustix::mount::UnmountFlags::DETACH);
    }
}

/// A program of this workspace: from `HEADROOM_BIN_DIR`, or from cargo's target directory.
fn binary(name: &str) -> PathBuf {
    let beside = Path::new(SUITE).parent().expect("a directory").to_owned();
    let directory = std::env::var_os("HEADROOM_BIN_DIR").map_or(beside, PathBuf::from);
    let path = directory.join(name);
    assert!(
        path.exists(),
        "{} is missing: build it (cargo build --bin {name}) or set HEADROOM_BIN_DIR",
        path.display()
    );
    path
}

/// Why the suite cannot run on this machine; `None` if it can.
fn missing() -> Option<&'static str> {
    if !rustix::process::geteuid().is_root() {
        return Some("needs root to mount and to become another user");
    }
    (!Path::new("/dev/fuse").exists()).then_some("needs /dev/fuse")
}

fn suite(arguments: &[&std::ffi::OsStr]) -> std::process::Output {
    run(Path::new(SUITE), arguments)
}

fn run(program: &Path, arguments: &[&std::ffi::OsStr]) -> std::process::Output {
    Command::new(program).args(arguments).stdin(Stdio::null()).output().expect("the suite starts")
}

/// Targets of static programs with musl for this machine, and for 32-bit programs on it.
const MUSL: &str = if cfg!(target_arch = "aarch64") {
    "aarch64-unknown-linux-musl"
} else {
    "x86_64-unknown-linux-musl"
};
const MUSL_32_BIT: &str = if cfg!(target_arch = "aarch64") {
    "armv7-unknown-linux-musleabihf"
} else {
    "i686-unknown-linux-musl"
};

/// The suite as a static program, in the target directory of this one. `None`: Rust cannot build
/// such programs here, or the kernel cannot run them; the reason is reported.
fn suite_for(target: &str) -> Option<PathBuf> {
    let rustc = std::env::var_os("RUSTC").unwrap_or("rustc".into());
    let mut libraries = Command::new(rustc);
    libraries.args(["--print", "target-libdir", "--target", target]);
    let libraries = libraries.output().map(|output| output.stdout).unwrap_or_default();
    if !Path::new(String::from_utf8_lossy(&libraries).trim()).exists() {
        test_support::skip(format_args!("rustup target add {target}"));
        return None;
    }
    let folder = Path::new(SUITE).parent().and_then(Path::parent).expect("a target directory");
    let cargo = std::env::var_os("CARGO").unwrap_or("cargo".into());
    let built = Command::new(cargo)
        .args(["build", "--quiet", "--locked", "--package", "conformance", "--target", target])
        .arg("--target-dir")
        .arg(folder)
        // A C compiler for these programs may be missing.
        .env(format!("CARGO_TARGET_{}_LINKER", target.replace('-', "_").to_uppercase()), "rust-lld")
        .current_dir(HERE)
        .status();
    assert!(built.expect("cargo starts").success(), "the suite is not built for {target}");
    let program = folder.join(target).join("debug/conformance");
    if let Err(error) = Command::new(&program).arg("--list").stdout(Stdio::null()).status() {
        test_support::skip(format_args!("programs for {target} do not run here: {error}"));
        return None;
    }
    Some(program)
}

#[test]
fn our_driver_differs_from_the_kernels_only_where_a_reason_is_given() {
    expect_reference(Path::new(SUITE));
}

#[test]
fn a_32_bit_client_is_served_as_a_64_bit_one() {
    if let Some(program) = suite_for(MUSL_32_BIT) {
        expect_reference(&program);
    }
}

#[test]
fn a_static_client_with_musl_is_served_as_one_with_glibc() {
    if let Some(program) = suite_for(MUSL) {
        expect_reference(&program);
    }
}

/// 32-bit system calls pass the filter of `--fd-passing seccomp`, so these threads are stopped for
/// their files there, too.
#[test]
fn static_and_32_bit_clients_get_descriptors_in_a_session_that_passes_them_by_seccomp() {
    if let Some(reason) = missing() {
        test_support::skip(reason);
        return;
    }
    for target in [MUSL, MUSL_32_BIT] {
        let Some(program) = suite_for(target) else { continue };
        let mut command = Command::new(binary("headroom"));
        command.args(["run", "--fd-passing", "seccomp", "--"]).arg(program);
        command.args(["--device", "/dev/binderfs/binder", "--filter", "fd.works"]);
        let played = command.stdin(Stdio::null()).output().expect("headroom starts");
        let transcript = String::from_utf8_lossy(&played.stdout);
        let expected = "7 bytes went in, \"through\" came out";
        assert!(transcript.contains(expected), "{target}: {transcript}{played:?}");
    }
}

/// Plays the suite by this program, and compares it with the kernel's transcript.
fn expect_reference(program: &Path) {
    if let Some(reason) = missing() {
        test_support::skip(reason);
        return;
    }
    let directory = tempfile::tempdir().expect("a directory");
    let daemon = Daemon::start(directory.path());
    let played = run(program, &["--device".as_ref(), daemon.mount.join("binder").as_os_str()]);
    drop(daemon);
    let log = fs::read_to_string(directory.path().join("binderd.log")).unwrap_or_default();
    let stderr = String::from_utf8_lossy(&played.stderr);
    assert!(
        played.status.success(),
        "the suite could not be played: {stderr}\nlog of the daemon:\n{log}"
    );

    let transcript = directory.path().join("ours.txt");
    fs::write(&transcript, &played.stdout).expect("the transcript is kept");
    let here = Path::new(HERE);
    let reference = here.join("reference/6.12.txt");
    let known = here.join("known-differences.toml");
    let files = [reference.as_os_str(), transcript.as_os_str()];
    let compared =
        suite(&["compare".as_ref(), files[0], files[1], "--known".as_ref(), known.as_os_str()]);
    let findings = String::from_utf8_lossy(&compared.stdout);
    let stderr = String::from_utf8_lossy(&compared.stderr);
    assert!(compared.status.success(), "{findings}{stderr}");
    println!("{}", findings.lines().last().unwrap_or_default());
}

#[test]
fn every_case_of_the_suite_is_in_the_reference() {
    let listed = suite(&["--list".as_ref()]);
    let listed = String::from_utf8(listed.stdout).expect("text");
    let reference =
        fs::read_to_string(Path::new(HERE).join("reference/6.12.txt")).expect("a reference");
    let cases: Vec<&str> = listed.lines().filter_map(|line| line.split(' ').next()).collect();
    assert!(!cases.is_empty());
    for case in cases {
        assert!(reference.contains(&format!("== {case}\n")), "{case} is not in reference/6.12.txt");
    }
}

/// Both are records, so this holds without a kernel.
#[test]
fn the_kernels_drivers_in_c_and_rust_differ_only_where_a_reason_is_given() {
    let at = |name: &str| Path::new(HERE).join(name);
    let files = [at("reference/7.x.txt"), at("reference/rust.txt")];
    let known = at("known-differences-rust.toml");
    let [c, rust] = files.each_ref().map(|file| file.as_os_str());
    let compared = suite(&["compare".as_ref(), c, rust, "--known".as_ref(), known.as_os_str()]);
    let findings = String::from_utf8_lossy(&compared.stdout);
    assert!(compared.status.success(), "{findings}");
    let known = fs::read_to_string(known).expect("a list");
    assert!(!known.contains("reason = \"\"\n"), "a difference without a reason");
}

#[test]
fn a_path_without_a_binder_device_is_named_in_the_error() {
    let played = suite(&["--device".as_ref(), "/dev/null".as_ref()]);
    assert_eq!(played.status.code(), Some(2));
    let stderr = String::from_utf8_lossy(&played.stderr);
    assert!(stderr.contains("/dev/null"), "{stderr}");
}
