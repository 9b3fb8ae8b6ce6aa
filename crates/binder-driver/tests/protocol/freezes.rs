//! Freezing and its notifications.

use binder_driver::*;
use binder_uapi::*;

use crate::common::*;

fn request(handle: u32, cookie: u64) -> BinderHandleCookie {
    BinderHandleCookie { handle, cookie }
}

#[test]
fn a_freeze_with_a_timeout_waits_for_the_call_being_served() {
    let (mut world, manager, [client, freezer]) = World::with_manager();
    let call = world.call(client, 0, &Parcel::bytes(b"call"));
    world.park(client, &[call]);
    world.read(manager).parcel();
    let Freeze::Waiting(id) = world.freeze(freezer, 1, 100) else { panic!("no wait") };
    assert_eq!(world.driver.next_wake(), None, "nothing has changed yet");
    let reply = world.reply(manager, &Parcel::default());
    world.write(manager, &[reply]);
    world.woken(client).parcel();
    assert_eq!(world.frozen, [(id, Ok(()))]);
    assert!(world.driver.snapshot().contexts[0].processes[0].frozen);
}

#[test]
fn a_freeze_whose_time_is_over_leaves_the_process_as_it_was() {
    let (mut world, manager, [client, freezer]) = World::with_manager();
    let call = world.call(client, 0, &Parcel::bytes(b"call"));
    world.park(client, &[call]);
    world.read(manager).parcel();
    let Freeze::Waiting(id) = world.freeze(freezer, 1, 100) else { panic!("no wait") };
    assert_eq!(world.driver.freeze_timed_out(id), Err(Errno::EAGAIN));
    assert_eq!(world.driver.freeze_timed_out(id), Err(Errno::EAGAIN), "a stale id is no harm");
    let again = world.call(freezer, 0, &Parcel::bytes(b"call"));
    world.park(freezer, &[again]);
}

#[test]
fn a_signal_gives_up_a_freeze_that_waits() {
    let (mut world, manager, [client, freezer]) = World::with_manager();
    let oneway = world.oneway(client, 0, 1, &Parcel::default());
    world.write(client, &[oneway]);
    let Freeze::Waiting(id) = world.freeze(freezer, 1, 100) else { panic!("no wait") };
    world.driver.freeze_interrupted(id);
    let call = world.call(freezer, 0, &Parcel::default());
    world.park(freezer, &[call]);
    world.read(manager).parcel();
    assert!(world.frozen.is_empty(), "no process is notified any more");
}

#[test]
fn a_freeze_that_waits_ends_with_its_target_and_with_its_caller() {
    let (mut world, manager, [client, freezer, other]) = World::with_manager();
    let oneway = world.oneway(client, 0, 1, &Parcel::default());
    world.write(client, &[oneway]);
    let Freeze::Waiting(_) = world.freeze(freezer, 1, 100) else { panic!("no wait") };
    let Freeze::Waiting(id) = world.freeze(other, 1, 100) else { panic!("no wait") };
    world.release(freezer);
    world.release(manager);
    world.wake();
    assert_eq!(world.frozen, [(id, Ok(()))], "there is nothing left to freeze");
}

#[test]
fn a_thaw_ends_the_freezes_that_wait() {
    let (mut world, _manager, [client, freezer, other]) = World::with_manager();
    let oneway = world.oneway(client, 0, 1, &Parcel::default());
    world.write(client, &[oneway]);
    let Freeze::Waiting(id) = world.freeze(freezer, 1, 100) else { panic!("no wait") };
    assert_eq!(world.thaw(other, 1), Freeze::Done(Ok(())));
    world.wake();
    assert_eq!(world.frozen, [(id, Err(Errno::EAGAIN))]);
}

