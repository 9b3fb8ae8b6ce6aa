//! File descriptors in transactions, and security contexts.

use binder_driver::*;
use binder_uapi::*;

use crate::common::*;

/// A manager that accepts descriptors and a client with two files: 3 and 4.
fn world_with_files() -> (World, Caller, Caller) {
    let (mut world, context) = World::new();
    let manager = world.process(context, 1);
    let flags = FLAT_BINDER_FLAG_ACCEPTS_FDS;
    let object = FlatBinderObject { ty: BINDER_TYPE_BINDER, flags, binder: 0, cookie: 0 };
    world.driver.set_context_manager(manager, Some(object)).unwrap();
    let client = world.process(context, 10);
    assert_eq!(
        (world.host.install(client.process, 7), world.host.install(client.process, 8)),
        (3, 4)
    );
    (world, manager, client)
}

fn errno(world: &mut World, caller: Caller) -> i32 {
    world.driver.extended_error(caller).unwrap().param
}

/// An array of these descriptors in a buffer of its own.
fn array(world: &mut World, client: Caller, fds: &[u32]) -> Parcel {
    let bytes: Vec<u8> = fds.iter().flat_map(|fd| fd.to_ne_bytes()).collect();
    let buffer = world.place(client, &bytes);
    let length = bytes.len() as u64;
    let ptr = BinderBufferObject { ty: BINDER_TYPE_PTR, buffer, length, ..Default::default() };
    let num_fds = fds.len() as u64;
    let fda = BinderFdArrayObject { ty: BINDER_TYPE_FDA, num_fds, ..Default::default() };
    let parcel = Parcel::bytes(b"ahead---").object(&ptr).object(&fda);
    Parcel { buffers_size: Some(length.next_multiple_of(8)), ..parcel }
}

/// The client waits for a reply that has a file, whose installation is left to the test.
fn reply_with_a_file(world: &mut World, manager: Caller, client: Caller) {
    let (data, _) = world.transaction(
        client,
        CallHead { handle: 0, code: 1, flags: TF_ACCEPT_FDS },
        &Parcel::default(),
    );
    world.park(client, &[Command::Transaction { data, buffers_size: None }]);
    world.read(manager).parcel();
    let fd = world.host.install(manager.process, 9);
    let reply = world.reply(manager, &Parcel::default().fd(fd));
    world.write(manager, &[reply]);
    world.fd_deliveries = Some(Vec::new());
    assert_eq!(world.wake(), []);
}

#[test]
fn a_descriptor_becomes_one_of_the_receivers() {
    let (mut world, manager, client) = world_with_files();
    let call = world.oneway(client, 0, 1, &Parcel::default().fd(4).bytes_behind(b"x").fd(3));
    world.run(client, &[call]).work_returns();
    assert_eq!(world.host.taken.len(), 2, "taken when it was sent");
    let parcel = world.read(manager).parcel();
    let objects = world.objects(manager, &parcel);
    let file = |object: &FlatBinderObject| world.host.tables[&manager.process][&object.handle()];
    assert_eq!(objects.iter().map(file).collect::<Vec<_>>(), [8, 7]);
    assert!(world.host.taken.is_empty());
    world.write(manager, &[Command::FreeBuffer(parcel.buffer)]);
    assert_eq!(world.host.tables[&manager.process].len(), 2, "they stay when the buffer is freed");
}

#[test]
fn an_array_is_closed_with_its_buffer() {
    let (mut world, manager, client) = world_with_files();
    let parcel = array(&mut world, client, &[3, 4]);
    let call = world.oneway(client, 0, 1, &parcel);
    world.run(client, &[call]).work_returns();
    let parcel = world.read(manager).parcel();
    assert_eq!(world.host.tables[&manager.process].len(), 2);
    // The read that follows returns at once, so that the descriptors are closed now.
    let seen = world.wait(manager, &[Command::FreeBuffer(parcel.buffer)]);
    assert_eq!(seen.work_returns(), []);
    assert!(world.host.tables[&manager.process].is_empty());
}

#[test]
fn files_that_cannot_be_passed_fail_the_call_and_the_reader_keeps_waiting() {
    let (mut world, manager, client) = world_with_files();
    world.fd_deliveries = Some(Vec::new());
    world.park(manager, &[]);
    let call = world.call(client, 0, &Parcel::default().fd(3));
    world.park(client, &[call]);
    assert_eq!(world.wake(), [], "neither is answered");
    let (reader, bwr) = world.fd_deliveries.as_mut().unwrap().remove(0);
    assert_eq!(reader, manager);
    assert_eq!(world.refuse_files(manager, bwr).result, Err(Errno::EAGAIN));
    let failed = [Return::TransactionComplete, Return::FailedReply];
    assert_eq!(world.woken(client).work_returns(), failed);
    assert!(world.host.taken.is_empty());
}

