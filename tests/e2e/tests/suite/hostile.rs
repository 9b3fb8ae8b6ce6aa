//! Invalid and malicious requests: each returns its error, and other clients are not affected.

use std::ptr;

use binder_client::{
    Client, ClientError, Errno, LIBBINDER_MAP_LEN, Options, Parcel, Payload, Session,
};
use binder_uapi::{
    BinderPtrCookie, BinderTransactionData, BinderWriteRead, Command, FlatBinderObject, Return,
};
use e2e::random::Random;
use e2e::{Bus, Peer};
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

use crate::support::{CALL, expect_echo, open, peer};

crate::both_mappings! {
    garbage_commands_are_refused_and_the_ones_before_count
    truncated_streams_are_refused
    random_bytes_are_refused_or_harmless
    offsets_outside_of_the_data_fail_the_call
    misplaced_and_unknown_objects_fail_the_call
    impossible_sizes_fail_the_call
    data_that_is_not_mapped_fails_the_call
    an_unknown_handle_fails_the_call
    a_second_context_manager_is_refused
    a_context_manager_cannot_call_itself
    freeing_twice_or_an_unknown_buffer_is_harmless
    a_reply_without_a_call_fails
    an_unmatched_acknowledgement_is_harmless
    a_command_buffer_that_is_not_mapped_is_a_fault
    a_read_buffer_that_is_not_mapped_is_a_fault
    a_read_buffer_that_cannot_be_written_is_a_fault
    consumed_counts_beyond_the_sizes_are_refused_or_harmless
    an_open_without_a_mapping_receives_nothing
    a_writable_mapping_is_not_delivered_to
    an_open_cannot_be_mapped_over_with_another
    references_that_were_never_had_cannot_be_dropped
}

/// A bystander, which must not be affected, and the registry that it calls.
struct Bystander<'b> {
    _manager: Peer,
    bus: &'b Bus,
    client: Client,
}

impl<'b> Bystander<'b> {
    fn new(bus: &'b Bus) -> Self {
        let manager = peer(bus, &["manager", "1"]);
        Self { _manager: manager, bus, client: open(bus) }
    }

    /// The daemon still serves both an old client and a new one.
    fn goes_on(&self) {
        expect_echo(&mut Session::new(&self.client), 0, b"I was here before");
        expect_echo(&mut Session::new(&open(self.bus)), 0, &[7; 10_000]);
    }
}

/// Address of an unmapped page.
fn hole() -> usize {
    // SAFETY: a fresh mapping is unmapped again at once; no other code accesses it. Its address is
    // far from where the allocator maps, so that it stays unmapped while the test runs.
    unsafe {
        let hint = ptr::without_provenance_mut(0x10_0000_0000);
        let page = mmap_anonymous(hint, 4096, ProtFlags::READ, MapFlags::PRIVATE).unwrap();
        munmap(page, 4096).unwrap();
        page as usize
    }
}

fn failed_with(session: &mut Session<'_>, data: BinderTransactionData) -> (ClientError, i32) {
    session.push(Command::Transaction { data, buffers_size: None });
    let error = loop {
        match session.receive().unwrap() {
            Return::TransactionComplete => {}
            Return::FailedReply => break ClientError::FailedReply,
            Return::DeadReply => break ClientError::DeadReply,
            other => panic!("not refused: {other:?}"),
        }
    };
    (error, session.client().extended_error().unwrap().param)
}

fn garbage_commands_are_refused_and_the_ones_before_count(bus: &Bus) {
    let bystander = Bystander::new(bus);
    let client = open(bus);
    let mut session = Session::new(&client);
    for garbage in [[0u8; 4], [0xff; 4], *b"sudo", 0xc030_6201u32.to_ne_bytes()] {
        let mut commands = Vec::new();
        Command::EnterLooper.write_to(&mut commands);
        let good = commands.len() as u64;
        commands.extend(garbage);
        commands.extend([0; 64]);
        let mut bwr = BinderWriteRead {
            write_size: commands.len() as u64,
            write_buffer: commands.as_ptr() as u64,
            ..Default::default()
        };
        // SAFETY: there is no read buffer.
        let result = unsafe { client.write_read(&mut bwr) };
        assert_eq!((result, bwr.write_consumed), (Err(Errno::INVAL), good), "{garbage:x?}");
        bystander.goes_on();
    }
    expect_echo(&mut session, 0, b"and the offender may go on too");
}

