//! Sync calls, replies, nesting and unwinding.

use binder_driver::{Caller, Errno, Uid};
use binder_uapi::returns::*;
use binder_uapi::*;

use crate::common::*;

#[test]
fn a_call_reaches_the_manager_and_its_reply_the_caller() {
    let (mut world, manager, [client]) = World::with_manager();
    world.park(manager, &[Command::EnterLooper]);
    let call = world.call(client, 0, &Parcel::bytes(b"ping"));
    world.park(client, &[call]);

    let seen = world.woken(manager);
    assert_eq!(seen.work_returns().len(), 1);
    let request = seen.parcel();
    assert_eq!(world.data(manager, &request), b"ping");
    assert_eq!((request.code, request.sender_pid, request.sender_euid), (1, 4242, 1000));

    let reply = world.reply(manager, &Parcel::bytes(b"pong"));
    let seen = world.run(manager, &[reply, Command::FreeBuffer(request.buffer)]);
    assert_eq!(seen.work_returns(), [Return::TransactionComplete]);
    let seen = world.woken(client);
    assert_eq!(seen.work_returns()[0], Return::TransactionComplete);
    let answer = seen.parcel();
    assert_eq!(world.data(client, &answer), b"pong");
    assert_eq!((answer.sender_pid, answer.target), (0, 0));
}

#[test]
fn a_receiver_sees_the_uid_of_the_opener_not_of_the_caller() {
    let (mut world, manager, [client]) = World::with_manager();
    let other = Caller { euid: Uid(1001), ..client };
    for (caller, opener) in [(other, client.euid), (client, Uid(77))] {
        world.driver.set_opener_euid(client.process, opener);
        let call = world.oneway(caller, 0, 1, &Parcel::default());
        world.write(caller, &[call]);
        let request = world.read(manager).parcel();
        assert_eq!(request.sender_euid, opener.0);
        world.write(manager, &[Command::FreeBuffer(request.buffer)]);
    }
}

#[test]
fn a_sender_that_the_receiver_cannot_see_has_pid_zero() {
    let (mut world, manager, [client]) = World::with_manager();
    world.host.blind.insert(manager.process);
    let call = world.call(client, 0, &Parcel::default());
    world.write(client, &[call]);
    assert_eq!(world.read(manager).parcel().sender_pid, 0);
}

#[test]
fn the_completion_of_a_call_waits_for_its_reply() {
    let (mut world, manager, [client]) = World::with_manager();
    let call = world.call(client, 0, &Parcel::default());
    assert_eq!(world.run(client, &[call]).result, Err(Errno::EAGAIN));
    let request = world.read(manager).parcel();
    let reply = world.reply(manager, &Parcel::default());
    world.run(manager, &[reply, Command::FreeBuffer(request.buffer)]);
    let seen = world.read(client);
    assert!(
        matches!(seen.work_returns(), [Return::TransactionComplete, Return::Reply(_)]),
        "{seen:?}"
    );
}

#[test]
fn parcels_without_data_have_addresses_of_their_own() {
    let (mut world, manager, [a, b]) = World::with_manager();
    for client in [a, b] {
        let call = world.call(client, 0, &Parcel::default());
        world.write(client, &[call]);
    }
    let first = world.read(manager).parcel();
    // A second thread receives the second call.
    let second = world.read(binder_driver::Caller { tid: 2, ..manager }).parcel();
    assert_ne!(first.buffer, second.buffer);
}

#[test]
fn a_reply_without_a_call_fails() {
    let (mut world, _, [client]) = World::with_manager();
    let reply = world.reply(client, &Parcel::default());
    assert_eq!(world.run(client, &[reply]).work_returns(), [Return::FailedReply]);
    let error = world.driver.extended_error(client).unwrap();
    assert_eq!((error.command, error.param), (BR_FAILED_REPLY, -Errno::EPROTO.code()));
    let error = world.driver.extended_error(client).unwrap();
    assert_eq!((error.id, error.command, error.param), (0, BR_OK, 0), "read and forgotten");
}

#[test]
fn a_reply_from_a_thread_that_was_not_called_fails_and_the_call_goes_on() {
    let (mut world, manager, [client]) = World::with_manager();
    let call = world.call(client, 0, &Parcel::default());
    world.write(client, &[call]);
    world.read(manager).parcel();
    let other = binder_driver::Caller { tid: 2, ..manager };
    let reply = world.reply(other, &Parcel::default());
    assert_eq!(world.run(other, &[reply]).work_returns(), [Return::FailedReply]);
    let reply = world.reply(manager, &Parcel::bytes(b"mine"));
    world.write(manager, &[reply]);
    let answer = world.read(client).parcel();
    assert_eq!(world.data(client, &answer), b"mine");
}

#[test]
fn a_second_call_while_waiting_for_a_reply_fails() {
    let (mut world, manager, [client]) = World::with_manager();
    let first = world.call(client, 0, &Parcel::default());
    let second = world.call(client, 0, &Parcel::default());
    let seen = world.run(client, &[first, second]);
    assert_eq!(seen.work_returns(), [Return::TransactionComplete, Return::FailedReply]);
    world.read(manager).parcel();
}

