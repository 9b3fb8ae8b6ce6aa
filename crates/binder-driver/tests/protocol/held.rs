//! Held confirmations: the `BR_TRANSACTION_COMPLETE` of a reply waits for the next item.

use binder_driver::{Caller, HeldReads, Interrupt, Waiting, Wake};
use binder_uapi::*;

use crate::common::*;

/// The server reads a call of the client, which waits for the reply.
fn receive_call(world: &mut World, client: Caller, server: Caller) {
    let call = world.call(client, 0, &Parcel::default());
    world.park(client, &[call]);
    world.read(server).parcel();
}

/// A server has replied to a call, and waits for the next one in the same ioctl.
fn server_that_holds() -> (World, Caller, Caller) {
    let (mut world, manager, [client]) = World::with_manager();
    world.park(manager, &[Command::EnterLooper]);
    call_and_reply(&mut world, client, manager);
    (world, manager, client)
}

fn call_and_reply(world: &mut World, client: Caller, server: Caller) -> Seen {
    let call = world.call(client, 0, &Parcel::default());
    world.park(client, &[call]);
    let seen = world.woken(server);
    let request = seen.parcel();
    let reply = world.reply(server, &Parcel::default());
    world.park(server, &[Command::FreeBuffer(request.buffer), reply]);
    let answer = world.woken(client).parcel();
    world.write(client, &[Command::FreeBuffer(answer.buffer)]);
    seen
}

#[test]
fn the_confirmation_of_a_reply_is_delivered_with_the_next_call() {
    let (mut world, server, client) = server_that_holds();
    for _ in 0..3 {
        let seen = call_and_reply(&mut world, client, server);
        let returns = seen.work_returns();
        assert!(
            matches!(returns, [Return::TransactionComplete, Return::Transaction(_)]),
            "{returns:?}"
        );
    }
}

#[test]
fn a_held_confirmation_is_delivered_after_two_intervals() {
    let (mut world, server, _) = server_that_holds();
    assert_eq!(world.driver.held_reads(), HeldReads::Some);
    assert_eq!(world.driver.release_held_reads(), HeldReads::Some);
    assert_eq!(world.wake(), [], "it may have begun to wait just now");
    assert_eq!(world.driver.release_held_reads(), HeldReads::None);
    assert_eq!(world.woken(server).work_returns(), [Return::TransactionComplete]);
    world.park(server, &[]);
    assert_eq!(world.driver.held_reads(), HeldReads::None);
}

#[test]
fn a_signal_delivers_a_held_confirmation() {
    let (mut world, server, _) = server_that_holds();
    assert_eq!(world.driver.interrupt(server.process, server.tid), Interrupt::Woken);
    assert_eq!(world.woken(server).work_returns(), [Return::TransactionComplete]);
    world.park(server, &[]);
    assert!(world.interrupt(server), "there is nothing to deliver any more");
}

/// The front end takes a wake-up, finds that it cannot access the reader's memory, and ends the
/// read as a signal would.
#[test]
fn a_signal_after_a_wake_up_that_was_taken_wakes_the_reader_again() {
    let (mut world, server, client) = server_that_holds();
    let call = world.call(client, 0, &Parcel::default());
    world.park(client, &[call]);
    let woken = Wake::Reader { process: server.process, tid: server.tid };
    assert_eq!(world.driver.next_wake(), Some(woken));
    assert_eq!(world.driver.interrupt(server.process, server.tid), Interrupt::Woken);
    let seen = world.woken(server);
    let returns = seen.work_returns();
    assert!(matches!(returns, [Return::TransactionComplete, ..]), "{returns:?}");
}

#[test]
fn a_poller_gets_its_confirmation_at_once() {
    let (mut world, manager, [client]) = World::with_manager();
    world.driver.poll(manager);
    receive_call(&mut world, client, manager);
    let reply = world.reply(manager, &Parcel::default());
    assert_eq!(world.wait(manager, &[reply]).work_returns(), [Return::TransactionComplete]);
}

#[test]
fn a_confirmation_that_was_not_read_makes_the_open_readable() {
    let (mut world, manager, [client]) = World::with_manager();
    receive_call(&mut world, client, manager);
    let reply = world.reply(manager, &Parcel::default());
    world.write(manager, &[reply]);
    assert!(world.driver.poll(manager));
    assert_eq!(world.wait(manager, &[]).work_returns(), [Return::TransactionComplete]);
}

#[test]
fn a_server_with_an_unfinished_one_way_call_does_not_hold() {
    let (mut world, manager, [client]) = World::with_manager();
    let oneways = [1, 2].map(|code| world.oneway(client, 0, code, &Parcel::default()));
    world.run(client, &oneways);
    let first = world.read(manager).parcel();
    receive_call(&mut world, client, manager);
    let reply = world.reply(manager, &Parcel::default());
    assert_eq!(world.wait(manager, &[reply]).work_returns(), [Return::TransactionComplete]);
    let free = Command::FreeBuffer(first.buffer);
    assert_eq!(world.wait(manager, &[free]).parcel().code, 2);
}

#[test]
fn a_failed_reply_is_reported_at_once() {
    let (mut world, manager, [client]) = World::with_manager();
    receive_call(&mut world, client, manager);
    let reply = world.reply(manager, &Parcel::default().handle(99));
    assert_eq!(world.wait(manager, &[reply]).work_returns(), [Return::TransactionComplete]);
}

#[test]
fn a_read_that_may_not_wait_gets_the_confirmation() {
    let (mut world, manager, [client]) = World::with_manager();
    receive_call(&mut world, client, manager);
    let reply = world.reply(manager, &Parcel::default());
    world.write(manager, &[reply]);
    let seen = world.write_read(manager, &[], READ_SIZE, Waiting::Refused);
    assert_eq!(seen.work_returns(), [Return::TransactionComplete]);
}

#[test]
fn a_read_that_waits_takes_the_next_call_of_the_process_with_the_confirmation() {
    let (mut world, manager, [first, second]) = World::with_manager();
    for (waiting, expected) in [(Waiting::Refused, 1), (Waiting::Allowed, 2)] {
        for client in [first, second] {
            let call = world.call(client, 0, &Parcel::default());
            world.park(client, &[call]);
        }
        world.read(manager).parcel();
        let reply = world.reply(manager, &Parcel::default());
        let seen = world.write_read(manager, &encode(&[reply]), READ_SIZE, waiting);
        assert_eq!(seen.work_returns().len(), expected, "{seen:?}");
        if expected == 1 {
            world.read(manager).parcel();
        }
        let reply = world.reply(manager, &Parcel::default());
        world.run(manager, &[reply]);
        assert_eq!(world.wake().len(), 2);
    }
}
