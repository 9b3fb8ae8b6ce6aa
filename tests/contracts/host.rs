//! The contract of [`Host`]. Every test program that has an implementation includes this file.

#![allow(dead_code, reason = "a host may have no mapping without a mounted device")]

use binder_driver::{Caller, Errno, Fault, Freshness, Host, Piece, ProcessId};

/// A client of a host.
pub struct Client {
    pub caller: Caller,
    /// Address of 64 bytes that can be read and written.
    pub memory: u64,
    /// Number of an open descriptor.
    pub open_fd: u32,
    /// Number of no descriptor.
    pub closed_fd: u32,
}

/// Checks what needs no mapping.
pub fn check_client<H: Host>(host: &mut H, client: &Client) {
    check_memory(host, client);
    check_files(host, client);
    check_thread(host, client.caller);
}

fn check_memory<H: Host>(host: &mut H, client: &Client) {
    let &Client { caller, memory, .. } = client;
    let mut expected: [u8; 64] = std::array::from_fn(|at| at as u8 + 1);
    host.write(caller, memory, &expected).unwrap();
    host.write_returns(caller, memory + 8, &[0xff; 4]).unwrap();
    expected[8..12].fill(0xff);
    let mut all = [0; 64];
    host.read(caller, memory, &mut all).unwrap();
    assert_eq!(all, expected, "only the given bytes are written");
    let mut part = [0; 5];
    host.read(caller, memory + 7, &mut part).unwrap();
    assert_eq!(part, expected[7..12]);

    // The first page is never mapped.
    assert_eq!(host.read(caller, 8, &mut part), Err(Fault::BadAddress));
    assert_eq!(host.write(caller, 8, &part), Err(Fault::BadAddress));

    let piece = |address, at, len| Piece { address, at, len };
    let good = [piece(memory, 40, 4), piece(memory + 8, 0, 8)];
    let bad = [good[0], piece(8, 8, 8), good[1]];
    let mut into = vec![0; 48];
    assert_eq!(host.read_ahead(caller, &good, &mut into), Ok(2));
    let gap = [0; 32];
    assert_eq!(into, [&expected[8..16], &gap, &expected[..4], &gap[..4]].concat());
    assert_eq!(host.read_ahead(caller, &bad, &mut vec![0; 48]), Ok(1), "up to the fault");
    let mut parcel = vec![0; 48];
    assert_eq!(host.read_parcel(caller, &good, &mut parcel), Ok(()));
    assert_eq!(parcel, into);
    assert_eq!(host.read_parcel(caller, &bad, &mut parcel), Err(Fault::BadAddress));
}

fn check_files<H: Host>(host: &mut H, client: &Client) {
    let &Client { caller, open_fd, closed_fd, .. } = client;
    assert_eq!(host.take_file(caller, closed_fd), Err(Errno::EBADF));
    let tokens = [(); 3].map(|()| host.take_file(caller, open_fd).unwrap());
    assert!(tokens.is_sorted_by(|one, next| one < next), "each is dropped once: {tokens:?}");
    tokens.into_iter().for_each(|token| host.drop_file(token));
}

fn check_thread<H: Host>(host: &mut H, caller: Caller) {
    let Caller { process, tid, euid } = caller;
    assert_eq!(host.uid_seen_by(process, euid), euid.0);
    assert!(host.pid_seen_by(process, process) >= 0);
    match host.security_context(caller) {
        Ok(context) => assert!(!context.is_empty() && !context.contains(&0)),
        Err(errno) => assert_eq!(errno, Errno::EINVAL),
    }
    let times = [(); 2].map(|()| host.run_time_ns(tid));
    assert!(times[0].is_some() == times[1].is_some() && times.is_sorted(), "{times:?}");
    let own = host.priority(tid, Freshness::Current);
    if let Some(own) = own
        && host.inherit_priority(tid, own)
    {
        host.restore_priority(tid, own);
    }
    assert_eq!(host.priority(tid, Freshness::Current), own, "it has its own priority again");
}

/// Checks a mapping; `bytes` returns what its process reads there, if the host stores it.
pub fn check_mapping<H: Host>(
    host: &mut H,
    process: ProcessId,
    bytes: impl Fn(&H) -> Option<Vec<u8>>,
) {
    let mapping = host.mapping(process).unwrap().expect("it is mapped");
    assert_eq!(host.mapping(process), Ok(Some(mapping)));
    assert!(host.has_address_space(process));
    assert!(mapping.address.is_multiple_of(4096) && mapping.len >= 8192, "{mapping:?}");
    let end = mapping.len as usize;
    let mut expected = bytes(host);
    let mut change = |from: usize, to: usize, value: u8| {
        if let Some(expected) = &mut expected {
            expected[from..to].fill(value);
        }
    };
    for (offset, len) in [(0, 8192), (end - 8, 8)] {
        host.store(process, offset as u64, &vec![7; len]).unwrap();
        change(offset, offset + len, 7);
    }
    host.zero(process, 100, 8).unwrap();
    change(100, 108, 0);
    host.punch(process, 4096, 4096).unwrap();
    change(4096, 8192, 0);
    assert_eq!(bytes(host), expected, "only the given bytes change");
}