fn truncated_streams_are_refused(bus: &Bus) {
    let bystander = Bystander::new(bus);
    let client = open(bus);
    let mut whole = Vec::new();
    Command::Acquire(0).write_to(&mut whole);
    let good = whole.len() as u64;
    let data = BinderTransactionData { code: CALL, ..Default::default() };
    Command::Transaction { data, buffers_size: None }.write_to(&mut whole);
    for end in good as usize + 1..whole.len() {
        // At the end of a page with nothing mapped behind: reading past the end would be a fault.
        let mut bwr = BinderWriteRead {
            write_size: end as u64,
            write_buffer: whole.as_ptr() as u64,
            ..Default::default()
        };
        // SAFETY: there is no read buffer.
        let result = unsafe { client.write_read(&mut bwr) };
        let refused = matches!(result, Err(Errno::INVAL | Errno::FAULT));
        assert!(refused, "{end} of {} bytes: {result:?}", whole.len());
        assert_eq!(bwr.write_consumed, good, "{end} bytes");
    }
    bystander.goes_on();
}

fn random_bytes_are_refused_or_harmless(bus: &Bus) {
    let bystander = Bystander::new(bus);
    let seed = Random::fresh_seed();
    println!("seed {seed}");
    let mut random = Random::new(seed);
    let options = Options { nonblock: true, ..Options::default() };
    for _ in 0..30 {
        let client = Client::open(bus.device("binder"), &options).unwrap();
        let mut room = [0u8; 512];
        for _ in 0..50 {
            let mut bytes = Vec::new();
            for _ in 0..random.below(4) + 1 {
                // Known commands with any payload are executed further than random bytes.
                let number = random.below(24) as u32;
                let size = [0u32, 4, 8, 12, 16, 64, 72][random.below(7) as usize];
                let word = 1 << 30 | size << 16 | u32::from(b'c') << 8 | number;
                bytes.extend(word.to_ne_bytes());
                for _ in 0..size / 4 {
                    let small = random.below(3) > 0;
                    let value = if small { random.below(5) } else { random.below(u64::MAX) };
                    bytes.extend((value as u32).to_ne_bytes());
                }
            }
            let mut bwr = BinderWriteRead {
                write_size: bytes.len() as u64,
                write_buffer: bytes.as_ptr() as u64,
                read_size: room.len() as u64,
                read_buffer: room.as_mut_ptr() as u64,
                ..Default::default()
            };
            // SAFETY: the read buffer is `room`.
            let _ = unsafe { client.write_read(&mut bwr) };
            assert!(bwr.write_consumed <= bwr.write_size && bwr.read_consumed <= bwr.read_size);
        }
    }
    bystander.goes_on();
}

fn offsets_outside_of_the_data_fail_the_call(bus: &Bus) {
    let bystander = Bystander::new(bus);
    let client = open(bus);
    let mut session = Session::new(&client);
    let data = [0u8; 64];
    for offsets in [
        &[64u64][..],
        &[41],
        &[60],
        &[u64::MAX],
        &[u64::MAX - 23],
        &[1 << 63],
        &[0x1_0000_0000],
        &[0, u64::MAX],
        &[2],
    ] {
        // The kernel's driver fails when it copies up to an offset behind the data, before it looks
        // for an object.
        let errno = if offsets[0] > 64 { Errno::FAULT } else { Errno::INVAL };
        let error = session
            .call(0, CALL, Payload { data: &data, offsets, ..Payload::default() })
            .unwrap_err();
        assert_eq!(error, ClientError::FailedReply, "{offsets:x?}");
        let why = client.extended_error().unwrap();
        assert_eq!(why.param, -errno.raw_os_error(), "{offsets:x?}");
    }
    // The size of the offsets array is not a multiple of a word.
    let offsets = [0u64; 2];
    for offsets_size in [1, 7, 9, 15] {
        let call = BinderTransactionData {
            code: CALL,
            data_size: 64,
            offsets_size,
            buffer: data.as_ptr() as u64,
            offsets: offsets.as_ptr() as u64,
            ..Default::default()
        };
        let refused = (ClientError::FailedReply, -Errno::INVAL.raw_os_error());
        assert_eq!(failed_with(&mut session, call), refused, "{offsets_size}");
    }
    bystander.goes_on();
}

