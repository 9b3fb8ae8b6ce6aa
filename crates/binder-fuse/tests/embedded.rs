//! A [`Server`] inside another program: mounted for real, in a process of its own, because a
//! process must not use what it serves. The test binary starts itself again for that.
#![allow(missing_docs)]

use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsFd;
use std::path::Path;
use std::process::{Command, Stdio};

use binder_fuse::{Config, Event, MappingChoice, MappingKind, Server};

const MOUNT: &str = "HEADROOM_TEST_MOUNT";

/// Serves until its standard input ends.
#[test]
fn serve() {
    let Some(mount) = std::env::var_os(MOUNT) else { return };
    for kind in [MappingKind::Passthrough, MappingKind::NotifyStore] {
        let mut config = Config::new(&mount);
        config.devices = vec!["one".into(), "two".into()];
        config.mapping = MappingChoice::Only(kind);
        let mut server = Server::new(&config).unwrap();
        let stdin = std::io::stdin();
        server.add_external(stdin.as_fd(), 7).unwrap();
        println!("serving {} by {}", server.mount_point().display(), server.mapping().name());
        assert_eq!(server.next_event().unwrap(), Event::External(7));
        let mut line = String::new();
        stdin.lock().read_line(&mut line).unwrap();
        assert_eq!(line, "enough\n");
        assert_eq!((server.device_count(), server.open_count()), (2, 0));
        drop(server);
        println!("serving no more");
        // The next mount would come while the test looks whether this one is gone.
        line.clear();
        stdin.lock().read_line(&mut line).unwrap();
    }
}

#[test]
fn a_server_can_be_embedded_and_unmounts_when_it_is_dropped() {
    if !rustix::process::geteuid().is_root() || !Path::new("/dev/fuse").exists() {
        test_support::skip("not root, or no /dev/fuse");
        return;
    }
    let dir = tempfile::TempDir::new().unwrap();
    let mount = dir.path().join("deep/down/mount");
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "serve", "--nocapture", "--test-threads=1"])
        .env(MOUNT, &mount)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut say = child.stdin.take().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut hear = |what: &str| loop {
        let line = lines.next().expect("the server ended").unwrap();
        if line.contains(what) {
            return line;
        }
    };
    for by in ["by passthrough", "by notify-store"] {
        assert!(hear("serving").contains(by));
        let mut names: Vec<_> =
            std::fs::read_dir(&mount).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        assert_eq!(names, ["binder-control", "features", "one", "two"]);
        drop(std::fs::File::open(mount.join("one")).unwrap());
        // The release of a file is not waited for by close(2); looking at the tree behind it is.
        std::fs::metadata(mount.join("two")).unwrap();
        writeln!(say, "enough").unwrap();
        hear("serving no more");
        assert!(!mount.exists(), "made for the mount, removed with it");
        writeln!(say, "seen").unwrap();
    }
    assert!(child.wait().unwrap().success());
}
