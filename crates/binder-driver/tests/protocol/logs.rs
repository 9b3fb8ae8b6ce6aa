//! The texts of `binder_logs`, which tools for the kernel's driver parse.

use binder_uapi::*;

use crate::common::*;

/// The line of `text` with this prefix.
fn line<'a>(text: &'a str, start: &str) -> &'a str {
    let found = text.lines().find(|line| line.starts_with(start));
    found.unwrap_or_else(|| panic!("no line starts with {start:?} in\n{text}"))
}

#[test]
fn the_statistics_count_commands_returns_and_objects() {
    let (mut world, manager, [client]) = World::with_manager();
    world.park(manager, &[Command::EnterLooper]);
    let call = world.call(client, 0, &Parcel::bytes(b"ping"));
    world.park(client, &[call]);
    let request = world.woken(manager).parcel();
    let reply = world.reply(manager, &Parcel::bytes(b"pong"));
    world.run(manager, &[reply, Command::FreeBuffer(request.buffer)]);
    world.woken(client);

    let stats = world.driver.stats();
    let (all, each) = stats.split_once("proc 1\n").unwrap();
    assert!(all.starts_with("binder stats:\nBC_TRANSACTION: 1\nBC_REPLY: 1\n"), "{stats}");
    for expected in ["BR_TRANSACTION: 1", "BR_REPLY: 1", "BR_TRANSACTION_COMPLETE: 2"] {
        assert!(all.lines().any(|line| line == expected), "{expected} is missing in\n{stats}");
    }
    assert_eq!(line(all, "proc:"), "proc: active 2 total 2");
    assert_eq!(line(all, "transaction:"), "transaction: active 0 total 2");
    let (manager, client) = each.split_once("proc 10\n").unwrap();
    assert!(manager.starts_with("context binder\n  threads: 1\n  requested threads: 0+0/0\n"));
    assert_eq!(line(manager, "  BC_REPLY"), "  BC_REPLY: 1");
    assert_eq!(line(client, "  buffers"), "  buffers: 1", "the reply, which is not freed yet");
    assert!(line(client, "  pages").starts_with("  pages: 1:0:"));
    assert!(!client.contains("BC_REPLY"));
}

#[test]
fn the_state_shows_the_caller_and_the_target_of_each_call() {
    let (mut world, manager, [client]) = World::with_manager();
    world.park(manager, &[Command::EnterLooper]);
    let call = world.call(client, 0, &Parcel::bytes(b"ping"));
    world.park(client, &[Command::Acquire(0), call]);
    world.woken(manager);

    let state = world.driver.state();
    assert!(state.starts_with("binder state:\nproc 1\ncontext binder\n"), "{state}");
    assert!(line(&state, "  thread 1:").starts_with("  thread 1: l 02 need_return 0 tr 0"));
    let incoming = line(&state, "    incoming transaction");
    assert!(incoming.contains(" from 10:10 to 1:1 code 1 flags "), "{incoming}");
    assert!(incoming.contains(" r1 elapsed 0ms node "), "{incoming}");
    assert!(incoming.ends_with(" size 4:0 offset 0"), "{incoming}");
    let outgoing = line(&state, "    outgoing transaction");
    assert!(outgoing.ends_with(" r1 elapsed 0ms"), "the rest is the receiver's: {outgoing}");
    assert!(line(&state, "  node ").ends_with(" is 1 iw 1 tr 1 proc 10"), "{state}");
    assert!(line(&state, "  ref 0: desc 0 node ").ends_with(" s 1 w 0 d 0000000000000000"));
    assert!(line(&state, "  buffer ").ends_with(": 0 size 4:0:0 active"));

    let transactions = world.driver.transactions();
    assert!(transactions.contains(incoming) && transactions.contains(outgoing));
    assert!(!transactions.contains("  ref "), "{transactions}");
    let (quiet, _, [_]) = World::with_manager();
    let idle = quiet.driver.transactions();
    assert_eq!(idle, "binder transactions:\n", "who has nothing under way is not listed");

    let process = world.driver.process_state(10);
    assert!(process.starts_with("binder proc state:\nproc 10\n") && !process.contains("proc 1\n"));
    assert_eq!(world.driver.pids(), [1, 10]);
    assert!(world.driver.has_pid(10) && !world.driver.has_pid(11));
}

#[test]
fn nodes_of_dead_processes_are_listed_separately() {
    let (mut world, manager, [owner, client]) = World::with_manager();
    world.share(owner, 0x10, manager, client);
    world.release(owner);
    let state = world.driver.state();
    let start = "binder state:\ndead nodes:\n  node ";
    assert!(state.starts_with(start), "{state}");
    assert!(line(&state, "  ref 1: desc 1 dead node ").contains(" s 1 "), "{state}");
}

#[test]
fn the_logs_keep_the_last_32_transactions_and_the_last_that_failed() {
    let (mut world, manager, [client]) = World::with_manager();
    world.park(manager, &[Command::EnterLooper]);
    for _ in 0..40 {
        let call = world.oneway(client, 0, 7, &Parcel::bytes(b"12345678"));
        world.write(client, &[call]);
        world.read(client);
    }
    let call = world.call(client, 99, &Parcel::default());
    world.write(client, &[call]);
    let log = world.driver.transaction_log();
    assert_eq!(log.lines().count(), 32);
    let (taken, failed) = (log.lines().next().unwrap(), log.lines().last().unwrap());
    assert!(taken.contains(": async from 10:10 to 1:0 context binder node "), "{taken}");
    assert!(taken.ends_with(" handle 0 size 8:0 ret 0/0 l=0"), "{taken}");
    // 29201 is BR_FAILED_REPLY.
    let expected =
        ": call  from 10:10 to 0:0 context binder node 0 handle 99 size 0:0 ret 29201/-22 l=0";
    assert!(failed.ends_with(expected), "{failed}");
    assert_eq!(world.driver.failed_transaction_log(), format!("{failed}\n"));
}

#[test]
fn a_text_ends_at_a_line_below_its_maximum_size() {
    let (mut world, _manager, [client]) = World::with_manager();
    for tid in 0..30_000 {
        world.driver.note_ioctl(binder_driver::Caller { tid: 100 + tid, ..client }).unwrap();
    }
    for text in [world.driver.state(), world.driver.process_state(client.tid)] {
        assert!(text.len() < (1 << 20) + 100 && text.len() > (1 << 20) - 1000, "{}", text.len());
        assert!(text.ends_with("\n(the rest is left out)\n"));
    }
    assert!(!world.driver.stats().contains("left out"));
}