fn misplaced_and_unknown_objects_fail_the_call(bus: &Bus) {
    let bystander = Bystander::new(bus);
    let client = open(bus);
    let mut session = Session::new(&client);
    let unknown = FlatBinderObject { ty: 0x1234_5678, ..Default::default() };
    let one_object_twice =
        Parcel { offsets: vec![0, 0], ..Parcel::new().binder(0x10, 0).bytes(&[0; 64]) };
    let overlapping =
        Parcel { offsets: vec![0, 8], ..Parcel::new().binder(0x10, 0).bytes(&[0; 64]) };
    let backwards =
        Parcel { offsets: vec![24, 0], ..Parcel::new().binder(0x10, 0).binder(0x20, 0) };
    for (what, parcel) in [
        ("an unknown type", Parcel::new().object(unknown)),
        ("a handle that we do not have", Parcel::new().handle(4711)),
        ("the same object twice", one_object_twice),
        ("objects that overlap", overlapping),
        ("objects in descending order", backwards),
        ("an object whose cookie changed", Parcel::new().binder(0x30, 1).binder(0x30, 2)),
    ] {
        let error = session.call(0, CALL, parcel.payload()).map(drop).unwrap_err();
        assert_eq!(error, ClientError::FailedReply, "{what}");
    }
    bystander.goes_on();
}

fn impossible_sizes_fail_the_call(bus: &Bus) {
    let bystander = Bystander::new(bus);
    let client = open(bus);
    let mut session = Session::new(&client);
    let data = [0u8; 64];
    for (data_size, offsets_size) in [
        (u64::MAX, 0),
        (u64::MAX - 7, 8),
        (1 << 62, 0),
        (1 << 32, 0),
        (8 << 20, 0),
        (LIBBINDER_MAP_LEN as u64 + 8, 0),
        (0, u64::MAX - 7),
        (64, u64::MAX - 63),
        (1 << 63, 1 << 63),
        (64, 1 << 40),
    ] {
        let call = BinderTransactionData {
            code: CALL,
            data_size,
            offsets_size,
            buffer: data.as_ptr() as u64,
            offsets: data.as_ptr() as u64,
            ..Default::default()
        };
        let (error, why) = failed_with(&mut session, call);
        assert_eq!(error, ClientError::FailedReply, "{data_size:#x} {offsets_size:#x}");
        assert!(why < 0, "{data_size:#x} {offsets_size:#x}: the reason is {why}");
    }
    bystander.goes_on();
}

fn data_that_is_not_mapped_fails_the_call(bus: &Bus) {
    let bystander = Bystander::new(bus);
    let client = open(bus);
    let mut session = Session::new(&client);
    let there = [0u64; 8];
    let hole = hole() as u64;
    let fine = there.as_ptr() as u64;
    for (data_size, buffer, offsets_size, offsets) in [
        (64, hole, 0, 0),
        (64, 0, 0, 0),
        (64, u64::MAX - 10, 0, 0),
        (64, 0xffff_8000_0000_0000, 0, 0),
        (64, fine, 8, hole),
    ] {
        let call = BinderTransactionData {
            code: CALL,
            data_size,
            offsets_size,
            buffer,
            offsets,
            ..Default::default()
        };
        let refused = (ClientError::FailedReply, -Errno::FAULT.raw_os_error());
        assert_eq!(failed_with(&mut session, call), refused, "{buffer:#x} {offsets:#x}");
    }
    bystander.goes_on();
}

fn an_unknown_handle_fails_the_call(bus: &Bus) {
    let bystander = Bystander::new(bus);
    let client = open(bus);
    let mut session = Session::new(&client);
    for handle in [1, 2, 4711, u32::MAX] {
        let error = session.call(handle, CALL, Payload::bytes(b"hello?")).unwrap_err();
        assert_eq!(error, ClientError::FailedReply, "{handle}");
        let error = session.oneway(handle, CALL, Payload::bytes(b"hello?")).unwrap_err();
        assert_eq!(error, ClientError::FailedReply, "{handle}");
    }
    bystander.goes_on();
}