#[test]
fn commands_wait_while_an_error_is_unread() {
    let (mut world, _, [client]) = World::with_manager();
    let bad = world.call(client, 77, &Parcel::default());
    let seen = world.write(client, &[bad, Command::EnterLooper]);
    let first = encode(&[bad]).len() as u64;
    assert_eq!((seen.result, seen.bwr.write_consumed), (Ok(()), first));
    assert_eq!(world.write(client, &[Command::EnterLooper]).bwr.write_consumed, 0);
    assert_eq!(world.read(client).work_returns(), [Return::FailedReply]);
    assert_eq!(world.write(client, &[Command::EnterLooper]).bwr.write_consumed, 4);
}

#[test]
fn a_nested_call_goes_to_the_very_thread_that_waits() {
    let (mut world, manager, [client]) = World::with_manager();
    let handle_of_client = {
        // The client passes an object; the manager calls it back while serving.
        let spare = binder_driver::Caller { tid: 99, ..client };
        world.park(spare, &[Command::EnterLooper]);
        let call = world.call(client, 0, &Parcel::default().binder(0x77));
        world.park(client, &[call]);
        let request = world.read(manager).parcel();
        world.objects(manager, &request)[0].handle()
    };
    let back = world.call(manager, handle_of_client, &Parcel::bytes(b"back"));
    world.park(manager, &[back]);
    let seen = world.woken(client);
    let nested = seen.parcel();
    assert_eq!((nested.target, nested.cookie), (0x77, cookie_of(0x77)));
    assert_eq!(world.data(client, &nested), b"back");

    let reply = world.reply(client, &Parcel::bytes(b"inner"));
    world.park(client, &[reply]);
    let inner = world.woken(manager).parcel();
    assert_eq!(world.data(manager, &inner), b"inner");
    let reply = world.reply(manager, &Parcel::bytes(b"outer"));
    world.run(manager, &[reply]);
    let seen = world.woken(client);
    assert_eq!(seen.work_returns()[0], Return::TransactionComplete, "of its own reply, and held");
    assert_eq!(world.data(client, &seen.parcel()), b"outer");
}

#[test]
fn a_thread_that_has_a_call_to_take_must_not_make_one() {
    let (mut world, manager, [client]) = World::with_manager();
    world.park(manager, &[Command::EnterLooper]);
    let call = world.call(client, 0, &Parcel::default());
    world.write(client, &[call]);
    // The call is in the idle thread's own queue; a signal ends the thread's read.
    assert!(world.interrupt(manager));
    let unknown = world.call(manager, 5, &Parcel::default());
    world.write(manager, &[unknown]);
    let error = world.driver.extended_error(manager).unwrap();
    assert_eq!(error.param, -Errno::EINVAL.code(), "the handle is looked at first");
    let seen = world.read(manager);
    assert_eq!(seen.work_returns().len(), 1, "the call comes first: {seen:?}");
    seen.parcel();
    assert_eq!(world.read(manager).work_returns(), [Return::FailedReply]);
}

#[test]
fn callers_of_a_process_that_dies_get_a_dead_reply() {
    let (mut world, manager, [waiting, served]) = World::with_manager();
    let call = world.call(served, 0, &Parcel::default());
    world.park(served, &[call]);
    world.read(manager).parcel();
    let call = world.call(waiting, 0, &Parcel::default());
    world.park(waiting, &[call]);
    world.release(manager);
    let answers = world.wake();
    assert_eq!(answers.len(), 2);
    for (_, seen) in answers {
        assert_eq!(seen.work_returns(), [Return::TransactionComplete, Return::DeadReply]);
    }
    let call = world.call(served, 0, &Parcel::default());
    assert_eq!(
        world.run(served, &[call]).work_returns(),
        [Return::DeadReply],
        "there is no manager"
    );
}

#[test]
fn a_death_in_the_middle_of_a_chain_unwinds_to_its_caller() {
    let (mut world, manager, [outer, middle, inner]) = World::with_manager();
    let to_middle = world.share(middle, 0x10, manager, outer);
    let to_inner = world.share(inner, 0x20, manager, middle);
    let call = world.call(outer, to_middle, &Parcel::default());
    world.park(outer, &[call]);
    world.read(middle).parcel();
    let call = world.call(middle, to_inner, &Parcel::default());
    world.park(middle, &[call]);
    world.read(inner).parcel();
    world.release(middle);
    assert_eq!(world.wake(), [], "the innermost call is still being served");
    let reply = world.reply(inner, &Parcel::default());
    let seen = world.run(inner, &[reply]);
    assert_eq!(seen.work_returns(), [Return::TransactionComplete]);
    let seen = world.woken(outer);
    assert_eq!(seen.work_returns(), [Return::TransactionComplete, Return::DeadReply]);
}

