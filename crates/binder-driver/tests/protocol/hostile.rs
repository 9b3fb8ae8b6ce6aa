//! Malicious clients: each gets its error, and other clients are not affected.

use binder_driver::{Caller, Errno, Waiting, WriteRead};
use binder_uapi::command::*;
use binder_uapi::*;
use zerocopy::IntoBytes;

use crate::common::*;

/// Checks that a call from another client still works.
fn others_go_on(world: &mut World, manager: Caller, client: Caller) {
    let call = world.call(client, 0, &Parcel::bytes(b"alive"));
    world.write(client, &[call]);
    let request = world.read(manager).parcel();
    assert_eq!(world.data(manager, &request), b"alive");
    let reply = world.reply(manager, &Parcel::default());
    world.run(manager, &[Command::FreeBuffer(request.buffer), reply]);
    world.read(client).parcel();
}

#[test]
fn garbage_ends_the_write_behind_the_last_good_command() {
    let (mut world, manager, [client, other]) = World::with_manager();
    let good = encode(&[Command::EnterLooper, Command::Acquire(0)]);
    for word in [0xdead_beef, 0, BC_FREE_BUFFER ^ 1 << 31] {
        let bytes = [&good[..], word.as_bytes(), &good[..]].concat();
        let seen = world.write_read(client, &bytes, READ_SIZE, Waiting::Refused);
        assert_eq!(seen.result, Err(Errno::EINVAL));
        assert_eq!(seen.bwr.write_consumed, good.len() as u64);
        assert_eq!(seen.bwr.read_consumed, 0);
    }
    others_go_on(&mut world, manager, other);
}

#[test]
fn truncated_commands_are_refused_at_every_length() {
    let (mut world, manager, [client, other]) = World::with_manager();
    let call = world.call(client, 0, &Parcel::default());
    let whole = encode(&[Command::EnterLooper, call]);
    for len in 5..whole.len() {
        let seen = world.write_read(client, &whole[..len], READ_SIZE, Waiting::Refused);
        assert_eq!((seen.result, seen.bwr.write_consumed), (Err(Errno::EINVAL), 4), "{len}");
    }
    others_go_on(&mut world, manager, other);
}

#[test]
fn unsupported_commands_are_refused() {
    let (mut world, _, [client]) = World::with_manager();
    let freeze = BinderHandleCookie::default();
    for command in [
        Command::AcquireResult(0),
        Command::AttemptAcquire(BinderPriDesc::default()),
        Command::RequestFreezeNotification(freeze),
        Command::ClearFreezeNotification(freeze),
        Command::FreezeNotificationDone(0),
    ] {
        assert_eq!(world.write(client, &[command]).result, Err(Errno::EINVAL), "{command:?}");
    }
}

#[test]
fn a_command_buffer_that_is_not_there_is_a_fault_behind_the_last_good_command() {
    let (mut world, _, [client]) = World::with_manager();
    let bytes = encode(&[Command::EnterLooper, Command::Acquire(0)]);
    let write_buffer = world.place(client, &bytes);
    let write_size = bytes.len() as u64 + 100;
    let bwr = BinderWriteRead { write_buffer, write_size, ..Default::default() };
    let seen = world.ioctl(client, bwr, Waiting::Refused);
    assert_eq!(seen.result, Err(Errno::EFAULT));
    assert_eq!(seen.bwr.write_consumed, bytes.len() as u64);
    let bwr = BinderWriteRead { write_buffer: u64::MAX - 2, write_size: 8, ..Default::default() };
    assert_eq!(world.ioctl(client, bwr, Waiting::Refused).result, Err(Errno::EFAULT));
}

/// Runs one slice of commands that are stored in the client's memory; returns its result.
fn run_slice(world: &mut World, client: Caller, bwr: BinderWriteRead) -> WriteRead {
    let answer = world.driver.write_read(&mut world.host, client, bwr, Waiting::Refused);
    world.check();
    answer
}

fn place_commands(world: &mut World, client: Caller, bytes: &[u8]) -> BinderWriteRead {
    let write_buffer = world.place(client, bytes);
    BinderWriteRead { write_buffer, write_size: bytes.len() as u64, ..Default::default() }
}