fn a_second_context_manager_is_refused(bus: &Bus) {
    let bystander = Bystander::new(bus);
    let client = open(bus);
    let error = client.become_context_manager().unwrap_err();
    assert_eq!(error.errno(), Some(Errno::BUSY));
    let error = client.become_context_manager_ext(FlatBinderObject::default()).unwrap_err();
    assert_eq!(error.errno(), Some(Errno::BUSY));
    bystander.goes_on();
}

fn a_context_manager_cannot_call_itself(bus: &Bus) {
    let client = open(bus);
    client.become_context_manager().unwrap();
    let mut session = Session::new(&client);
    let error = session.call(0, CALL, Payload::default()).unwrap_err();
    assert_eq!(error, ClientError::FailedReply);
}

fn freeing_twice_or_an_unknown_buffer_is_harmless(bus: &Bus) {
    let bystander = Bystander::new(bus);
    let client = open(bus);
    let mut session = Session::new(&client);
    let reply = session.call(0, CALL, Payload::bytes(b"once")).unwrap();
    let address = reply.address();
    let (start, len) = client.mapping().unwrap();
    session.free(reply);
    for address in [address, address + 8, start + len as u64, start - 1, 0, u64::MAX] {
        session.push(Command::FreeBuffer(address));
        session.flush().unwrap();
    }
    expect_echo(&mut session, 0, b"nothing is freed but what we had");
    bystander.goes_on();
}

fn a_reply_without_a_call_fails(bus: &Bus) {
    let bystander = Bystander::new(bus);
    let client = open(bus);
    let mut session = Session::new(&client);
    let error = session.reply(Payload::bytes(b"no call")).unwrap_err();
    assert_eq!(error, ClientError::FailedReply);
    expect_echo(&mut session, 0, b"still good for calls");
    bystander.goes_on();
}

fn an_unmatched_acknowledgement_is_harmless(bus: &Bus) {
    let bystander = Bystander::new(bus);
    let client = open(bus);
    let mut session = Session::new(&client);
    let node = BinderPtrCookie { ptr: 0x1234, cookie: 0x5678 };
    for command in [
        Command::IncRefsDone(node),
        Command::AcquireDone(node),
        Command::DeadBinderDone(99),
        Command::ExitLooper,
    ] {
        session.push(command);
        session.flush().unwrap();
    }
    session.clear_death(0, 77);
    session.clear_death(4711, 77);
    session.request_death(4711, 77);
    session.flush().unwrap();
    bystander.goes_on();
}

fn a_command_buffer_that_is_not_mapped_is_a_fault(bus: &Bus) {
    let bystander = Bystander::new(bus);
    let client = open(bus);
    for (write_buffer, write_size) in
        [(hole() as u64, 8), (0, 8), (u64::MAX - 3, 8), (1 << 63, 1 << 63), (8, u64::MAX)]
    {
        let mut bwr = BinderWriteRead { write_size, write_buffer, ..Default::default() };
        // SAFETY: there is no read buffer.
        let result = unsafe { client.write_read(&mut bwr) };
        assert_eq!((result, bwr.write_consumed), (Err(Errno::FAULT), 0), "{write_buffer:#x}");
    }
    bystander.goes_on();
}

fn read_into(client: &Client, read_buffer: u64) -> Result<(), Errno> {
    let mut commands = Vec::new();
    let text = b"x";
    let data = BinderTransactionData {
        code: CALL,
        data_size: 1,
        buffer: text.as_ptr() as u64,
        ..Default::default()
    };
    Command::Transaction { data, buffers_size: None }.write_to(&mut commands);
    let mut bwr = BinderWriteRead {
        write_size: commands.len() as u64,
        write_buffer: commands.as_ptr() as u64,
        read_size: 256,
        read_buffer,
        ..Default::default()
    };
    // SAFETY: the callers pass addresses that are not mapped or not writable.
    unsafe { client.write_read(&mut bwr) }
}

fn a_read_buffer_that_is_not_mapped_is_a_fault(bus: &Bus) {
    let bystander = Bystander::new(bus);
    for read_buffer in [hole() as u64, 0, u64::MAX - 100] {
        let client = open(bus);
        assert_eq!(read_into(&client, read_buffer), Err(Errno::FAULT), "{read_buffer:#x}");
    }
    bystander.goes_on();
}

