//! Nodes, references, handles, and objects in parcels.

use binder_driver::Errno;
use binder_uapi::*;

use crate::common::*;

/// The owner sends its object to the manager; returns the manager's handle and the buffer that
/// holds it.
fn send_object(world: &mut World, owner: Caller, manager: Caller, ty: u32) -> (u32, u64) {
    let parcel = Parcel::default().flat(ty, 0x10, cookie_of(0x10));
    let call = world.oneway(owner, 0, 0, &parcel);
    world.write(owner, &[call]);
    let request = world.read(manager).parcel();
    (world.objects(manager, &request)[0].handle(), request.buffer)
}
use binder_driver::Caller;

#[test]
fn a_sent_object_arrives_as_a_handle_and_its_owner_is_notified() {
    let (mut world, manager, [owner]) = World::with_manager();
    let call = world.oneway(owner, 0, 0, &Parcel::default().binder(0x10));
    let node = name_of(0x10);
    let seen = world.run(owner, &[call]);
    let returns = [Return::IncRefs(node), Return::Acquire(node), Return::TransactionComplete];
    assert_eq!(seen.work_returns(), returns);
    let request = world.read(manager).parcel();
    let object = world.objects(manager, &request)[0];
    assert_eq!((object.ty, object.binder, object.cookie), (BINDER_TYPE_HANDLE, 1, 0));
}

#[test]
fn a_weak_object_arrives_weak() {
    let (mut world, manager, [owner]) = World::with_manager();
    let parcel = Parcel::default().flat(BINDER_TYPE_WEAK_BINDER, 0x10, 3);
    let call = world.oneway(owner, 0, 0, &parcel);
    let seen = world.run(owner, &[call]);
    let node = BinderPtrCookie { ptr: 0x10, cookie: 3 };
    assert_eq!(seen.work_returns(), [Return::IncRefs(node), Return::TransactionComplete]);
    let request = world.read(manager).parcel();
    let object = world.objects(manager, &request)[0];
    assert_eq!((object.ty, object.handle()), (BINDER_TYPE_WEAK_HANDLE, 1));
    // A weak handle cannot be called or made strong.
    let call = world.call(manager, 1, &Parcel::default());
    assert_eq!(
        world.run(manager, &[Command::Acquire(1), call]).work_returns(),
        [Return::FailedReply]
    );
}

#[test]
fn the_owner_is_notified_of_the_last_reference_when_the_buffer_is_freed() {
    let (mut world, manager, [owner]) = World::with_manager();
    let (_, buffer) = send_object(&mut world, owner, manager, BINDER_TYPE_BINDER);
    let seen = world.read(owner);
    world.run_bookkeeping(owner, &seen);
    world.write(manager, &[Command::FreeBuffer(buffer)]);
    let node = name_of(0x10);
    assert_eq!(world.read(owner).work_returns(), [Return::Release(node), Return::DecRefs(node)]);
    assert_eq!(world.driver.snapshot().contexts[0].processes[1].nodes, []);
}

#[test]
fn an_acquired_handle_outlives_its_buffer() {
    let (mut world, manager, [owner]) = World::with_manager();
    let (handle, buffer) = send_object(&mut world, owner, manager, BINDER_TYPE_BINDER);
    let seen = world.read(owner);
    world.run_bookkeeping(owner, &seen);
    let keep = [Command::IncRefs(handle), Command::Acquire(handle), Command::FreeBuffer(buffer)];
    world.write(manager, &keep);
    assert_eq!(world.read(owner).result, Err(Errno::EAGAIN));
    world.write(manager, &[Command::Release(handle)]);
    let node = name_of(0x10);
    assert_eq!(world.read(owner).work_returns(), [Return::Release(node)]);
    world.write(manager, &[Command::DecRefs(handle)]);
    assert_eq!(world.read(owner).work_returns(), [Return::DecRefs(node)]);
}