#[test]
fn many_commands_are_run_in_slices_of_bounded_cost() {
    let (mut world, _, [client]) = World::with_manager();
    let bytes = BC_ENTER_LOOPER.to_ne_bytes().repeat(1000);
    let mut bwr = place_commands(&mut world, client, &bytes);
    let mut consumed = Vec::new();
    while let WriteRead::Unfinished { bwr: rest } = run_slice(&mut world, client, bwr) {
        consumed.push(rest.write_consumed / 4);
        bwr = rest;
    }
    assert_eq!(consumed, [256, 512, 768]);
    let seen = world.ioctl(client, bwr, Waiting::Refused);
    assert_eq!((seen.result, seen.bwr.write_consumed), (Ok(()), 4000));
    // Of a claimed size of 2^64 bytes, only the mapped ones are read.
    let write_buffer = world.place(client, &bytes);
    let bwr = BinderWriteRead { write_buffer, write_size: u64::MAX, ..Default::default() };
    let seen = world.ioctl(client, bwr, Waiting::Refused);
    assert_eq!((seen.result, seen.bwr.write_consumed), (Err(Errno::EFAULT), 4000));
}

/// A manager with the largest mapping, and a client.
fn world_with_large_mapping() -> (World, Caller) {
    let (mut world, context) = World::new();
    let manager = world.process(context, 1);
    world.map(manager, 4 << 20);
    world.driver.set_context_manager(manager, None).unwrap();
    let client = world.process(context, 2);
    (world, client)
}

#[test]
fn a_slice_ends_earlier_with_large_parcels_and_objects() {
    let in_a_slice = |parcel: Parcel| {
        let (mut world, client) = world_with_large_mapping();
        let bytes = encode(&vec![world.oneway(client, 0, 0, &parcel); 100]);
        let bwr = place_commands(&mut world, client, &bytes);
        match run_slice(&mut world, client, bwr) {
            WriteRead::Unfinished { bwr } => bwr.write_consumed * 100 / bwr.write_size,
            answer => panic!("{answer:?}"),
        }
    };
    let empty = Parcel::default();
    let large = Parcel { data: vec![0; 14 << 10], ..Parcel::default() };
    let objects = (0..56).fold(Parcel::default(), |parcel, at| parcel.binder(0x100 + at));
    assert_eq!([empty, large, objects].map(in_a_slice), [32, 4, 4]);
}

#[test]
fn small_commands_follow_a_large_parcel_in_its_slice() {
    let (mut world, client) = world_with_large_mapping();
    let large = Parcel { data: vec![0; 128 << 10], ..Parcel::default() };
    let call = world.oneway(client, 0, 0, &large);
    let mut bytes = encode(&[call, Command::EnterLooper]);
    let bwr = place_commands(&mut world, client, &bytes);
    assert!(matches!(run_slice(&mut world, client, bwr), WriteRead::Done { .. }));
    bytes.extend(encode(&[call]));
    let bwr = place_commands(&mut world, client, &bytes);
    assert!(matches!(run_slice(&mut world, client, bwr), WriteRead::Unfinished { .. }));
}

#[test]
fn other_clients_are_served_between_the_slices_of_one() {
    let (mut world, manager, [client, other]) = World::with_manager();
    let bytes = encode(&vec![world.oneway(client, 0, 7, &Parcel::default()); 40]);
    let bwr = place_commands(&mut world, client, &bytes);
    let WriteRead::Unfinished { bwr } = run_slice(&mut world, client, bwr) else {
        panic!("40 transactions in a slice")
    };
    let call = world.oneway(other, 0, 8, &Parcel::default());
    assert_eq!(world.run(other, &[call]).work_returns(), [Return::TransactionComplete]);
    let seen = world.ioctl(client, bwr, Waiting::Refused);
    assert_eq!((seen.result, seen.bwr.write_consumed), (Ok(()), bytes.len() as u64));
    let mut codes = Vec::new();
    for _ in 0..41 {
        let request = world.read(manager).parcel();
        codes.push(request.code);
        world.write(manager, &[Command::FreeBuffer(request.buffer)]);
    }
    assert_eq!(codes.iter().filter(|code| **code == 8).count(), 1);
}

