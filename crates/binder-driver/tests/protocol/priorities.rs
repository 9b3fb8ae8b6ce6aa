//! Priorities that calls inherit.

use binder_driver::*;
use binder_uapi::*;

use crate::common::*;

/// A manager with this minimum priority and a client.
fn world(min_priority: u32) -> (World, Caller, Caller) {
    let (mut world, context) = World::new();
    let manager = world.process(context, 1);
    let flags = min_priority;
    let object = FlatBinderObject { ty: BINDER_TYPE_BINDER, flags, binder: 0, cookie: 0 };
    world.driver.set_context_manager(manager, Some(object)).unwrap();
    let client = world.process(context, 10);
    (world, manager, client)
}

/// The client's call is delivered to the server.
fn begin_call(world: &mut World, manager: Caller, client: Caller) {
    let call = world.call(client, 0, &Parcel::default());
    world.park(client, &[call]);
    world.read(manager).parcel();
}

/// A call that is delivered at any moment of a tick is late after two ends of ticks.
fn make_late(world: &mut World) {
    for _ in 0..2 {
        world.driver.end_tick(&mut world.host);
    }
}

/// The server's nice value while it serves the client for long, and afterwards.
fn served_with(world: &mut World, manager: Caller, client: Caller) -> (i32, i32) {
    let nice = |world: &World| world.host.nice.get(&manager.tid).copied().unwrap_or(0);
    begin_call(world, manager, client);
    make_late(world);
    let during = nice(world);
    let reply = world.reply(manager, &Parcel::default());
    world.run(manager, &[reply]).work_returns();
    world.woken(client).parcel();
    (during, nice(world))
}

#[test]
fn a_call_is_served_with_the_nice_value_of_its_caller() {
    let (mut world, manager, client) = world(0x7f);
    for (callers, servers) in [(-10, 0), (10, 0), (5, 5), (0, -3)] {
        world.host.nice.extend([(client.tid, callers), (manager.tid, servers)]);
        assert_eq!(served_with(&mut world, manager, client), (callers, servers));
    }
}

#[test]
fn a_node_is_served_with_its_own_minimum_at_least() {
    let (mut world, manager, client) = world(4);
    for (callers, during) in [(10, 4), (4, 4), (2, 2)] {
        world.host.nice.extend([(client.tid, callers), (manager.tid, 7)]);
        assert_eq!(served_with(&mut world, manager, client), (during, 7));
    }
}

#[test]
fn a_server_that_may_not_have_another_value_keeps_its_own() {
    let (mut world, manager, client) = world(0x7f);
    world.host.nice.extend([(client.tid, -10), (manager.tid, 3)]);
    world.host.stubborn.insert(manager.tid);
    assert_eq!(served_with(&mut world, manager, client), (3, 3));
}

#[test]
fn a_call_that_ends_within_a_tick_changes_no_nice_value() {
    let (mut world, manager, client) = world(0x7f);
    world.host.nice.extend([(client.tid, -10), (manager.tid, 3)]);
    begin_call(&mut world, manager, client);
    assert_eq!(world.driver.awaits_tick(), AwaitsTick::Yes);
    world.driver.end_tick(&mut world.host);
    assert_eq!(world.host.nice[&manager.tid], 3, "it has lasted less than a tick");
    let reply = world.reply(manager, &Parcel::default());
    world.run(manager, &[reply]).work_returns();
    make_late(&mut world);
    assert_eq!(world.host.nice[&manager.tid], 3);
    assert_eq!(world.driver.awaits_tick(), AwaitsTick::No);
}

#[test]
fn a_server_that_waits_for_a_cpu_is_changed_after_twenty_ticks_at_the_earliest() {
    let (mut world, manager, client) = world(0x7f);
    world.host.nice.extend([(client.tid, -10), (manager.tid, 3)]);
    world.host.starved.insert(manager.tid);
    begin_call(&mut world, manager, client);
    for _ in 0..20 {
        world.driver.end_tick(&mut world.host);
        assert_eq!(world.host.nice[&manager.tid], 3);
    }
    world.driver.end_tick(&mut world.host);
    assert_eq!(world.host.nice[&manager.tid], -10);
    assert_eq!(world.driver.awaits_tick(), AwaitsTick::No);
}

#[test]
fn a_server_that_has_waited_for_a_cpu_is_changed_once_it_runs() {
    let (mut world, manager, client) = world(0x7f);
    world.host.nice.extend([(client.tid, -10), (manager.tid, 3)]);
    world.host.starved.insert(manager.tid);
    begin_call(&mut world, manager, client);
    make_late(&mut world);
    assert_eq!(world.host.nice[&manager.tid], 3);
    world.host.starved.clear();
    world.driver.end_tick(&mut world.host);
    assert_eq!(world.host.nice[&manager.tid], -10);
}

#[test]
fn a_real_time_caller_lends_the_strongest_nice_value_to_a_late_call() {
    let (mut world, manager, client) = world(0x7f);
    world.host.real_time.insert(client.tid, Policy::Fifo(1));
    world.host.nice.extend([(client.tid, 0), (manager.tid, 3)]);
    assert_eq!(served_with(&mut world, manager, client), (-20, 3));
}

