//! Quotas of owners.

use binder_driver::*;
use binder_uapi::*;

use crate::common::*;

#[test]
fn an_account_ends_with_the_opens_of_its_owner() {
    let (mut world, manager, [client]) = World::with_manager();
    let call = world.call(client, 0, &Parcel::default().binder(0x100).binder(0x200));
    world.park(client, &[call]);
    let parcel = world.read(manager).parcel();
    let handle = world.objects(manager, &parcel)[0].handle();
    let request = BinderHandleCookie { handle, cookie: 1 };
    world.write(
        manager,
        &[Command::RequestDeathNotification(request), Command::RequestFreezeNotification(request)],
    );
    world.release(client);
    world.release(manager);
    assert!(world.driver.is_empty(), "{:?}", world.driver.snapshot());
}

const QUOTA: u64 = 24 << 10;
const MESSAGE: [u8; 8 << 10] = [7; 8 << 10];

fn memory_of(world: &World, caller: Caller) -> Option<OwnerMemory> {
    let owner = Owner::User(Uid(caller.tid));
    world.driver.owner_memory().find(|memory| memory.owner == owner)
}

#[test]
fn messages_count_for_the_sender_until_a_thread_takes_them() {
    let (mut world, manager, [client]) = World::with_manager();
    let before = memory_of(&world, manager).unwrap();
    let oneway = world.oneway(client, 0, 1, &Parcel::bytes(&MESSAGE));
    world.write(client, &[oneway]);
    assert!(memory_of(&world, client).unwrap().queued_bytes >= MESSAGE.len() as u64);
    assert!(memory_of(&world, manager).unwrap().total_bytes() < before.total_bytes() + 4096);
    let request = world.read(manager).parcel();
    assert_eq!(memory_of(&world, client).unwrap().total_bytes(), 0);
    let taken = memory_of(&world, manager).unwrap();
    assert!(taken.buffer_bytes >= MESSAGE.len() as u64, "{taken:?}");
    world.write(manager, &[Command::FreeBuffer(request.buffer)]);
    world.driver.reclaim(&mut world.host, u32::MAX);
    assert_eq!(memory_of(&world, manager).unwrap().total_bytes(), 0);
    world.driver.check_invariants().unwrap();
}

#[test]
fn an_area_has_the_messages_that_its_threads_have_taken() {
    let (mut world, manager, [client]) = World::with_manager();
    let areas = |world: &World| world.driver.area_memory().map(|area| area.bytes).sum::<u64>();
    let oneway = world.oneway(client, 0, 1, &Parcel::bytes(&MESSAGE));
    world.write(client, &[oneway]);
    assert!(areas(&world) < 4096);
    world.read(manager).parcel();
    assert!(areas(&world) >= MESSAGE.len() as u64);
    world.release(manager);
    assert_eq!(areas(&world), 0);
}

#[test]
fn a_sender_above_its_quota_sends_no_more_and_others_do() {
    let (mut world, _manager, [flooder, other]) = World::with_manager();
    world.driver.set_memory_quota(QUOTA);
    let mut sends = |caller: Caller| {
        let oneway = world.oneway(caller, 0, 1, &Parcel::bytes(&MESSAGE));
        world.run(caller, &[oneway]).work_returns() == [Return::TransactionComplete]
    };
    assert_eq!((0..10).filter(|_| sends(flooder)).count(), 2);
    assert!(sends(other));
    world.release(flooder);
    assert!(memory_of(&world, flooder).is_some(), "its messages are still queued");
    world.driver.check_invariants().unwrap();
}

#[test]
fn a_receiver_above_its_quota_gets_no_more_until_it_frees_some() {
    let (mut world, manager, [client]) = World::with_manager();
    world.driver.set_memory_quota(QUOTA + 4096);
    let mut kept = Vec::new();
    // Each request is answered, and its buffer kept.
    let is_received = |world: &mut World, kept: &mut Vec<u64>| {
        let call = world.call(client, 0, &Parcel::bytes(&MESSAGE));
        let seen = world.wait(client, &[call]);
        if !seen.parked {
            assert_eq!(seen.work_returns(), [Return::FailedReply]);
            return false;
        }
        kept.push(world.read(manager).parcel().buffer);
        let reply = world.reply(manager, &Parcel::default());
        world.run(manager, &[reply]);
        let reply = world.woken(client).parcel();
        world.write(client, &[Command::FreeBuffer(reply.buffer)]);
        true
    };
    assert_eq!((0..20).take_while(|_| is_received(&mut world, &mut kept)).count(), 3);
    world.write(manager, &[Command::FreeBuffer(kept.pop().unwrap())]);
    assert!(is_received(&mut world, &mut kept), "idle pages are reclaimed");
    assert!(!is_received(&mut world, &mut kept));
}