#[test]
fn a_client_may_leave_between_slices() {
    for leave in [World::thread_exit as fn(&mut World, Caller), World::release] {
        let (mut world, manager, [client]) = World::with_manager();
        let bytes = encode(&vec![world.oneway(client, 0, 7, &Parcel::default()); 40]);
        let bwr = place_commands(&mut world, client, &bytes);
        let answer = run_slice(&mut world, client, bwr);
        assert!(matches!(answer, WriteRead::Unfinished { .. }), "{answer:?}");
        leave(&mut world, client);
        world.check();
        assert_eq!(world.read(manager).parcel().code, 7);
    }
}

#[test]
fn consumed_counts_beyond_the_sizes_do_nothing() {
    let (mut world, _, [client]) = World::with_manager();
    let bwr = BinderWriteRead { write_consumed: 9, write_size: 8, ..Default::default() };
    assert_eq!(world.ioctl(client, bwr, Waiting::Refused).result, Ok(()));
    let call = world.oneway(client, 0, 0, &Parcel::default());
    world.write(client, &[call]);
    let bwr = BinderWriteRead { read_consumed: u64::MAX, read_size: 8, ..Default::default() };
    let answer = world.driver.write_read(&mut world.host, client, bwr, Waiting::Refused);
    assert_eq!(answer, binder_driver::WriteRead::Done { bwr, result: Ok(()) });
    assert_eq!(world.read(client).work_returns(), [Return::TransactionComplete]);
}

/// Sends a parcel with these raw offsets; returns the extended error.
fn send_offsets(data: &[u8], offsets: &[u64]) -> BinderExtendedError {
    let (mut world, manager, [client, other]) = World::with_manager();
    let parcel = Parcel { data: data.to_vec(), offsets: offsets.to_vec(), buffers_size: None };
    let call = world.call(client, 0, &parcel);
    assert_eq!(world.run(client, &[call]).work_returns(), [Return::FailedReply], "{offsets:?}");
    let error = world.driver.extended_error(client).unwrap();
    others_go_on(&mut world, manager, other);
    error
}

#[test]
fn offsets_outside_misaligned_overlapping_or_decreasing_fail_the_call() {
    let object = Parcel::default().binder(0x10).binder(0x20).data;
    let cases: [(Errno, &[&[u64]]); 2] = [
        (Errno::EINVAL, &[&[48], &[25], &[28]]),
        (Errno::EFAULT, &[&[u64::MAX], &[u64::MAX - 7], &[1 << 40], &[0, 8], &[24, 0], &[0, 0]]),
    ];
    for (errno, cases) in cases {
        for offsets in cases {
            let error = send_offsets(&object, offsets);
            assert_eq!(error.param, -errno.code(), "{offsets:?}");
        }
    }
}

#[test]
fn objects_of_no_known_type_fail_the_call() {
    assert_eq!(send_offsets(&[0; 64], &[0]).param, -Errno::EINVAL.code());
    assert_eq!(send_offsets(&[0xff; 64], &[8]).param, -Errno::EINVAL.code());
}

#[test]
fn descriptors_are_refused_as_not_accepted() {
    let fd = BinderFdObject { ty: BINDER_TYPE_FD, ..Default::default() };
    let parcel = Parcel::default().object(&fd);
    assert_eq!(send_offsets(&parcel.data, &parcel.offsets).param, -Errno::EPERM.code());
}

#[test]
fn an_array_of_descriptors_in_no_buffer_fails_the_call() {
    let array = BinderFdArrayObject { ty: BINDER_TYPE_FDA, ..Default::default() };
    let parcel = Parcel::default().object(&array);
    assert_eq!(send_offsets(&parcel.data, &parcel.offsets).param, -Errno::EINVAL.code());
}

