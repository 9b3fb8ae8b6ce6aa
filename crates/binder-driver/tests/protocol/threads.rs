//! Loopers, parking, waking, polling, interrupts and closing.

use binder_driver::{Caller, Interrupt, Waiting, Wake};
use binder_uapi::*;

use crate::common::*;

fn looper(world: &World) -> String {
    world.driver.snapshot().contexts[0].processes[0].threads[0].looper.clone()
}

#[test]
fn the_pool_is_entered_in_one_way_only() {
    use Command::*;
    let cases: [(&[Command], &str); 5] = [
        (&[EnterLooper], "entered"),
        (&[EnterLooper, ExitLooper], "entered|exited"),
        (&[RegisterLooper], "registered|invalid"),
        (&[EnterLooper, RegisterLooper], "entered|registered|invalid"),
        (&[RegisterLooper, EnterLooper], "entered|registered|invalid"),
    ];
    for (commands, expected) in cases {
        let (mut world, manager, []) = World::with_manager();
        world.write(manager, commands);
        assert_eq!(looper(&world), expected, "{commands:?}");
    }
}

#[test]
fn another_looper_is_requested_when_the_last_idle_one_gets_work() {
    let (mut world, manager, [client]) = World::with_manager();
    world.driver.set_max_threads(manager.process, 1).unwrap();
    world.park(manager, &[Command::EnterLooper]);
    let call = world.oneway(client, 0, 0, &Parcel::default());
    world.write(client, &[call]);
    let seen = world.woken(manager);
    assert_eq!(seen.returns[0], Return::SpawnLooper);
    let request = seen.parcel();

    // No further thread is requested while the first one has not registered.
    let call = world.call(client, 0, &Parcel::default());
    world.write(client, &[call]);
    let seen = world.run(manager, &[Command::FreeBuffer(request.buffer)]);
    assert_eq!(seen.returns[0], Return::Noop);

    // The new thread registers; the maximum is reached.
    let spawned = Caller { tid: 2, ..manager };
    world.write(spawned, &[Command::RegisterLooper]);
    let threads = &world.driver.snapshot().contexts[0].processes[0].threads;
    assert_eq!(threads.iter().find(|t| t.tid == 2).unwrap().looper, "registered");
    let other = Caller { tid: 21, ..client };
    let call = world.oneway(other, 0, 0, &Parcel::default());
    world.write(other, &[call]);
    assert_eq!(world.read(spawned).returns[0], Return::Noop);
}

#[test]
fn no_looper_is_requested_while_one_is_idle_or_outside_the_pool() {
    let (mut world, manager, [client]) = World::with_manager();
    world.driver.set_max_threads(manager.process, 5).unwrap();
    let [first, second, outsider] = [1, 2, 3].map(|tid| Caller { tid, ..manager });
    world.park(first, &[Command::EnterLooper]);
    world.park(second, &[Command::EnterLooper]);
    let call = world.oneway(client, 0, 0, &Parcel::default());
    world.write(client, &[call]);
    let seen = world.woken(second);
    assert_eq!(seen.returns[0], Return::Noop, "the first one is still idle");
    assert!(world.interrupt(first));
    let call = world.call(client, 0, &Parcel::default());
    world.write(client, &[call]);
    assert_eq!(world.read(outsider).returns[0], Return::Noop);
}

#[test]
fn the_idle_thread_that_came_last_is_woken_first() {
    let (mut world, manager, [a, b]) = World::with_manager();
    let [first, second] = [1, 2].map(|tid| Caller { tid, ..manager });
    world.park(first, &[Command::EnterLooper]);
    world.park(second, &[Command::EnterLooper]);
    for (client, expected) in [(a, second), (b, first)] {
        let call = world.call(client, 0, &Parcel::default());
        world.park(client, &[call]);
        world.woken(expected).parcel();
    }
}