#[test]
fn equal_priorities_wait_for_no_tick() {
    let (mut world, manager, client) = world(0x7f);
    world.host.nice.extend([(client.tid, 3), (manager.tid, 3)]);
    begin_call(&mut world, manager, client);
    assert_eq!(world.driver.awaits_tick(), AwaitsTick::No);
}

#[test]
fn an_outer_call_is_late_again_when_the_inner_one_has_ended() {
    let (mut world, manager, client) = world(0x7f);
    world.host.nice.extend([(client.tid, -10), (manager.tid, 3)]);
    let call = world.call(client, 0, &Parcel::default().binder(0x77));
    world.park(client, &[call]);
    let outer = world.read(manager).parcel();
    let handle_of_client = world.objects(manager, &outer)[0].handle();
    let back = world.call(manager, handle_of_client, &Parcel::default());
    world.park(manager, &[back]);
    world.woken(client).parcel();
    let inner = world.call(client, 0, &Parcel::default());
    world.park(client, &[inner]);
    world.woken(manager).parcel();
    make_late(&mut world);
    assert_eq!(world.host.nice[&manager.tid], -10, "by the inner call");
    let reply = world.reply(manager, &Parcel::default());
    world.park(manager, &[reply]);
    assert_eq!(world.host.nice[&manager.tid], 3);
    make_late(&mut world);
    assert_eq!(world.host.nice[&manager.tid], -10, "by the outer call");

    world.woken(client).parcel();
    let reply = world.reply(client, &Parcel::default());
    world.run(client, &[reply]).work_returns();
    world.woken(manager).parcel();
    let reply = world.reply(manager, &Parcel::default());
    world.run(manager, &[reply]).work_returns();
    assert_eq!(world.host.nice[&manager.tid], 3);
}

#[test]
fn a_oneway_call_is_served_with_the_servers_own_value() {
    let (mut world, manager, client) = world(0x7f);
    world.host.nice.extend([(client.tid, -10), (manager.tid, 3)]);
    let oneway = world.oneway(client, 0, 1, &Parcel::default());
    world.run(client, &[oneway]).work_returns();
    world.read(manager).parcel();
    assert_eq!(world.host.nice[&manager.tid], 3);
}

const INHERIT: u32 = FLAT_BINDER_FLAG_INHERIT_RT | 0x7f;

/// The server's real-time policy while it serves the client, and afterwards.
fn real_time_with(
    world: &mut World,
    manager: Caller,
    client: Caller,
) -> (Option<Policy>, Option<Policy>) {
    let policy = |world: &World| world.host.real_time.get(&manager.tid).copied();
    begin_call(world, manager, client);
    let during = policy(world);
    let forks = world.host.reset_on_fork.contains(&manager.tid);
    assert_eq!(forks, during.is_some(), "what it starts meanwhile is ordinary");
    let reply = world.reply(manager, &Parcel::default());
    world.run(manager, &[reply]).work_returns();
    world.woken(client).parcel();
    assert!(!world.host.reset_on_fork.contains(&manager.tid));
    (during, policy(world))
}

#[test]
fn a_node_that_inherits_real_time_is_served_with_its_callers_policy() {
    let (mut world, manager, client) = world(INHERIT);
    for policy in [Policy::Fifo(40), Policy::RoundRobin(7)] {
        world.host.real_time.insert(client.tid, policy);
        assert_eq!(real_time_with(&mut world, manager, client), (Some(policy), None));
    }
}

#[test]
fn a_node_without_the_inherit_flag_is_served_without_real_time() {
    let (mut world, manager, client) = world(0x7f);
    world.host.real_time.insert(client.tid, Policy::Fifo(40));
    assert_eq!(real_time_with(&mut world, manager, client), (None, None));
}

#[test]
fn a_server_that_may_not_run_at_real_time_has_the_strongest_nice_value_when_late() {
    let (mut world, manager, client) = world(INHERIT);
    world.host.real_time.insert(client.tid, Policy::Fifo(40));
    world.host.nice.extend([(client.tid, -5), (manager.tid, 3)]);
    world.host.ordinary.insert(manager.tid);
    assert_eq!(served_with(&mut world, manager, client), (-20, 3));
    assert!(!world.host.real_time.contains_key(&manager.tid));
}

#[test]
fn a_real_time_server_keeps_its_policy_for_an_ordinary_caller() {
    let (mut world, manager, client) = world(INHERIT);
    world.host.real_time.insert(manager.tid, Policy::Fifo(9));
    begin_call(&mut world, manager, client);
    assert_eq!(world.host.real_time[&manager.tid], Policy::Fifo(9));
}

#[test]
fn a_thread_that_leaves_in_the_middle_of_its_calls_has_its_own_priority_back() {
    let (mut world, manager, client) = world(INHERIT);
    world.host.real_time.insert(client.tid, Policy::Fifo(40));
    world.host.nice.extend([(client.tid, -5), (manager.tid, 3)]);
    begin_call(&mut world, manager, client);
    make_late(&mut world);
    assert_eq!(world.host.nice[&manager.tid], -5);
    world.thread_exit(manager);
    assert_eq!(world.host.nice[&manager.tid], 3);
    assert!(!world.host.real_time.contains_key(&manager.tid));
}