#[test]
fn huge_and_odd_sizes_fail_the_call() {
    let cases = [
        (u64::MAX, 0, Errno::EINVAL),
        (u64::MAX - 7, 8, Errno::EINVAL),
        (1 << 63, 1 << 63, Errno::EINVAL),
        (1 << 40, 0, Errno::ENOSPC),
        (MAPPING + 1, 0, Errno::ENOSPC),
        (0, 12, Errno::EINVAL),
    ];
    for (data_size, offsets_size, errno) in cases {
        let (mut world, manager, [client, other]) = World::with_manager();
        let at = world.place(client, &[0; 64]);
        let data = BinderTransactionData {
            data_size,
            offsets_size,
            buffer: at,
            offsets: at,
            ..Default::default()
        };
        let call = Command::Transaction { data, buffers_size: None };
        assert_eq!(world.run(client, &[call]).work_returns(), [Return::FailedReply]);
        let error = world.driver.extended_error(client).unwrap();
        assert_eq!(error.param, -errno.code(), "{data_size} {offsets_size}");
        others_go_on(&mut world, manager, other);
    }
}

#[test]
fn data_that_is_not_there_fails_the_call() {
    let (mut world, manager, [client, other]) = World::with_manager();
    let data = BinderTransactionData { data_size: 16, buffer: 0x10, ..Default::default() };
    let call = Command::Transaction { data, buffers_size: None };
    assert_eq!(world.run(client, &[call]).work_returns(), [Return::FailedReply]);
    let error = world.driver.extended_error(client).unwrap();
    assert_eq!(error.param, -Errno::EFAULT.code());
    others_go_on(&mut world, manager, other);
}

#[test]
fn a_mapping_that_cannot_be_written_fails_the_call() {
    let (mut world, manager, [client]) = World::with_manager();
    world.host.unwritable.insert(manager.process);
    let call = world.call(client, 0, &Parcel::bytes(b"x"));
    assert_eq!(world.run(client, &[call]).work_returns(), [Return::FailedReply]);
    world.host.unwritable.clear();
    others_go_on(&mut world, manager, client);
}

#[test]
fn a_mapping_whose_address_space_is_gone_counts_as_none() {
    let (mut world, manager, [client]) = World::with_manager();
    others_go_on(&mut world, manager, client);
    world.host.replaced.insert(manager.process);
    let call = world.call(client, 0, &Parcel::bytes(b"x"));
    assert_eq!(world.run(client, &[call]).work_returns(), [Return::DeadReply]);
    let error = world.driver.extended_error(client).unwrap();
    assert_eq!((error.command, error.param), (returns::BR_DEAD_REPLY, -Errno::ESRCH.code()));
}

#[test]
fn unknown_handles_are_refused_or_ignored() {
    let (mut world, manager, [client]) = World::with_manager();
    for handle in [1, 77, u32::MAX] {
        let call = world.call(client, handle, &Parcel::default());
        assert_eq!(world.run(client, &[call]).work_returns(), [Return::FailedReply]);
        let parcel = Parcel::default().handle(handle);
        let call = world.call(client, 0, &parcel);
        assert_eq!(world.run(client, &[call]).work_returns(), [Return::FailedReply]);
        let commands = [
            Command::IncRefs(handle),
            Command::Acquire(handle),
            Command::Release(handle),
            Command::DecRefs(handle),
        ];
        let seen = world.write(client, &commands);
        assert_eq!((seen.result, seen.bwr.write_consumed), (Ok(()), 32));
    }
    others_go_on(&mut world, manager, client);
}

#[test]
fn freeing_a_foreign_or_freed_buffer_has_no_effect() {
    let (mut world, manager, [client, other]) = World::with_manager();
    let calls = [client, other].map(|caller| {
        let call = world.call(caller, 0, &Parcel::bytes(&[9; 32]));
        world.write(caller, &[call]);
    });
    assert_eq!(calls.len(), 2);
    let request = world.read(manager).parcel();
    let live = |world: &World| world.driver.snapshot().contexts[0].processes[0].buffers.count;
    assert_eq!(live(&world), 2);
    // Addresses that are foreign, null, inside a buffer, not delivered yet, out of range.
    world.write(client, &[Command::FreeBuffer(request.buffer)]);
    for address in [0, request.buffer + 8, request.buffer + 32, u64::MAX] {
        world.write(manager, &[Command::FreeBuffer(address)]);
    }
    assert_eq!(live(&world), 2);
    let free = Command::FreeBuffer(request.buffer);
    world.write(manager, &[free, free]);
    assert_eq!(live(&world), 1);
}

