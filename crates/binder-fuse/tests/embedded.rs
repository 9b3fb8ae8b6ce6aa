//! A [`Server`](binder_fuse::Server) inside another program: mounted for real, in a process of its
//! own, because a process must not access a mount that it serves.
#![allow(missing_docs)]

use std::path::Path;
use std::process::Command;

use test_support::helper::Helper;
use test_support::programs::built;

#[test]
fn a_server_can_be_embedded_and_unmounts_when_it_is_dropped() {
    if !rustix::process::geteuid().is_root() || !Path::new("/dev/fuse").exists() {
        test_support::skip("not root, or no /dev/fuse");
        return;
    }
    let dir = tempfile::TempDir::new().unwrap();
    let mount = dir.path().join("deep/down/mount");
    let program = built("e2e", "bus_client");
    let mut server = Helper::run(Command::new(program).arg("serve").arg(&mount));
    for mapping in ["passthrough", "notify-store"] {
        assert_eq!(server.answer().as_deref(), Some(mapping));
        let mut names: Vec<_> =
            std::fs::read_dir(&mount).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        assert_eq!(names, ["binder-control", "features", "one", "two"]);
        drop(std::fs::File::open(mount.join("one")).unwrap());
        // close(2) does not wait for the release of a file; accessing the tree afterwards does.
        std::fs::metadata(mount.join("two")).unwrap();
        assert_eq!(server.request("enough").as_deref(), Some("unmounted"));
        assert!(!mount.exists(), "made for the mount, removed with it");
        server.begin("seen");
    }
    assert!(server.child.wait().unwrap().success());
}
