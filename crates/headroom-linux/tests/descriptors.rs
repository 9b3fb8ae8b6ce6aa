//! The table of file descriptors; in a process of its own, whose limits it changes.

use std::os::fd::AsRawFd;

use headroom_linux::descriptors::{prepare, without_descriptors};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// `FDSize` of `/proc/self/status`.
fn table_size() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("FDSize:")).unwrap();
    line.trim().parse().unwrap()
}

/// Those of a process or thread, with the one that reads the list.
fn open_descriptors(task: &str) -> usize {
    std::fs::read_dir(format!("/proc/{task}/fd")).unwrap().count()
}

#[test]
fn the_table_has_room_within_the_limit_and_its_first_word_is_in_use() {
    let limit = Rlimit { current: Some(100), maximum: Some(3000) };
    setrlimit(Resource::Nofile, limit).unwrap();
    prepare(2000).unwrap();
    assert_eq!(getrlimit(Resource::Nofile).current, Some(3000));
    assert!((2000..3000).contains(&table_size()), "{}", table_size());
    prepare(u32::MAX).unwrap();
    assert!((3000..6000).contains(&table_size()), "{}", table_size());
    let file = std::fs::File::open("/proc/self/status").unwrap();
    assert!(file.as_raw_fd() >= 64, "{file:?}");
    let all = open_descriptors("self");
    let seen = without_descriptors(|| {
        let child = std::process::Command::new("ls").arg("/proc/self/fd").output().unwrap();
        (open_descriptors("thread-self"), child.stdout.split(|&byte| byte == b'\n').count())
    });
    // The child has the standard streams and its list, and the text ends with an empty line.
    assert_eq!(seen.unwrap(), (3 + 1, 4 + 1));
    assert_eq!(open_descriptors("self"), all, "nothing was closed");
}