#[test]
fn a_reply_whose_files_cannot_be_passed_fails_for_the_waiting_caller() {
    let (mut world, manager, client) = world_with_files();
    reply_with_a_file(&mut world, manager, client);
    let (_, bwr) = world.fd_deliveries.take().unwrap().remove(0);
    let seen = world.refuse_files(client, bwr);
    assert_eq!(seen.work_returns(), [Return::TransactionComplete, Return::FailedReply]);
}

#[test]
fn a_reader_that_dies_during_fd_delivery_leaves_the_call_to_another() {
    let (mut world, manager, client) = world_with_files();
    let second = Caller { tid: 2, ..manager };
    world.greet(second);
    world.fd_deliveries = Some(Vec::new());
    world.park(manager, &[]);
    let call = world.call(client, 0, &Parcel::default().fd(3));
    world.park(client, &[call]);
    world.wake();
    world.thread_exit(manager);
    assert!(world.driver.files_to_install(manager.process, manager.tid).is_empty());
    world.fd_deliveries = None;
    world.read(second).parcel();
    assert_eq!(world.host.tables[&manager.process].len(), 1);
}

/// Defers a call to a waiting reader, whose read returns `BR_NOOP` only.
fn deferred(world: &mut World, manager: Caller, client: Caller) {
    world.fd_deliveries = Some(Vec::new());
    world.park(manager, &[]);
    let call = world.call(client, 0, &Parcel::default().fd(3));
    world.park(client, &[call]);
    assert_eq!(world.wake(), [], "neither is answered");
    world.fd_deliveries = None;
    let seen = world.defer_files(manager);
    assert!(
        seen.work_returns().is_empty() && seen.bwr.read_consumed == 4,
        "BR_NOOP alone: {seen:?}"
    );
    assert!(world.driver.poll(manager), "who polls comes for it");
}

#[test]
fn a_deferred_call_comes_with_the_next_read_and_its_commands_run_before() {
    let (mut world, manager, client) = world_with_files();
    deferred(&mut world, manager, client);
    assert!(world.arrive(manager));
    assert!(world.host.taken.is_empty(), "they are the receiver's");
    let parcel = world.wait(manager, &[Command::EnterLooper]).parcel();
    let objects = world.objects(manager, &parcel);
    assert_eq!(world.host.tables[&manager.process][&objects[0].handle()], 7);
    let reply = world.reply(manager, &Parcel::default());
    world.write(manager, &[reply]);
    world.woken(client).parcel();
}

#[test]
fn a_write_alone_leaves_the_delivery_deferred() {
    let (mut world, manager, client) = world_with_files();
    deferred(&mut world, manager, client);
    world.write(manager, &[Command::EnterLooper]);
    assert!(world.arrive(manager));
    world.write(manager, &[Command::ExitLooper]);
    world.read(manager).parcel();
}

#[test]
fn a_waiting_reader_gets_the_files_in_that_read() {
    let (mut world, manager, client) = world_with_files();
    deferred(&mut world, manager, client);
    let parcel = world.read(manager).parcel();
    assert_eq!(world.objects(manager, &parcel).len(), 1);
    assert!(!world.arrive(manager), "too late");
}

#[test]
fn a_deferred_call_whose_files_are_refused_fails() {
    let (mut world, manager, client) = world_with_files();
    deferred(&mut world, manager, client);
    let (process, tid) = (manager.process, manager.tid);
    assert_eq!(world.driver.files_refused(&mut world.host, process, tid), None);
    let failed = [Return::TransactionComplete, Return::FailedReply];
    assert_eq!(world.woken(client).work_returns(), failed);
    assert_eq!(world.read(manager).result, Err(Errno::EAGAIN));
    assert!(world.host.taken.is_empty());
}

#[test]
fn a_deferred_reply_whose_files_are_refused_fails_for_its_receiver() {
    let (mut world, manager, client) = world_with_files();
    reply_with_a_file(&mut world, manager, client);
    assert_eq!(world.defer_files(client).work_returns(), [Return::TransactionComplete]);
    let (process, tid) = (client.process, client.tid);
    assert_eq!(world.driver.files_refused(&mut world.host, process, tid), None);
    assert_eq!(world.read(client).work_returns(), [Return::FailedReply]);
}

#[test]
fn a_thread_that_exits_leaves_its_deferred_call_to_another() {
    for arrived in [false, true] {
        let (mut world, manager, client) = world_with_files();
        let second = Caller { tid: 2, ..manager };
        world.greet(second);
        deferred(&mut world, manager, client);
        assert!(!arrived || world.arrive(manager));
        world.thread_exit(manager);
        let parcel = world.read(second).parcel();
        let objects = world.objects(manager, &parcel);
        let table = &world.host.tables[&manager.process];
        assert_eq!((table.len(), table[&objects[0].handle()]), (1, 7), "arrived: {arrived}");
    }
}