#[test]
fn an_update_replaces_the_call_queued_for_a_frozen_process() {
    let (mut world, manager, [client]) = World::with_manager();
    assert_eq!(world.freeze(client, 1, 0), Freeze::Done(Ok(())));
    for text in [b"first", b"older", b"newer"] {
        let parcel = Parcel::bytes(text).binder(0x100 + u64::from(text[0]));
        let flags = TF_ONE_WAY | TF_UPDATE_TXN;
        let (data, buffers_size) =
            world.transaction(client, CallHead { handle: 0, code: 7, flags }, &parcel);
        let seen = world.run(client, &[Command::Transaction { data, buffers_size }]);
        assert_eq!(seen.work_returns().last(), Some(&Return::TransactionPendingFrozen), "{seen:?}");
    }
    let buffers = |world: &World| world.driver.snapshot().contexts[0].processes[0].buffers.clone();
    assert_eq!(buffers(&world).count, 2, "the replaced one gave its buffer back");
    assert_eq!(world.thaw(client, 1), Freeze::Done(Ok(())));
    for text in [b"first", b"newer"] {
        let parcel = world.read(manager).parcel();
        assert_eq!(world.data(manager, &parcel)[..5], *text);
        world.write(manager, &[Command::FreeBuffer(parcel.buffer)]);
    }
}

#[test]
fn the_last_state_is_reported_when_several_changes_went_unacknowledged() {
    let (mut world, manager, [owner, watcher]) = World::with_manager();
    let handle = world.share(owner, 0x100, manager, watcher);
    let seen = world.run(watcher, &[Command::RequestFreezeNotification(request(handle, 5))]);
    let state = |is_frozen| {
        Return::FrozenBinder(BinderFrozenStateInfo { cookie: 5, is_frozen, reserved: 0 })
    };
    assert_eq!(seen.work_returns(), [state(0)]);
    assert_eq!(world.freeze(manager, 10, 0), Freeze::Done(Ok(())));
    assert_eq!(world.thaw(manager, 10), Freeze::Done(Ok(())));
    assert_eq!(world.freeze(manager, 10, 0), Freeze::Done(Ok(())));
    let seen = world.run(watcher, &[Command::FreezeNotificationDone(5)]);
    assert_eq!(seen.work_returns(), [state(1)], "once, and the last of them");
    // A failed freeze of a frozen process leaves it thawed, and its watchers are notified.
    let oneway = world.oneway(watcher, handle, 1, &Parcel::default());
    world.run(watcher, &[Command::FreezeNotificationDone(5), oneway]).work_returns();
    assert_eq!(world.freeze(manager, 10, 0), Freeze::Done(Err(Errno::EAGAIN)));
    assert_eq!(world.read(watcher).work_returns(), [state(0)]);
}

#[test]
fn an_acknowledgement_is_that_of_the_oldest_delivery_with_its_cookie() {
    let (mut world, manager, [owner, watcher]) = World::with_manager();
    let state = |is_frozen| {
        Return::FrozenBinder(BinderFrozenStateInfo { cookie: 5, is_frozen, reserved: 0 })
    };
    for ptr in [0x100, 0x200] {
        let handle = world.share(owner, ptr, manager, watcher);
        let seen = world.run(watcher, &[Command::RequestFreezeNotification(request(handle, 5))]);
        assert_eq!(seen.work_returns(), [state(0)]);
    }
    world.write(watcher, &[Command::FreezeNotificationDone(5)]);
    assert_eq!(world.freeze(manager, 10, 0), Freeze::Done(Ok(())));
    assert_eq!(world.read(watcher).work_returns(), [state(1)], "the first, sent again");
    let seen = world.run(watcher, &[Command::FreezeNotificationDone(5)]);
    assert_eq!(seen.work_returns(), [state(1)], "the second, which was sent before that");
}

#[test]
fn a_notification_goes_with_its_reference() {
    let (mut world, manager, [owner, watcher]) = World::with_manager();
    let handle = world.share(owner, 0x100, manager, watcher);
    world.run(watcher, &[Command::RequestFreezeNotification(request(handle, 5))]).work_returns();
    world.write(watcher, &[Command::Release(handle)]);
    assert_eq!(world.freeze(manager, 10, 0), Freeze::Done(Ok(())));
    assert_eq!(world.read(watcher).result, Err(Errno::EAGAIN));
    let done = world.write(watcher, &[Command::FreezeNotificationDone(5)]);
    assert_eq!(done.result, Err(Errno::EINVAL), "nothing is outstanding any more");
}
