//! One-way calls.

use binder_driver::{Caller, Errno, SpamDetection};
use binder_uapi::*;

use crate::common::*;

#[test]
fn a_oneway_call_completes_at_once_and_has_no_sender_pid() {
    let (mut world, manager, [client]) = World::with_manager();
    let call = world.oneway(client, 0, 7, &Parcel::bytes(b"data"));
    assert_eq!(world.run(client, &[call]).work_returns(), [Return::TransactionComplete]);
    let request = world.read(manager).parcel();
    assert_eq!((request.code, request.sender_pid, request.sender_euid), (7, 0, 1000));
    assert_eq!(world.data(manager, &request), b"data");
    let reply = world.reply(manager, &Parcel::default());
    assert_eq!(
        world.run(manager, &[reply]).work_returns(),
        [Return::FailedReply],
        "no thread waits"
    );
}

#[test]
fn oneway_calls_to_one_node_are_delivered_in_order_each_after_the_last_is_freed() {
    let (mut world, manager, [client]) = World::with_manager();
    let calls: Vec<_> = (0..4).map(|i| world.oneway(client, 0, i, &Parcel::default())).collect();
    world.write(client, &calls);
    for code in 0..4 {
        let request = world.read(manager).parcel();
        assert_eq!(request.code, code);
        let other = Caller { tid: 2, ..manager };
        assert_eq!(world.read(other).result, Err(Errno::EAGAIN), "the next one waits");
        world.write(manager, &[Command::FreeBuffer(request.buffer)]);
    }
    assert_eq!(world.read(manager).result, Err(Errno::EAGAIN));
}

#[test]
fn oneway_calls_to_different_nodes_do_not_wait_for_each_other() {
    let (mut world, manager, [owner, client]) = World::with_manager();
    let handles = [0x10, 0x20].map(|ptr| world.share(owner, ptr, manager, client));
    let calls = handles.map(|handle| world.oneway(client, handle, 0, &Parcel::default()));
    world.write(client, &calls);
    assert_eq!(world.read(owner).parcel().target, 0x10);
    assert_eq!(world.read(Caller { tid: 2, ..owner }).parcel().target, 0x20);
}

#[test]
fn a_sync_call_overtakes_waiting_oneway_calls() {
    let (mut world, manager, [client]) = World::with_manager();
    let calls: Vec<_> = (0..3).map(|i| world.oneway(client, 0, i, &Parcel::default())).collect();
    world.write(client, &calls);
    let call = world.call(client, 0, &Parcel::bytes(b"sync"));
    world.write(client, &[call]);
    assert_eq!(world.read(manager).parcel().code, 0);
    let second = world.read(manager).parcel();
    assert_eq!(world.data(manager, &second), b"sync");
}

#[test]
fn oneway_calls_may_take_half_of_the_mapping() {
    let (mut world, manager, [client]) = World::with_manager();
    let half = vec![1; MAPPING as usize / 2];
    let call = world.oneway(client, 0, 0, &Parcel::bytes(&half));
    assert_eq!(world.run(client, &[call]).work_returns(), [Return::TransactionComplete]);
    let more = world.oneway(client, 0, 0, &Parcel::default());
    assert_eq!(world.run(client, &[more]).work_returns(), [Return::FailedReply]);
    let error = world.driver.extended_error(client).unwrap();
    assert_eq!(error.param, -Errno::ENOSPC.code());
    // Sync calls still have the other half.
    let call = world.call(client, 0, &Parcel::bytes(&half));
    world.write(client, &[call]);
    let first = world.read(manager).parcel();
    world.read(manager).parcel();
    world.write(manager, &[Command::FreeBuffer(first.buffer)]);
    let other = Caller { tid: 11, ..client };
    let again = world.oneway(other, 0, 0, &Parcel::bytes(&half));
    assert_eq!(world.run(other, &[again]).work_returns(), [Return::TransactionComplete]);
}

#[test]
fn a_flood_is_reported_once_to_a_sender_with_spam_detection() {
    let (mut world, _, [client]) = World::with_manager();
    world.driver.enable_oneway_spam_detection(client.process, SpamDetection::On).unwrap();
    let chunk = Parcel::bytes(&[0; 2048]);
    let mut suspects = Vec::new();
    // 32 KiB of async space: the 13th leaves 6 KiB, less than a tenth of 64 KiB.
    for i in 0..16 {
        let call = world.oneway(client, 0, 0, &chunk);
        let seen = world.run(client, &[call]);
        if seen.work_returns() == [Return::OnewaySpamSuspect] {
            suspects.push(i);
        }
    }
    assert_eq!(suspects, [12]);
}

#[test]
fn a_flood_is_not_reported_to_a_sender_without_spam_detection() {
    let (mut world, _, [client]) = World::with_manager();
    let chunk = Parcel::bytes(&[0; 2048]);
    for _ in 0..16 {
        let call = world.oneway(client, 0, 0, &chunk);
        assert_eq!(world.run(client, &[call]).work_returns(), [Return::TransactionComplete]);
    }
}

#[test]
fn a_oneway_call_lost_by_a_faulting_reader_lets_the_next_one_go() {
    let (mut world, manager, [client]) = World::with_manager();
    let calls: Vec<_> = (0..2).map(|i| world.oneway(client, 0, i, &Parcel::default())).collect();
    assert_eq!(world.read(manager).result, Err(Errno::EAGAIN), "its buffer takes returns");
    world.write(client, &calls);
    world.host.faulting.insert(manager.process);
    assert_eq!(world.read(manager).result, Err(Errno::EFAULT));
    world.host.faulting.clear();
    assert_eq!(world.read(manager).parcel().code, 1);
}

#[test]
fn a_oneway_call_of_a_thread_that_exits_unread_goes_to_another() {
    let (mut world, manager, [client]) = World::with_manager();
    let worker = Caller { tid: 2, ..manager };
    world.park(worker, &[Command::EnterLooper]);
    let call = world.oneway(client, 0, 5, &Parcel::default());
    world.write(client, &[call]);
    world.thread_exit(worker);
    assert_eq!(world.read(manager).parcel().code, 5);
}

#[test]
fn a_failed_oneway_call_leaves_the_order_alone() {
    let (mut world, manager, [client]) = World::with_manager();
    let first = world.oneway(client, 0, 1, &Parcel::default());
    let bad = world.oneway(client, 0, 2, &Parcel::default().handle(99));
    world.run(client, &[first, bad]);
    world.read(client);
    let third = world.oneway(client, 0, 3, &Parcel::default());
    world.write(client, &[third]);
    let request = world.read(manager).parcel();
    assert_eq!(request.code, 1);
    assert_eq!(world.read(manager).result, Err(Errno::EAGAIN));
    world.write(manager, &[Command::FreeBuffer(request.buffer)]);
    assert_eq!(world.read(manager).parcel().code, 3);
}