fn a_read_buffer_that_cannot_be_written_is_a_fault(bus: &Bus) {
    static CONSTANT: [u8; 256] = [0; 256];
    let bystander = Bystander::new(bus);
    let client = open(bus);
    assert_eq!(read_into(&client, CONSTANT.as_ptr() as u64), Err(Errno::FAULT));
    let client = open(bus);
    let (own_mapping, _) = client.mapping().unwrap();
    assert_eq!(read_into(&client, own_mapping), Err(Errno::FAULT));
    bystander.goes_on();
}

fn consumed_counts_beyond_the_sizes_are_refused_or_harmless(bus: &Bus) {
    let bystander = Bystander::new(bus);
    let options = Options { nonblock: true, ..Options::default() };
    let client = Client::open(bus.device("binder"), &options).unwrap();
    let commands = [0u8; 16];
    let mut room = [0u8; 256];
    for (write_consumed, read_consumed) in [(17, 0), (u64::MAX, 0), (16, 257), (16, u64::MAX)] {
        let mut bwr = BinderWriteRead {
            write_size: 16,
            write_consumed,
            write_buffer: commands.as_ptr() as u64,
            read_size: 256,
            read_consumed,
            read_buffer: room.as_mut_ptr() as u64,
        };
        // SAFETY: the read buffer is `room`.
        let _ = unsafe { client.write_read(&mut bwr) };
        if read_consumed == 0 {
            // There is space, so a BR_NOOP may be returned, whatever the result of the write half.
            room[..4].fill(0);
        }
        assert_eq!(room, [0; 256], "nothing is written where there is no room");
    }
    bystander.goes_on();
}

fn an_open_without_a_mapping_receives_nothing(bus: &Bus) {
    let bystander = Bystander::new(bus);
    let options = Options { map_len: 0, ..Options::default() };
    let client = Client::open(bus.device("binder"), &options).unwrap();
    let mut session = Session::new(&client);
    // The call arrives; there is no space for the reply.
    let error = session.call(0, CALL, Payload::bytes(b"where to?")).unwrap_err();
    assert_eq!(error, ClientError::DeadReply);
    bystander.goes_on();
}

fn a_writable_mapping_is_not_delivered_to(bus: &Bus) {
    let bystander = Bystander::new(bus);
    let options = Options { map_writable: true, ..Options::default() };
    // A driver that is notified of the mmap refuses it; one that is not must not deliver into it.
    match Client::open(bus.device("binder"), &options) {
        Err(error) => assert_eq!(error.errno(), Some(Errno::PERM)),
        Ok(client) => {
            let error = Session::new(&client).call(0, CALL, Payload::bytes(b"x")).unwrap_err();
            assert_eq!(error, ClientError::DeadReply, "as if it were not mapped");
        }
    }
    bystander.goes_on();
}

fn an_open_cannot_be_mapped_over_with_another(bus: &Bus) {
    let bystander = Bystander::new(bus);
    let client = open(bus);
    let mut session = Session::new(&client);
    expect_echo(&mut session, 0, b"first mapping");
    // SAFETY: a fresh mapping that is never accessed.
    let second = unsafe {
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        rustix::mm::mmap(ptr::null_mut(), 64 * 1024, ProtFlags::READ, flags, &client, 0)
    };
    // A driver that is notified of it refuses it; otherwise the first mapping stays in use.
    for _ in 0..10 {
        expect_echo(&mut session, 0, b"still the first mapping");
    }
    if let Ok(second) = second {
        // SAFETY: mapped above.
        unsafe { munmap(second, 64 * 1024) }.unwrap();
    }
    bystander.goes_on();
}

fn references_that_were_never_had_cannot_be_dropped(bus: &Bus) {
    let bystander = Bystander::new(bus);
    let client = open(bus);
    let mut session = Session::new(&client);
    for handle in [0, 1, 4711] {
        session.release(handle);
        session.decrefs(handle);
        session.acquire(handle);
        session.release(handle);
        session.release(handle);
        session.flush().unwrap();
    }
    bystander.goes_on();
}