#[test]
fn a_thread_that_calls_out_leaves_its_deferred_call_to_another() {
    let (mut world, manager, client) = world_with_files();
    let lend = world.oneway(client, 0, 1, &Parcel::default().binder(0x100));
    world.run(client, &[lend]).work_returns();
    let lent = world.read(manager).parcel();
    let handle = world.objects(manager, &lent)[0].handle();
    let second = Caller { tid: 2, ..manager };
    world.greet(second);
    deferred(&mut world, manager, client);
    assert!(world.arrive(manager));
    let call = world.call(manager, handle, &Parcel::default());
    world.park(manager, &[call]);
    let parcel = world.read(second).parcel();
    assert_eq!(world.objects(manager, &parcel).len(), 1);
}

#[test]
fn a_delivery_deferred_for_a_reader_without_memory_is_an_error_and_fails_the_call() {
    let (mut world, manager, client) = world_with_files();
    world.fd_deliveries = Some(Vec::new());
    world.park(manager, &[]);
    let call = world.call(client, 0, &Parcel::default().fd(3));
    world.park(client, &[call]);
    world.wake();
    world.host.faulting.insert(manager.process);
    assert_eq!(world.defer_files(manager).result, Err(Errno::EFAULT));
    let failed = [Return::TransactionComplete, Return::FailedReply];
    assert_eq!(world.woken(client).work_returns(), failed);
}

#[test]
fn a_receiver_that_dies_unread_leaves_no_file_behind() {
    let (mut world, manager, client) = world_with_files();
    let call = world.oneway(client, 0, 1, &Parcel::default().fd(3));
    world.run(client, &[call]).work_returns();
    world.release(manager);
    assert!(world.host.taken.is_empty());
}

#[test]
fn a_bad_descriptor_releases_the_good_ones_before_it() {
    let (mut world, _manager, client) = world_with_files();
    let parcel = array(&mut world, client, &[3, 150]);
    let call = world.oneway(client, 0, 1, &parcel);
    assert_eq!(world.run(client, &[call]).work_returns(), [Return::FailedReply]);
    assert_eq!(errno(&mut world, client), -9, "EBADF");
    assert!(world.host.taken.is_empty());
}

#[test]
fn more_descriptors_than_a_transaction_may_carry_fail_it() {
    let (mut world, _manager, client) = world_with_files();
    let parcel = array(&mut world, client, &[3; 1025]);
    let call = world.oneway(client, 0, 1, &parcel);
    assert_eq!(world.run(client, &[call]).work_returns(), [Return::FailedReply]);
    assert_eq!(errno(&mut world, client), -12, "ENOMEM");
    assert!(world.host.taken.is_empty());
}

#[test]
fn a_node_with_the_flag_gets_the_security_context_of_the_sender() {
    let (mut world, context) = World::new();
    let manager = world.process(context, 1);
    let flags = FLAT_BINDER_FLAG_TXN_SECURITY_CTX;
    let object = FlatBinderObject { ty: BINDER_TYPE_BINDER, flags, binder: 0, cookie: 0 };
    world.driver.set_context_manager(manager, Some(object)).unwrap();
    let client = world.process(context, 10);
    let call = world.oneway(client, 0, 1, &Parcel::bytes(b"who"));
    assert_eq!(world.run(client, &[call]).work_returns(), [Return::FailedReply]);
    assert_eq!(errno(&mut world, client), -22, "a system without contexts");
    world.host.security_context = Some(b"u:r:shell:s0".to_vec());
    let call = world.oneway(client, 0, 1, &Parcel::bytes(b"who"));
    world.run(client, &[call]).work_returns();
    let seen = world.read(manager);
    let Return::TransactionSecCtx(data) = seen.work_returns()[0] else { panic!("{seen:?}") };
    assert_eq!(world.mapped(manager, data.secctx, 13), b"u:r:shell:s0\0");
    assert_eq!(world.data(manager, &data.transaction_data), b"who");
}

#[test]
fn messages_that_are_queued_for_an_open_without_opener_are_dropped_with_their_files() {
    let (mut world, manager, client) = world_with_files();
    let call = |world: &mut World, file: u32| {
        let parcel = Parcel::default().fd(file);
        let call = world.oneway(client, 0, 1, &parcel);
        world.run(client, &[call]).work_returns();
    };
    // The second one waits for the first one, as both are for one node.
    (3..=4).for_each(|file| call(&mut world, file));
    let sync = world.call(client, 0, &Parcel::default());
    world.park(client, &[sync]);
    assert_eq!(world.host.taken.len(), 2);
    world.driver.opener_exited(&mut world.host, manager.process);
    assert!(world.host.taken.is_empty(), "{:?}", world.host.taken);
    let returns = [Return::TransactionComplete, Return::DeadReply];
    assert_eq!(world.woken(client).work_returns(), returns);
    world.driver.check_invariants().unwrap();
    world.release(manager);
    world.release(client);
    assert!(world.driver.is_empty(), "{:?}", world.driver.snapshot());
}