#[test]
fn a_thread_that_exits_fails_the_call_it_serves_and_the_process_lives_on() {
    let (mut world, manager, [client]) = World::with_manager();
    let call = world.call(client, 0, &Parcel::default());
    world.park(client, &[call]);
    let worker = binder_driver::Caller { tid: 2, ..manager };
    let request = world.read(worker).parcel();
    world.thread_exit(worker);
    assert_eq!(
        world.woken(client).work_returns(),
        [Return::TransactionComplete, Return::DeadReply]
    );
    // The buffer still belongs to the process.
    assert_eq!(world.driver.snapshot().contexts[0].processes[0].buffers.count, 1);
    world.write(manager, &[Command::FreeBuffer(request.buffer)]);
    assert_eq!(world.driver.snapshot().contexts[0].processes[0].buffers.count, 0);
}

#[test]
fn a_call_of_a_thread_that_exits_unread_goes_to_another() {
    let (mut world, manager, [client]) = World::with_manager();
    let worker = binder_driver::Caller { tid: 2, ..manager };
    world.park(worker, &[Command::EnterLooper]);
    let call = world.call(client, 0, &Parcel::bytes(b"x"));
    world.park(client, &[call]);
    world.thread_exit(worker);
    assert_eq!(world.wake(), []);
    let request = world.read(manager).parcel();
    assert_eq!(world.data(manager, &request), b"x");
}

#[test]
fn a_call_to_a_process_without_a_mapping_is_a_dead_reply() {
    let (mut world, context) = World::new();
    let manager = world.unmapped(context, 1);
    world.driver.set_context_manager(manager, None).unwrap();
    let client = world.process(context, 2);
    let call = world.call(client, 0, &Parcel::default());
    assert_eq!(world.run(client, &[call]).work_returns(), [Return::DeadReply]);
    let error = world.driver.extended_error(client).unwrap();
    assert_eq!((error.command, error.param), (BR_DEAD_REPLY, -Errno::ESRCH.code()));
    // The driver looks up the mapping again, and finds it.
    world.map(manager, MAPPING);
    let call = world.call(client, 0, &Parcel::default());
    world.write(client, &[call]);
    world.read(manager).parcel();
}

#[test]
fn a_failed_reply_fails_the_call_and_reports_the_reason_to_both() {
    let (mut world, manager, [client]) = World::with_manager();
    let call = world.call(client, 0, &Parcel::default());
    world.park(client, &[call]);
    world.read(manager).parcel();
    let reply = world.reply(manager, &Parcel::bytes(&vec![0; MAPPING as usize + 8]));
    let seen = world.run(manager, &[reply]);
    assert_eq!(seen.work_returns(), [Return::TransactionComplete]);
    assert_eq!(
        world.woken(client).work_returns(),
        [Return::TransactionComplete, Return::FailedReply]
    );
    let error = world.driver.extended_error(client).unwrap();
    assert_eq!((error.command, error.param), (BR_FAILED_REPLY, -Errno::ENOSPC.code()));
    let error = world.driver.extended_error(manager).unwrap();
    assert_eq!((error.command, error.param), (BR_OK, 0), "the error is the caller's");
}

#[test]
fn a_reader_whose_memory_is_gone_fails_the_call() {
    let (mut world, manager, [client]) = World::with_manager();
    let call = world.call(client, 0, &Parcel::default());
    assert_eq!(world.read(manager).result, Err(Errno::EAGAIN), "its buffer takes returns");
    world.park(client, &[call]);
    world.host.faulting.insert(manager.process);
    let seen = world.read(manager);
    assert_eq!((seen.result, seen.bwr.read_consumed), (Err(Errno::EFAULT), 0));
    assert_eq!(
        world.woken(client).work_returns(),
        [Return::TransactionComplete, Return::FailedReply]
    );
    let buffers = world.driver.snapshot().contexts[0].processes[0].buffers.clone();
    assert_eq!(buffers.count, 0, "the buffer that was never seen is gone");
}

#[test]
fn a_read_buffer_that_takes_no_returns_takes_no_work() {
    let (mut world, manager, [client]) = World::with_manager();
    let call = world.call(client, 0, &Parcel::default());
    world.park(client, &[call]);
    world.host.faulting.insert(manager.process);
    for _ in 0..2 {
        let seen = world.read(manager);
        assert_eq!((seen.result, seen.bwr.read_consumed), (Err(Errno::EFAULT), 0));
    }
    world.host.faulting.clear();
    world.read(manager).parcel();
}

#[test]
fn a_null_call_needs_one_request_to_the_host_for_each_step() {
    let (mut world, manager, [client]) = World::with_manager();
    for warm in [false, true] {
        world.park(manager, &[Command::EnterLooper]);
        world.host.counts.clear();
        let call = world.call(client, 0, &Parcel::bytes(b"1234"));
        world.park(client, &[call]);
        let request = world.woken(manager).parcel();
        if warm {
            let expected = [("read", 1), ("read_parcel", 1), ("store", 1), ("write", 1)];
            assert_eq!(world.host.counts, expected.into());
        }
        let reply = world.reply(manager, &Parcel::default());
        world.run(manager, &[Command::FreeBuffer(request.buffer), reply]);
        let answer = world.woken(client).parcel();
        world.write(client, &[Command::FreeBuffer(answer.buffer)]);
    }
}
