//! The memory hog allocates what its commands request.

use std::process::Command;

use test_support::helper::Helper;

/// Resident memory in KiB, by `smaps_rollup`: `Rss` counts in batches.
fn resident_kib(pid: u32) -> u64 {
    let rollup = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap();
    let line = rollup.lines().find_map(|line| line.strip_prefix("Rss:")).unwrap();
    line.trim_end_matches("kB").trim().parse().unwrap()
}

#[test]
fn memory_is_resident_when_the_hog_answers_and_gone_when_it_is_freed() {
    let mut hog = Helper::run(&mut Command::new(env!("CARGO_BIN_EXE_memory-hog")));
    let before = resident_kib(hog.pid());
    for (command, kib) in
        [("touch 5000", 20_000), ("shmem 5000", 20_000), ("grow 20000", 20_000), ("huge 8", 16_384)]
    {
        hog.execute(command);
        let grown = resident_kib(hog.pid()) - before;
        assert!((kib..kib + 2048).contains(&grown), "{command}: {grown} KiB");
        hog.execute("free");
        assert!(resident_kib(hog.pid()) < before + 2048, "{command}");
    }
}

#[test]
fn a_hog_that_holds_memory_reports_it() {
    use std::io::BufRead;
    let mut command = Command::new(env!("CARGO_BIN_EXE_memory-hog"));
    let uid = rustix::process::getuid().as_raw().to_string();
    let mut child = command
        .args(["hold", &uid, "32"])
        .stdout(std::process::Stdio::piped())
        .spawn()
        .expect("start the hog");
    let mut line = String::new();
    let mut output = std::io::BufReader::new(child.stdout.take().unwrap());
    output.read_line(&mut line).unwrap();
    assert_eq!(line, format!("{} has 32 MiB\n", child.id()));
    assert!(resident_kib(child.id()) >= 32 << 10);
    child.kill().unwrap();
    child.wait().unwrap();
}