#[test]
fn counts_restored_before_the_owner_reads_are_not_reported() {
    let (mut world, manager, [owner]) = World::with_manager();
    let (_, buffer) = send_object(&mut world, owner, manager, BINDER_TYPE_BINDER);
    let seen = world.read(owner);
    world.run_bookkeeping(owner, &seen);
    world.write(manager, &[Command::FreeBuffer(buffer)]);
    let (_, buffer) = send_object(&mut world, owner, manager, BINDER_TYPE_BINDER);
    assert_eq!(world.read(owner).work_returns(), [Return::TransactionComplete]);
    world.write(manager, &[Command::FreeBuffer(buffer)]);
    assert_eq!(world.read(owner).work_returns().len(), 2);
}

#[test]
fn an_object_never_reported_to_its_owner_is_removed_silently() {
    let (mut world, manager, [owner]) = World::with_manager();
    let (_, buffer) = send_object(&mut world, owner, manager, BINDER_TYPE_BINDER);
    world.write(manager, &[Command::FreeBuffer(buffer)]);
    assert_eq!(world.read(owner).work_returns(), [Return::TransactionComplete]);
    assert_eq!(world.driver.snapshot().contexts[0].processes[1].nodes, []);
}

#[test]
fn the_acknowledgement_keeps_the_node_until_it_comes() {
    let (mut world, manager, [owner]) = World::with_manager();
    let (_, buffer) = send_object(&mut world, owner, manager, BINDER_TYPE_BINDER);
    world.read(owner);
    world.write(manager, &[Command::FreeBuffer(buffer)]);
    assert_eq!(world.read(owner).result, Err(Errno::EAGAIN));
    let node = name_of(0x10);
    let wrong = BinderPtrCookie { cookie: 0, ..node };
    world.write(owner, &[Command::AcquireDone(wrong)]);
    assert_eq!(world.read(owner).result, Err(Errno::EAGAIN), "another cookie is ignored");
    world.write(owner, &[Command::AcquireDone(node), Command::AcquireDone(node)]);
    assert_eq!(world.read(owner).work_returns(), [Return::Release(node)]);
    world.write(owner, &[Command::IncRefsDone(node)]);
    assert_eq!(world.read(owner).work_returns(), [Return::DecRefs(node)]);
}

#[test]
fn a_handle_sent_to_its_owner_is_the_owners_object() {
    let (mut world, manager, [owner]) = World::with_manager();
    let call = world.call(owner, 0, &Parcel::default().binder(0x10));
    world.write(owner, &[call]);
    let request = world.read(manager).parcel();
    let handle = world.objects(manager, &request)[0].handle();
    let reply = world.reply(manager, &Parcel::default().handle(handle));
    world.write(manager, &[reply, Command::FreeBuffer(request.buffer)]);
    let answer = world.read(owner).parcel();
    let object = world.objects(owner, &answer)[0];
    let found = (object.ty, object.binder, object.cookie);
    assert_eq!(found, (BINDER_TYPE_BINDER, 0x10, cookie_of(0x10)));
}

#[test]
fn a_handle_sent_on_becomes_the_receivers_own() {
    let (mut world, manager, [owner, client]) = World::with_manager();
    // The client's first handle is that of another object, so that the numbers differ.
    assert_eq!(world.share(owner, 0x10, manager, client), 1);
    assert_eq!(world.share(owner, 0x20, manager, client), 2);
    assert_eq!(world.driver.snapshot().contexts[0].processes[0].handles, []);
}

#[test]
fn the_lowest_free_handle_is_given() {
    let (mut world, manager, [owner, client]) = World::with_manager();
    for handle in 1..=5 {
        assert_eq!(world.share(owner, 0x10 * u64::from(handle), manager, client), handle);
    }
    world.write(client, &[Command::Release(4), Command::Release(2)]);
    assert_eq!(world.share(owner, 0x1000, manager, client), 2);
    assert_eq!(world.share(owner, 0x2000, manager, client), 4);
    assert_eq!(world.share(owner, 0x3000, manager, client), 6);
}

#[test]
fn the_same_object_keeps_its_handle() {
    let (mut world, manager, [owner, client]) = World::with_manager();
    let first = world.share(owner, 0x10, manager, client);
    assert_eq!(world.share(owner, 0x10, manager, client), first);
    let held = &world.driver.snapshot().contexts[0].processes[2].handles;
    assert_eq!((held.len(), held[0].strong), (1, 2));
}

