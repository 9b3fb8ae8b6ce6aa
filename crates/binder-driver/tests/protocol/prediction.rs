//! Parcels that are read together with the commands, at the addresses of the thread's last parcels.

use binder_driver::Caller;
use binder_uapi::*;

use crate::common::*;

/// Number of host calls that have read memory of clients.
#[derive(Debug, Default, PartialEq, Eq)]
struct Reads {
    commands: usize,
    parcels: usize,
    together: usize,
}

fn reads(world: &mut World) -> Reads {
    let mut take = |name| world.host.counts.remove(name).unwrap_or(0);
    Reads { commands: take("read"), parcels: take("read_parcel"), together: take("read_ahead") }
}

/// Sends a one-way call; returns its memory accesses after checking what the server receives.
fn send(world: &mut World, client: Caller, server: Caller, parcel: &Parcel) -> Reads {
    let call = world.oneway(client, 0, 1, parcel);
    send_command(world, client, server, call, &parcel.data)
}

fn send_command(
    world: &mut World,
    client: Caller,
    server: Caller,
    call: Command,
    expected: &[u8],
) -> Reads {
    reads(world);
    world.write(client, &[call]);
    let seen = reads(world);
    let received = world.read(server).parcel();
    assert_eq!(world.data(server, &received), expected);
    world.write(server, &[Command::FreeBuffer(received.buffer)]);
    world.read(client);
    seen
}

const PREDICTED: Reads = Reads { commands: 0, parcels: 0, together: 1 };
const SEPARATE: Reads = Reads { commands: 1, parcels: 1, together: 0 };
const WRONG: Reads = Reads { commands: 0, parcels: 1, together: 1 };

#[test]
fn the_third_parcel_at_the_same_addresses_is_read_with_its_command() {
    let (mut world, manager, [client]) = World::with_manager();
    let parcel = |byte| Parcel::bytes(&[byte; 100]).flat(BINDER_TYPE_BINDER, 8, cookie_of(8));
    for (byte, expected) in [(1, SEPARATE), (2, SEPARATE), (3, PREDICTED), (4, PREDICTED)] {
        let call = world.oneway(client, 0, 1, &parcel(byte));
        reads(&mut world);
        world.write(client, &[call]);
        assert_eq!(reads(&mut world), expected);
        let received = world.read(manager).parcel();
        assert_eq!(world.data(manager, &received)[..100], [byte; 100]);
        world.write(manager, &[Command::FreeBuffer(received.buffer)]);
    }
}

#[test]
fn parcels_of_all_sizes_arrive_as_they_were_sent() {
    let (mut world, manager, [client]) = World::with_manager();
    let bytes: Vec<u8> = (0..1100_u32).map(|i| (i % 251) as u8).collect();
    // The same addresses, as long as the size in steps of 64 bytes stays.
    let sizes = [64, 64, 60, 7, 64, 63, 0, 0, 0, 1, 2, 1, 500, 500, 1000, 500, 3, 3, 3, 0, 3];
    for (round, size) in sizes.into_iter().enumerate() {
        send(&mut world, client, manager, &Parcel::bytes(&bytes[round..round + size]));
    }
}

#[test]
fn a_shorter_parcel_with_objects_is_complete() {
    let (mut world, manager, [client]) = World::with_manager();
    // Both sizes end up at the same addresses: the data takes 64 bytes in the client's memory.
    for len in [40, 40, 32, 16, 40, 8, 0] {
        let parcel = Parcel::bytes(&vec![7; len]).flat(BINDER_TYPE_BINDER, 8, cookie_of(8));
        let call = world.oneway(client, 0, 1, &parcel);
        world.write(client, &[call]);
        let received = world.read(manager).parcel();
        let data = world.data(manager, &received);
        assert_eq!((data.len(), &data[..len]), (len + 24, &vec![7; len][..]));
        assert_eq!(received.offsets - received.buffer, len as u64 + 24);
        assert_eq!(world.objects(manager, &received)[0].ty, BINDER_TYPE_HANDLE);
        world.write(manager, &[Command::FreeBuffer(received.buffer)]);
    }
}

#[test]
fn a_longer_parcel_is_read_again() {
    let (mut world, manager, [client]) = World::with_manager();
    for _ in 0..3 {
        send(&mut world, client, manager, &Parcel::bytes(b"short"));
    }
    assert_eq!(send(&mut world, client, manager, &Parcel::bytes(b"a little longer")), WRONG);
    assert_eq!(send(&mut world, client, manager, &Parcel::bytes(b"a little longer")), SEPARATE);
    assert_eq!(send(&mut world, client, manager, &Parcel::bytes(b"a little longer")), PREDICTED);
}

