//! The table of file descriptors; in a process of its own, whose limits it changes.

use headroom_linux::descriptors::prepare;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// `FDSize` of `/proc/self/status`.
fn table_size() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("FDSize:")).unwrap();
    line.trim().parse().unwrap()
}

fn open_descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

#[test]
fn the_table_has_room_within_the_limit_and_no_descriptor_stays_open() {
    let before = open_descriptors();
    let limit = Rlimit { current: Some(100), maximum: Some(3000) };
    setrlimit(Resource::Nofile, limit).unwrap();
    prepare(2000).unwrap();
    assert_eq!(getrlimit(Resource::Nofile).current, Some(3000));
    assert!((2000..3000).contains(&table_size()), "{}", table_size());
    prepare(u32::MAX).unwrap();
    assert!((3000..6000).contains(&table_size()), "{}", table_size());
    assert_eq!(open_descriptors(), before);
}
