//! Contexts and the context manager.

use binder_driver::{Caller, Errno, Opener, Owner, Uid};
use binder_uapi::*;

use crate::common::*;

#[test]
fn a_second_manager_is_refused() {
    let (mut world, _, [client]) = World::with_manager();
    assert_eq!(world.driver.set_context_manager(client, None), Err(Errno::EBUSY));
}

#[test]
fn only_the_first_managers_uid_may_follow_it() {
    let (mut world, manager, [client]) = World::with_manager();
    world.release(manager);
    let other = Caller { euid: Uid::ROOT, ..client };
    assert_eq!(world.driver.set_context_manager(other, None), Err(Errno::EPERM));
    assert_eq!(world.driver.set_context_manager(client, None), Ok(()));
}

#[test]
fn the_managers_node_is_the_one_it_named() {
    let (mut world, context) = World::new();
    let manager = world.process(context, 1);
    let object = FlatBinderObject { binder: 0x42, cookie: 0x43, ..Default::default() };
    world.driver.set_context_manager(manager, Some(object)).unwrap();
    let client = world.process(context, 2);
    let call = world.call(client, 0, &Parcel::default());
    world.write(client, &[call]);
    let request = world.read(manager).parcel();
    assert_eq!((request.target, request.cookie), (0x42, 0x43));
}

#[test]
fn the_manager_cannot_call_itself_nor_refer_to_itself() {
    let (mut world, manager, []) = World::with_manager();
    let call = world.call(manager, 0, &Parcel::default());
    assert_eq!(world.run(manager, &[call]).work_returns(), [Return::FailedReply]);
    for command in [Command::IncRefs(0), Command::Acquire(0)] {
        let seen = world.run(manager, &[command]);
        assert_eq!((seen.result, seen.bwr.write_consumed), (Err(Errno::EINVAL), 0));
    }
}

#[test]
fn another_open_of_the_managers_process_cannot_call_it_either() {
    let (mut world, context) = World::new();
    let manager = world.process(context, 1);
    world.driver.set_context_manager(manager, None).unwrap();
    let same_pid = world.process(context, 1);
    let call = world.call(same_pid, 0, &Parcel::default());
    assert_eq!(world.run(same_pid, &[call]).work_returns(), [Return::FailedReply]);
}

#[test]
fn without_a_manager_handle_zero_is_dead() {
    let (mut world, context) = World::new();
    let client = world.process(context, 2);
    let call = world.call(client, 0, &Parcel::default());
    assert_eq!(world.run(client, &[call]).work_returns(), [Return::DeadReply]);
    assert_eq!(world.write(client, &[Command::Acquire(0)]).result, Ok(()));
}

#[test]
fn contexts_are_apart() {
    let (mut world, _, [client]) = World::with_manager();
    let other = world.driver.add_context("hwbinder");
    let stranger = world.process(other, 77);
    let call = world.call(stranger, 0, &Parcel::default());
    assert_eq!(world.run(stranger, &[call]).work_returns(), [Return::DeadReply]);
    assert_eq!(world.driver.set_context_manager(stranger, None), Ok(()));
    assert_eq!(world.driver.set_context_manager(client, None), Err(Errno::EBUSY));
}

#[test]
fn a_removed_context_serves_its_opens_and_takes_no_more() {
    let (mut world, context) = World::new();
    let manager = world.process(context, 1);
    let client = world.process(context, 2);
    world.driver.set_context_manager(manager, None).unwrap();
    world.driver.remove_context(context);
    let opener = Opener { pid: 3, euid: Uid::ROOT, owner: Owner::User(Uid::ROOT) };
    assert_eq!(world.driver.open(context, opener), Err(Errno::ENOENT));
    let call = world.call(client, 0, &Parcel::default());
    world.write(client, &[call]);
    world.read(manager).parcel();
    world.release(manager);
    world.release(client);
    assert_eq!(world.driver.snapshot().contexts, []);
    assert!(world.driver.is_empty());
}

#[test]
fn each_operation_on_a_stale_open_is_an_error() {
    let (mut world, manager, [client]) = World::with_manager();
    world.release(client);
    assert_eq!(world.read(client).result, Err(Errno::EBADF));
    assert_eq!(world.driver.set_max_threads(client.process, 1), Err(Errno::EBADF));
    assert_eq!(world.driver.extended_error(client), Err(Errno::EBADF));
    assert_eq!(world.driver.node_debug_info(client.process, 0), Err(Errno::EBADF));
    assert!(!world.interrupt(client));
    assert!(world.driver.poll(client));
    world.driver.flush(client.process);
    world.release(client);
    world.thread_exit(client);
    assert_eq!(world.read(manager).result, Err(Errno::EAGAIN));
}

#[test]
fn node_information_is_for_the_manager_alone() {
    let (mut world, manager, [owner, client]) = World::with_manager();
    let register = world.call(owner, 0, &Parcel::default().binder(0x10));
    world.write(owner, &[register]);
    let request = world.read(manager).parcel();
    let handle = world.objects(manager, &request)[0].handle();
    let query = BinderNodeInfoForRef { handle, ..Default::default() };
    let info = world.driver.node_info_for_ref(manager.process, query).unwrap();
    assert_eq!((info.handle, info.strong_count, info.weak_count), (handle, 1, 0));
    let dirty = BinderNodeInfoForRef { reserved2: 1, ..query };
    let refused = world.driver.node_info_for_ref(manager.process, dirty);
    assert_eq!(refused, Err(Errno::EINVAL));
    let refused = world.driver.node_info_for_ref(client.process, query);
    assert_eq!(refused, Err(Errno::EPERM));
    let unknown = BinderNodeInfoForRef { handle: 99, ..Default::default() };
    let refused = world.driver.node_info_for_ref(manager.process, unknown);
    assert_eq!(refused, Err(Errno::EINVAL));
}

#[test]
fn node_debug_information_walks_the_nodes_by_pointer() {
    let (mut world, manager, [owner]) = World::with_manager();
    let parcel = Parcel::default().binder(0x30).binder(0x10).binder(0x20);
    let call = world.call(owner, 0, &parcel);
    world.write(owner, &[call]);
    world.read(manager).parcel();
    let mut found = Vec::new();
    let mut after = 0;
    loop {
        let info = world.driver.node_debug_info(owner.process, after).unwrap();
        if info == BinderNodeDebugInfo::default() {
            break;
        }
        assert_eq!(info.cookie, cookie_of(info.ptr));
        found.push(info.ptr);
        after = info.ptr;
    }
    assert_eq!(found, [0x10, 0x20, 0x30]);
}

#[test]
fn a_snapshot_lists_the_holders_of_each_node() {
    let (mut world, manager, [owner, client]) = World::with_manager();
    let handle = world.share(owner, 0x10, manager, client);
    world.park(manager, &[Command::EnterLooper]);
    let snapshot = world.driver.snapshot();
    let context = &snapshot.contexts[0];
    assert_eq!((context.name.as_str(), context.manager_pid), ("binder", Some(1)));
    let pids: Vec<_> = context.processes.iter().map(|process| process.pid).collect();
    assert_eq!(pids, [1, 10, 20]);
    let thread = &context.processes[0].threads[0];
    assert_eq!((thread.looper.as_str(), thread.waiting), ("entered", true));
    assert_eq!(context.processes[1].nodes[0].ptr, 0x10);
    let held = &context.processes[2].handles[0];
    assert_eq!((held.handle, held.owner, held.strong), (handle, Some(10), 1));
}