#[test]
fn a_buffer_freed_before_the_reply_does_not_disturb_it() {
    let (mut world, manager, [client]) = World::with_manager();
    let call = world.call(client, 0, &Parcel::bytes(b"x"));
    world.park(client, &[call]);
    let request = world.read(manager).parcel();
    world.write(manager, &[Command::FreeBuffer(request.buffer)]);
    let reply = world.reply(manager, &Parcel::bytes(b"y"));
    world.write(manager, &[reply]);
    let answer = world.woken(client).parcel();
    assert_eq!(world.data(client, &answer), b"y");
}

#[test]
fn a_buffer_marked_for_it_is_cleared_when_freed() {
    let (mut world, manager, [client]) = World::with_manager();
    let (data, _) = world.transaction(
        client,
        CallHead { handle: 0, code: 1, flags: TF_CLEAR_BUF },
        &Parcel::bytes(&[7; 24]),
    );
    let call = Command::Transaction { data, buffers_size: None };
    world.write(client, &[call]);
    let request = world.read(manager).parcel();
    assert_eq!(world.mapped(manager, request.buffer, 24), [7; 24]);
    world.write(manager, &[Command::FreeBuffer(request.buffer)]);
    assert_eq!(world.mapped(manager, request.buffer, 24), [0; 24]);
    assert_eq!(world.mapped(manager, request.buffer + 24, 8), [0xee; 8], "nothing else is");
}

#[test]
fn dropping_surplus_references_does_not_affect_other_processes() {
    let (mut world, manager, [owner, client]) = World::with_manager();
    let handle = world.share(owner, 0x10, manager, client);
    let call = world.oneway(owner, 0, 0, &Parcel::default().binder(0x10));
    world.write(owner, &[call]);
    let request = world.read(manager).parcel();
    let held = world.objects(manager, &request)[0].handle();
    // The manager drops the count that its buffer holds, then frees the buffer.
    world.write(manager, &[Command::Release(held), Command::Release(held)]);
    world.write(manager, &[Command::FreeBuffer(request.buffer)]);
    let call = world.oneway(client, handle, 3, &Parcel::default());
    world.write(client, &[call]);
    assert_eq!(world.read(owner).work_returns(), [Return::TransactionComplete]);
    let found = [world.read(owner), world.read(owner)]
        .iter()
        .filter(|seen| seen.result.is_ok())
        .any(|seen| seen.returns.iter().any(|r| parcel_of(r).is_some_and(|p| p.code == 3)));
    assert!(found);
}

#[test]
fn translated_objects_do_not_come_from_the_receivers_mapping() {
    let (mut world, manager, [owner]) = World::with_manager();
    let call = world.oneway(owner, 0, 0, &Parcel::default().binder(0x10));
    world.write(owner, &[call]);
    let request = world.read(manager).parcel();
    // The receiver overwrites the object and its offsets, then frees the buffer.
    let offset = request.buffer - 0x7000_0000_0000;
    binder_driver::Mappings::store(&mut world.host, manager.process, offset, &[0xff; 32]).unwrap();
    world.write(manager, &[Command::FreeBuffer(request.buffer)]);
    assert_eq!(world.driver.snapshot().contexts[0].processes[0].handles, []);
}

#[test]
fn a_thread_that_never_reads_cannot_queue_without_end() {
    let (mut world, client) = world_with_large_mapping();
    let calls = encode(&vec![world.oneway(client, 0, 0, &Parcel::default()); 40_000]);
    let mut sent = Vec::new();
    for _ in 0..2 {
        let bwr = place_commands(&mut world, client, &calls);
        let seen = world.ioctl(client, bwr, Waiting::Refused);
        assert_eq!(seen.result, Ok(()));
        sent.push(seen.bwr.write_consumed / 68);
    }
    assert_eq!(sent, [40_000, 25_537], "65,536 and the one that fails");
    let error = world.driver.extended_error(client).unwrap();
    assert_eq!(error.param, -Errno::ENOMEM.code());
}