#[test]
fn a_parcel_at_another_address_is_read_there() {
    let (mut world, manager, [client]) = World::with_manager();
    for _ in 0..3 {
        send(&mut world, client, manager, &Parcel::bytes(b"at first"));
    }
    // Predicted memory that exists, and has other contents.
    world.place(client, b"other...");
    let expected = b"moved";
    let call = world.oneway(client, 0, 1, &Parcel::bytes(expected));
    assert_eq!(send_command(&mut world, client, manager, call, expected), WRONG);
    assert_eq!(send(&mut world, client, manager, &Parcel::bytes(b"at first")), SEPARATE);
}

#[test]
fn predicted_memory_that_is_unmapped_does_not_fail_a_call() {
    let (mut world, manager, [client]) = World::with_manager();
    for _ in 0..3 {
        send(&mut world, client, manager, &Parcel::bytes(&[1; 500]));
    }
    let call = world.oneway(client, 0, 1, &Parcel::bytes(b"short"));
    assert_eq!(send_command(&mut world, client, manager, call, b"short"), WRONG);
}

#[test]
fn a_place_in_the_receive_buffer_is_predicted_while_a_message_is_there() {
    let (mut world, manager, [client, middle]) = World::with_manager();
    let handle = world.share(middle, 8, manager, client);
    let forward = |world: &mut World, parcel: &Parcel, buffer: Option<u64>| {
        let mut command = world.oneway(middle, 0, 1, parcel);
        if let (Some(at), Command::Transaction { data, .. }) = (buffer, &mut command) {
            data.buffer = at;
            world.host.memory.insert((middle.process, at), parcel.data.clone());
        }
        send_command(world, middle, manager, command, &parcel.data)
    };
    for expected in [SEPARATE, SEPARATE, PREDICTED] {
        let call = world.oneway(client, handle, 1, &Parcel::bytes(&[4; 64]));
        world.write(client, &[call]);
        world.read(client);
        let received = world.read(middle).parcel();
        let same = Parcel::bytes(&world.data(middle, &received));
        assert_eq!(forward(&mut world, &same, Some(received.buffer)), expected);
        world.write(middle, &[Command::FreeBuffer(received.buffer)]);
    }
    let own = Parcel::bytes(b"from elsewhere");
    assert_eq!(forward(&mut world, &own, None), SEPARATE, "the message is freed");
}

#[test]
fn only_the_first_parcel_of_a_write_is_predicted() {
    let (mut world, manager, [client]) = World::with_manager();
    for _ in 0..3 {
        send(&mut world, client, manager, &Parcel::bytes(b"1st"));
    }
    let calls = [b"1st", b"2nd"].map(|bytes| world.oneway(client, 0, 1, &Parcel::bytes(bytes)));
    reads(&mut world);
    world.write(client, &calls);
    assert_eq!(reads(&mut world), WRONG);
    for expected in [b"1st", b"2nd"] {
        let received = world.read(manager).parcel();
        assert_eq!(world.data(manager, &received), expected);
        world.write(manager, &[Command::FreeBuffer(received.buffer)]);
    }
}

#[test]
fn commands_without_a_parcel_read_nothing_ahead() {
    let (mut world, manager, [client]) = World::with_manager();
    for _ in 0..3 {
        send(&mut world, client, manager, &Parcel::bytes(b"parcel"));
    }
    reads(&mut world);
    world.write(client, &[Command::EnterLooper, Command::Acquire(0)]);
    assert_eq!(reads(&mut world), Reads { commands: 1, parcels: 0, together: 0 });
}

#[test]
fn memory_that_is_late_ends_the_prediction() {
    let (mut world, manager, [client]) = World::with_manager();
    for _ in 0..3 {
        send(&mut world, client, manager, &Parcel::bytes(b"parcel"));
    }
    world.host.late.insert(client.process);
    let reads = send(&mut world, client, manager, &Parcel::bytes(b"parcel"));
    // The first attempt reads both together, the others do not.
    assert_eq!(reads, Reads { commands: 2, parcels: 2, together: 1 });
}

#[test]
fn a_large_parcel_is_not_read_ahead() {
    let (mut world, manager, [client]) = World::with_manager();
    let large = Parcel::bytes(&vec![5; 130 << 10]);
    world.map(manager, 1 << 20);
    for _ in 0..3 {
        assert_eq!(send(&mut world, client, manager, &large), SEPARATE);
    }
}
