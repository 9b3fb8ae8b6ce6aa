//! Death notifications.

use binder_driver::{Caller, Errno};
use binder_uapi::*;

use crate::common::*;

/// Manager, an owner, a client with a handle to the owner's object.
fn watched() -> (World, Caller, Caller, u32) {
    let (mut world, manager, [owner, client]) = World::with_manager();
    let handle = world.share(owner, 0x10, manager, client);
    (world, owner, client, handle)
}

fn request(handle: u32, cookie: u64) -> Command {
    Command::RequestDeathNotification(BinderHandleCookie { handle, cookie })
}

fn clear(handle: u32, cookie: u64) -> Command {
    Command::ClearDeathNotification(BinderHandleCookie { handle, cookie })
}

#[test]
fn the_death_of_a_watched_owner_is_reported_once() {
    let (mut world, owner, client, handle) = watched();
    world.park(client, &[request(handle, 7)]);
    world.release(owner);
    assert_eq!(world.woken(client).work_returns(), [Return::DeadBinder(7)]);
    assert_eq!(world.run(client, &[Command::DeadBinderDone(7)]).result, Err(Errno::EAGAIN));
}

#[test]
fn a_watcher_of_the_manager_is_notified_too() {
    let (mut world, manager, [client]) = World::with_manager();
    world.write(client, &[Command::Acquire(0), request(0, 9)]);
    world.release(manager);
    assert_eq!(world.read(client).work_returns(), [Return::DeadBinder(9)]);
}

#[test]
fn a_request_for_a_dead_node_fires_at_once() {
    let (mut world, owner, client, handle) = watched();
    world.release(owner);
    assert_eq!(world.run(client, &[request(handle, 7)]).work_returns(), [Return::DeadBinder(7)]);
}

#[test]
fn a_second_request_for_one_handle_is_ignored() {
    let (mut world, owner, client, handle) = watched();
    world.write(client, &[request(handle, 7), request(handle, 8), request(99, 9)]);
    world.release(owner);
    assert_eq!(world.read(client).work_returns(), [Return::DeadBinder(7)]);
    assert_eq!(world.read(client).result, Err(Errno::EAGAIN));
}

#[test]
fn a_withdrawn_request_is_confirmed_and_never_fires() {
    let (mut world, owner, client, handle) = watched();
    let seen = world.run(client, &[request(handle, 7), clear(handle, 6), clear(handle, 7)]);
    assert_eq!(seen.work_returns(), [Return::ClearDeathNotificationDone(7)]);
    world.release(owner);
    assert_eq!(world.read(client).result, Err(Errno::EAGAIN));
}

#[test]
fn a_request_withdrawn_after_the_death_is_confirmed_after_the_acknowledgement() {
    let (mut world, owner, client, handle) = watched();
    world.write(client, &[request(handle, 7)]);
    world.release(owner);
    // Queued but not read.
    world.write(client, &[clear(handle, 7)]);
    assert_eq!(world.read(client).work_returns(), [Return::DeadBinder(7)]);
    assert_eq!(world.read(client).result, Err(Errno::EAGAIN));
    let seen = world.run(client, &[Command::DeadBinderDone(7)]);
    assert_eq!(seen.work_returns(), [Return::ClearDeathNotificationDone(7)]);
}

#[test]
fn a_request_withdrawn_between_notification_and_acknowledgement_is_confirmed_too() {
    let (mut world, owner, client, handle) = watched();
    world.write(client, &[request(handle, 7)]);
    world.release(owner);
    world.read(client);
    assert_eq!(world.run(client, &[clear(handle, 7)]).result, Err(Errno::EAGAIN));
    let seen = world.run(client, &[Command::DeadBinderDone(7)]);
    assert_eq!(seen.work_returns(), [Return::ClearDeathNotificationDone(7)]);
}

#[test]
fn a_request_withdrawn_after_the_acknowledgement_is_confirmed_at_once() {
    let (mut world, owner, client, handle) = watched();
    world.write(client, &[request(handle, 7)]);
    world.release(owner);
    world.read(client);
    let seen = world.run(client, &[Command::DeadBinderDone(7), clear(handle, 7)]);
    assert_eq!(seen.work_returns(), [Return::ClearDeathNotificationDone(7)]);
}

#[test]
fn an_unknown_acknowledgement_is_ignored() {
    let (mut world, _, client, handle) = watched();
    world.write(client, &[request(handle, 7)]);
    let seen = world.run(client, &[Command::DeadBinderDone(7), Command::DeadBinderDone(1)]);
    assert_eq!(seen.result, Err(Errno::EAGAIN));
}

#[test]
fn a_notification_goes_with_the_last_reference() {
    let (mut world, owner, client, handle) = watched();
    world.write(client, &[request(handle, 7), Command::Release(handle)]);
    world.release(owner);
    assert_eq!(world.read(client).result, Err(Errno::EAGAIN));
}

#[test]
fn a_loopers_confirmation_goes_to_itself_and_another_threads_to_the_process() {
    let (mut world, _, client, handle) = watched();
    world.write(client, &[request(handle, 7), clear(handle, 7)]);
    let other = Caller { tid: 77, ..client };
    assert_eq!(world.read(other).work_returns(), [Return::ClearDeathNotificationDone(7)]);
    world.write(client, &[Command::EnterLooper, request(handle, 8), clear(handle, 8)]);
    assert_eq!(world.read(other).result, Err(Errno::EAGAIN));
    assert_eq!(world.read(client).work_returns(), [Return::ClearDeathNotificationDone(8)]);
}

#[test]
fn a_death_notification_ends_a_read() {
    let (mut world, owner, client, handle) = watched();
    world.write(client, &[request(handle, 7), Command::Acquire(0), request(0, 8)]);
    world.release(owner);
    let call = world.oneway(client, 0, 0, &Parcel::default());
    let other = Caller { tid: 77, ..client };
    world.write(other, &[call]);
    assert_eq!(world.read(client).work_returns(), [Return::DeadBinder(7)]);
}

#[test]
fn a_watcher_that_dies_leaves_nothing() {
    let (mut world, owner, client, handle) = watched();
    world.write(client, &[request(handle, 7)]);
    world.release(client);
    world.release(owner);
    assert_eq!(world.driver.snapshot().dead_nodes, 0);
}