#[test]
fn an_interrupt_ends_a_park_and_its_wake_up() {
    let (mut world, manager, [client]) = World::with_manager();
    let worker = Caller { tid: 2, ..manager };
    world.park(worker, &[Command::EnterLooper]);
    let ended = world.driver.interrupt(worker.process, worker.tid);
    let Interrupt::Ended(bwr) = ended else { panic!("{ended:?}") };
    assert_eq!((bwr.write_consumed, bwr.read_consumed), (4, 0), "commands stay consumed");
    assert!(!world.interrupt(worker), "once only");
    world.park(worker, &[]);
    let call = world.call(client, 0, &Parcel::default());
    world.park(client, &[call]);
    assert!(world.interrupt(worker));
    assert_eq!(world.wake(), [], "the wake-up was for the park that is over");
    world.read(worker).parcel();
}

#[test]
fn work_of_the_process_wakes_another_thread_when_the_woken_one_is_interrupted() {
    let (mut world, manager, [client]) = World::with_manager();
    let call = world.oneway(client, 0, 0, &Parcel::default().binder(0x10));
    world.write(client, &[call]);
    let request = world.read(manager).parcel();
    let seen = world.read(client);
    world.run_bookkeeping(client, &seen);
    let [first, second] = [31, 32].map(|tid| Caller { tid, ..client });
    world.park(first, &[Command::EnterLooper]);
    world.park(second, &[Command::EnterLooper]);
    world.write(manager, &[Command::FreeBuffer(request.buffer)]);
    let woken = world.driver.next_wake().unwrap();
    assert_eq!(woken, Wake::Reader { process: second.process, tid: 32 });
    assert!(world.interrupt(second));
    assert_eq!(world.woken(first).work_returns().len(), 2);
}

#[test]
fn a_woken_thread_whose_work_was_taken_parks_again() {
    let (mut world, manager, [client]) = World::with_manager();
    let call = world.oneway(client, 0, 0, &Parcel::default().binder(0x10));
    world.write(client, &[call]);
    let request = world.read(manager).parcel();
    let seen = world.read(client);
    world.run_bookkeeping(client, &seen);
    let worker = Caller { tid: 31, ..client };
    world.park(worker, &[Command::EnterLooper]);
    world.write(manager, &[Command::FreeBuffer(request.buffer)]);
    assert_eq!(world.read(client).work_returns().len(), 2, "another thread is faster");
    assert_eq!(world.wake(), [], "parked again");
    assert!(world.interrupt(worker));
}

#[test]
fn a_poller_is_woken_for_each_item_that_becomes_readable() {
    let (mut world, manager, [client]) = World::with_manager();
    assert!(!world.driver.poll(manager));
    for code in 0..2 {
        let call = world.oneway(client, 0, code, &Parcel::default());
        world.write(client, &[call]);
    }
    world.wake();
    assert_eq!(world.polled, [manager.process], "the second one waits for the first");
    let request = world.read(manager).parcel();
    world.write(manager, &[Command::FreeBuffer(request.buffer)]);
    world.wake();
    assert_eq!(world.polled.len(), 2, "though it has not polled again");
    assert!(world.driver.poll(manager));
}

#[test]
fn a_poller_is_woken_for_an_item_while_another_one_is_readable() {
    let (mut world, manager, clients) = World::with_manager::<2>();
    assert!(!world.driver.poll(manager));
    for (at, client) in clients.into_iter().enumerate() {
        let call = world.call(client, 0, &Parcel::default());
        world.write(client, &[call]);
        world.wake();
        assert_eq!(world.polled.len(), at + 1);
    }
}

#[test]
fn a_poller_is_woken_when_its_thread_exits() {
    let (mut world, _, [client]) = World::with_manager();
    assert!(!world.driver.poll(client));
    world.thread_exit(client);
    world.wake();
    assert_eq!(world.polled, [client.process], "it polled for a state that has ended");
    world.thread_exit(client);
    world.wake();
    assert_eq!(world.polled.len(), 1, "the thread has not polled since");
}