#[test]
fn handle_zero_is_kept_for_the_manager() {
    let (mut world, _, [client]) = World::with_manager();
    world.write(client, &[Command::IncRefs(0), Command::Acquire(0)]);
    let held = world.driver.snapshot().contexts[0].processes[1].handles.clone();
    assert_eq!((held[0].handle, held[0].strong, held[0].weak), (0, 1, 1));
    world.write(client, &[Command::Release(0), Command::DecRefs(0)]);
    assert_eq!(world.driver.snapshot().contexts[0].processes[1].handles, []);
}

#[test]
fn a_cookie_that_differs_from_the_nodes_fails_the_call() {
    let (mut world, manager, [owner]) = World::with_manager();
    send_object(&mut world, owner, manager, BINDER_TYPE_BINDER);
    world.read(owner);
    let parcel = Parcel::default().flat(BINDER_TYPE_BINDER, 0x10, 1);
    let call = world.call(owner, 0, &parcel);
    assert_eq!(world.run(owner, &[call]).work_returns(), [Return::FailedReply]);
}

#[test]
fn a_failed_call_takes_back_what_its_objects_had_taken() {
    let (mut world, manager, [owner]) = World::with_manager();
    let parcel = Parcel::default().binder(0x10).binder(0x20).handle(55);
    let call = world.call(owner, 0, &parcel);
    let seen = world.run(owner, &[call]);
    assert_eq!(seen.work_returns(), [Return::FailedReply]);
    let snapshot = world.driver.snapshot();
    assert_eq!(snapshot.contexts[0].processes[1].nodes, []);
    assert_eq!(snapshot.contexts[0].processes[0].handles, []);
    assert_eq!(world.read(manager).result, Err(Errno::EAGAIN));
}

#[test]
fn a_buffer_pins_the_node_that_was_called() {
    let (mut world, manager, [owner, client]) = World::with_manager();
    let handle = world.share(owner, 0x10, manager, client);
    let call = world.oneway(client, handle, 0, &Parcel::default());
    world.write(client, &[call, Command::Release(handle)]);
    let request = world.read(owner).parcel();
    assert_eq!(request.target, 0x10);
    let node = name_of(0x10);
    assert_eq!(world.read(owner).result, Err(Errno::EAGAIN));
    world.write(owner, &[Command::FreeBuffer(request.buffer)]);
    assert_eq!(world.read(owner).work_returns(), [Return::Release(node), Return::DecRefs(node)]);
}

#[test]
fn references_to_a_dead_node_can_be_passed_on_but_not_called() {
    let (mut world, manager, [owner, client]) = World::with_manager();
    let handle = world.share(owner, 0x10, manager, client);
    world.release(owner);
    let call = world.call(client, handle, &Parcel::default());
    assert_eq!(world.run(client, &[call]).work_returns(), [Return::DeadReply]);
    let pass = world.oneway(client, 0, 0, &Parcel::default().handle(handle));
    assert_eq!(world.run(client, &[pass]).work_returns(), [Return::TransactionComplete]);
    let request = world.read(manager).parcel();
    let passed = world.objects(manager, &request)[0].handle();
    let call = world.call(manager, passed, &Parcel::default());
    assert_eq!(world.run(manager, &[call]).work_returns(), [Return::DeadReply]);
    assert_eq!(world.driver.snapshot().dead_nodes, 1);
    world.write(manager, &[Command::FreeBuffer(request.buffer)]);
    world.write(client, &[Command::Release(handle)]);
    assert_eq!(world.driver.snapshot().dead_nodes, 0);
}

#[test]
fn a_thread_that_exits_leaves_its_node_work_to_another() {
    let (mut world, _, [owner]) = World::with_manager();
    let worker = Caller { tid: 11, ..owner };
    let call = world.oneway(worker, 0, 0, &Parcel::default().binder(0x10));
    world.write(worker, &[call]);
    world.thread_exit(worker);
    let node = name_of(0x10);
    assert_eq!(world.read(owner).work_returns(), [Return::IncRefs(node), Return::Acquire(node)]);
}
