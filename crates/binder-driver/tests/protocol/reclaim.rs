//! Reclaim of the mappings' memory under pressure.

use binder_driver::{Caller, PageSize};
use binder_uapi::*;

use crate::common::*;

/// Sends a one-way call with `len` bytes of 7 and receives it; returns the buffer's address.
fn deliver(world: &mut World, from: Caller, to: Caller, handle: u32, len: usize) -> u64 {
    let call = world.oneway(from, handle, 0, &Parcel::bytes(&vec![7; len]));
    world.write(from, &[call]);
    world.read(to).parcel().buffer
}

fn idle(world: &World) -> u64 {
    world.driver.page_counts().idle
}

#[test]
fn only_pages_without_a_buffer_go_back() {
    let (mut world, manager, [client]) = World::with_manager();
    let first = deliver(&mut world, client, manager, 0, 9000);
    world.write(manager, &[Command::FreeBuffer(first)]);
    assert_eq!(idle(&world), 3);
    // Placed on the first page again; the other two stay idle.
    let call = world.call(client, 0, &Parcel::bytes(b"sync"));
    world.write(client, &[call]);
    let request = world.read(manager).parcel();
    assert_eq!(idle(&world), 2);
    assert_eq!(world.driver.reclaim(&mut world.host, 100), 2);
    assert_eq!(world.data(manager, &request), b"sync");
    let counts = world.driver.page_counts();
    assert_eq!((counts.touched, counts.idle, counts.reclaimed), (1, 0, 2));
}

#[test]
fn an_emptied_page_reads_as_zeros_and_is_filled_by_the_next_delivery() {
    let (mut world, manager, [client]) = World::with_manager();
    let buffer = deliver(&mut world, client, manager, 0, 100);
    world.write(manager, &[Command::FreeBuffer(buffer)]);
    assert_eq!(world.driver.reclaim(&mut world.host, 1), 1);
    assert!(world.host.mappings[&manager.process][..4096].iter().all(|&byte| byte == 0));
    let call = world.call(client, 0, &Parcel::bytes(b"again"));
    world.write(client, &[call]);
    let request = world.read(manager).parcel();
    assert_eq!(world.data(manager, &request), b"again");
    assert_eq!(world.driver.page_counts().touched, 1);
}

#[test]
fn a_batch_has_the_requested_size_and_each_run_is_one_punch() {
    let (mut world, manager, [client]) = World::with_manager();
    let buffer = deliver(&mut world, client, manager, 0, 5 * 4096);
    world.write(manager, &[Command::FreeBuffer(buffer)]);
    let punches = |world: &World| world.host.counts.get("punch").copied().unwrap_or(0);
    assert_eq!(world.driver.reclaim(&mut world.host, 0), 0);
    assert_eq!(world.driver.reclaim(&mut world.host, 3), 3);
    assert_eq!(punches(&world), 1);
    assert_eq!(world.driver.reclaim(&mut world.host, 3), 2);
    assert_eq!(world.driver.reclaim(&mut world.host, 3), 0);
    assert_eq!(punches(&world), 2);
}

#[test]
fn a_page_of_sixteen_kibibytes_is_reclaimed_when_its_last_buffer_is_gone() {
    let (mut world, manager, [client]) = World::with_manager();
    world.driver.set_page_size(PageSize::new(16 << 10).unwrap());
    let first = deliver(&mut world, client, manager, 0, 5000);
    // A call that is answered, since a second one-way call would wait for the first buffer.
    let call = world.call(client, 0, &Parcel::bytes(&[7; 5000]));
    world.write(client, &[call]);
    let second = world.read(manager).parcel().buffer;
    assert_eq!(world.driver.page_counts().touched, 1);
    world.write(manager, &[Command::FreeBuffer(first)]);
    assert_eq!(idle(&world), 0, "the second buffer is in the page");
    world.write(manager, &[Command::FreeBuffer(second)]);
    assert_eq!((idle(&world), world.driver.reclaim(&mut world.host, 100)), (1, 1));
    let page = &world.host.mappings[&manager.process][..16 << 10];
    assert!(page.iter().all(|&byte| byte == 0));
}

#[test]
fn the_longest_idle_process_is_reclaimed_first() {
    let (mut world, manager, [client, one, other]) = World::with_manager();
    let handles = [one, other].map(|owner| world.share(owner, 0x10, manager, client));
    for (to, handle) in [(one, handles[0]), (other, handles[1]), (one, handles[0])] {
        let buffer = deliver(&mut world, client, to, handle, 100);
        world.write(to, &[Command::FreeBuffer(buffer)]);
    }
    // The pages used for sharing the objects were idle even earlier.
    while idle(&world) > 2 {
        assert_eq!(world.driver.reclaim(&mut world.host, 1), 1);
    }
    assert_eq!(world.driver.reclaim(&mut world.host, 1), 1);
    let is_empty = |world: &World, who: Caller| {
        world.host.mappings[&who.process][..4096].iter().all(|&byte| byte == 0)
    };
    assert!(is_empty(&world, other) && !is_empty(&world, one));
}

#[test]
fn a_mapping_that_keeps_its_memory_hinders_no_other() {
    let (mut world, manager, [client, one, other]) = World::with_manager();
    let handles = [one, other].map(|owner| world.share(owner, 0x10, manager, client));
    for (to, handle) in [(one, handles[0]), (other, handles[1])] {
        let buffer = deliver(&mut world, client, to, handle, 100);
        world.write(to, &[Command::FreeBuffer(buffer)]);
    }
    world.host.unwritable.insert(one.process);
    let before = idle(&world);
    assert_eq!(u64::from(world.driver.reclaim(&mut world.host, 100)), before - 1);
    assert_eq!(idle(&world), 0);
    world.host.unwritable.clear();
    let buffer = deliver(&mut world, client, one, handles[0], 100);
    world.write(one, &[Command::FreeBuffer(buffer)]);
    assert_eq!(
        world.driver.reclaim(&mut world.host, 100),
        1,
        "it is requested again after the next use"
    );
}

#[test]
fn a_process_that_leaves_takes_its_idle_pages_along() {
    let (mut world, manager, [client]) = World::with_manager();
    let buffer = deliver(&mut world, client, manager, 0, 100);
    world.write(manager, &[Command::FreeBuffer(buffer)]);
    world.release(manager);
    assert_eq!(world.driver.page_counts(), binder_driver::PageCounts::default());
}