#[test]
fn polling_reports_a_threads_own_work() {
    let (mut world, _, [client]) = World::with_manager();
    assert!(!world.driver.poll(client));
    let call = world.oneway(client, 0, 0, &Parcel::default());
    world.write(client, &[call]);
    world.wake();
    assert_eq!(world.polled, [client.process]);
    assert!(world.driver.poll(client));
    assert_eq!(world.read(client).work_returns(), [Return::TransactionComplete]);
    assert!(!world.driver.poll(client));
}

#[test]
fn closing_a_descriptor_returns_parked_readers_and_the_next_read_of_the_others() {
    let (mut world, manager, []) = World::with_manager();
    let [parked, busy] = [1, 2].map(|tid| Caller { tid, ..manager });
    world.write(busy, &[Command::EnterLooper]);
    world.park(parked, &[Command::EnterLooper]);
    world.driver.flush(manager.process);
    assert_eq!(world.woken(parked).work_returns(), []);
    assert_eq!(world.wait(busy, &[]).work_returns(), []);
    world.park(parked, &[]);
    world.park(busy, &[]);
}

#[test]
fn a_read_without_room_returns_without_taking_work() {
    let (mut world, manager, [client]) = World::with_manager();
    let call = world.call(client, 0, &Parcel::bytes(b"kept"));
    world.write(client, &[call]);
    for room in [4, 8, 79] {
        assert_eq!(world.write_read(manager, &[], room, Waiting::Allowed).work_returns(), []);
    }
    assert_eq!(world.write_read(manager, &[], 3, Waiting::Allowed).bwr.read_consumed, 0);
    let request = world.write_read(manager, &[], 80, Waiting::Allowed).parcel();
    assert_eq!(world.data(manager, &request), b"kept");
}

#[test]
fn a_read_returns_after_one_transaction() {
    let (mut world, manager, [a, b]) = World::with_manager();
    for client in [a, b] {
        let call = world.call(client, 0, &Parcel::default());
        world.write(client, &[call]);
    }
    let seen = world.write_read(manager, &[], 4096, Waiting::Refused);
    assert_eq!(seen.work_returns().len(), 1);
}

#[test]
fn a_read_goes_on_behind_what_was_consumed_before() {
    let (mut world, _, [client]) = World::with_manager();
    let call = world.oneway(client, 0, 0, &Parcel::default());
    world.write(client, &[call]);
    let seen = world.read(client);
    let commands = encode(&[world.oneway(client, 0, 0, &Parcel::default())]);
    let write_buffer = world.place(client, &commands);
    let write_size = commands.len() as u64;
    let bwr = BinderWriteRead { write_size, write_buffer, read_consumed: 8, ..seen.bwr };
    let bwr = BinderWriteRead { write_consumed: 0, ..bwr };
    let answer = world.driver.write_read(&mut world.host, client, bwr, Waiting::Refused);
    let binder_driver::WriteRead::Done { bwr, result: Ok(()) } = answer else {
        panic!("{answer:?}")
    };
    assert_eq!(bwr.read_consumed, 12, "one word more, no BR_NOOP");
}

#[test]
fn a_parked_reader_dies_with_its_thread_or_process() {
    let (mut world, manager, [client]) = World::with_manager();
    world.park(manager, &[Command::EnterLooper]);
    world.park(client, &[Command::EnterLooper]);
    world.thread_exit(client);
    world.release(manager);
    assert_eq!(world.wake(), []);
    assert!(!world.interrupt(client));
}

#[test]
fn a_new_thread_returns_at_once_from_its_first_ioctl_if_that_is_a_read() {
    let (mut world, _, [client]) = World::with_manager();
    let caller = |tid| Caller { tid, ..client };
    // Such a thread is readable for poll, and its read returns at once with `BR_NOOP` only.
    world.greeted.insert(caller(11));
    assert!(world.driver.poll(caller(11)));
    let seen = world.wait(caller(11), &[]);
    assert!(!seen.parked);
    assert_eq!(seen.work_returns(), []);
    world.park(caller(11), &[]);
    // After any other ioctl, or a write alone, the first read waits.
    world.park(caller(12), &[]);
    world.greeted.insert(caller(13));
    world.write(caller(13), &[Command::EnterLooper]);
    world.park(caller(13), &[]);
}
