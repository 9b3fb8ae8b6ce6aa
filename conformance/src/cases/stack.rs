//! Nested calls, and exits during them.

use binder_uapi::*;

use super::*;

cases! {
    "stack.nested", nested, "a call back goes to the very thread that waits";
    "stack.nested_other_thread_waits", nested_other,
        "even where another thread of the process is free";
    "stack.three_deep", three_deep, "a calls b calls c calls a";
    "stack.one_way_is_not_nested", one_way, "a one-way call back goes to the process";
    "stack.second_call_while_waiting", second_call, "a thread that waits for a reply calls again";
    "stack.one_way_while_waiting", one_way_while_waiting,
        "a thread that waits for a reply sends one-way";
    "stack.call_while_serving", call_while_serving,
        "a thread that has a call to answer calls somebody else";
    "stack.waiting_thread_takes_no_calls", takes_no_calls,
        "a thread that waits for a reply takes no work of the process";
    "stack.caller_dies", caller_dies, "the reply to a dead caller";
    "stack.target_dies_before_reading", target_dies_before,
        "the target dies with the call in its queue";
    "stack.target_dies_serving", target_dies_serving, "the target dies with the call in hand";
    "stack.target_thread_exits", target_thread_exits,
        "the thread with the call in hand says goodbye";
    "stack.target_thread_ends", target_thread_ends,
        "the thread with the call in hand ends without a word";
    "stack.caller_thread_exits", caller_thread_exits,
        "the waiting thread says goodbye; the reply finds nobody";
    "stack.middle_dies", middle_dies, "the one in the middle of a chain dies";
    "stack.dead_target", dead_target, "a call to a node of a dead process";
    "stack.target_closes", target_closes, "the target closes its open";
    "stack.caller_frees_while_waiting", frees_while_waiting,
        "commands of a thread that waits for a reply";
}

/// A client with a node that the manager holds: the manager can call back.
fn known_client(s: &Stage, m: &Peer) -> Result<(Peer, u32), Stop> {
    let p = client(s)?;
    let handle = introduce(s, &p, m, NODE)?;
    Ok((p, handle))
}

fn nested(s: &Stage) -> Outcome {
    let m = manager(s)?;
    let (p, handle) = known_client(s, &m)?;
    call_in_progress(&m, &p)?;
    m.post(&Tx::to(handle, 2).data(b"back"))?;
    p.read()?;
    p.reply(&Tx::new().data(b"inner"))?;
    m.read()?;
    m.reply(&Tx::new().data(b"outer"))?;
    p.read()?;
    Ok(())
}

fn nested_other(s: &Stage) -> Outcome {
    let m = manager(s)?;
    let (p, handle) = known_client(s, &m)?;
    let t = p.new_thread()?;
    t.write(&[Command::EnterLooper])?;
    call_in_progress(&m, &p)?;
    m.post(&Tx::to(handle, 2).data(b"back"))?;
    t.read()?;
    p.read()?;
    s.note("an unrelated call goes to the free thread");
    let q = client(s)?;
    let m2 = m.new_thread()?;
    let q_handle = s.quietly(|| {
        q.post(&Tx::to(0, 2))?;
        m2.receive()?;
        m2.reply(&Tx::new().object(crate::transaction::remote(handle)))?;
        let reply = q.receive()?;
        let q_handle = q.handle_in(&reply, 0)?;
        q.write(&[Command::Acquire(q_handle)])?;
        Ok(q_handle)
    })?;
    q.post(&Tx::to(q_handle, 3).data(b"unrelated"))?;
    p.read()?;
    t.read()?;
    Ok(())
}

fn three_deep(s: &Stage) -> Outcome {
    let a = manager(s)?;
    let (b, b_handle) = known_client(s, &a)?;
    let c = client(s)?;
    let c_handle = introduce(s, &c, &a, OTHER_NODE)?;
    let c_of_b = pass_on(s, &a, c_handle, &b)?;
    a.post(&Tx::to(b_handle, 1).data(b"a to b"))?;
    b.receive()?;
    b.post(&Tx::to(c_of_b, 2).data(b"b to c"))?;
    c.receive()?;
    c.post(&Tx::to(0, 3).data(b"c to a"))?;
    a.read()?;
    s.note("and out again");
    a.reply(&Tx::new().data(b"a"))?;
    c.read()?;
    c.reply(&Tx::new().data(b"c"))?;
    b.read()?;
    b.reply(&Tx::new().data(b"b"))?;
    a.read()?;
    Ok(())
}

fn one_way(s: &Stage) -> Outcome {
    let m = manager(s)?;
    let (p, handle) = known_client(s, &m)?;
    call_in_progress(&m, &p)?;
    m.send(&Tx::to(handle, 2).one_way().data(b"later"))?;
    s.note("the waiting thread does not get it");
    p.read()?;
    let t = p.new_thread()?;
    t.write(&[Command::EnterLooper])?;
    t.read()?;
    m.reply(&Tx::new())?;
    p.read()?;
    Ok(())
}

fn second_call(s: &Stage) -> Outcome {
    let (_m, p) = pair(s)?;
    p.send(&Tx::to(0, 1).data(b"first"))?;
    p.send(&Tx::to(0, 2).data(b"second"))?;
    p.extended_error()
}

fn one_way_while_waiting(s: &Stage) -> Outcome {
    let (m, p) = pair(s)?;
    p.send(&Tx::to(0, 1).data(b"first"))?;
    p.send(&Tx::to(0, 2).one_way().data(b"second"))?;
    m.receive()?;
    m.reply(&Tx::new())?;
    m.read()?;
    p.drain()
}

fn call_while_serving(s: &Stage) -> Outcome {
    let m = manager(s)?;
    let (q, handle) = known_client(s, &m)?;
    let p = client(s)?;
    call_in_progress(&m, &p)?;
    m.post(&Tx::to(handle, 5).data(b"help"))?;
    q.receive()?;
    s.note("the outer call cannot be answered before the inner one is");
    m.reply(&Tx::new().data(b"too early"))?;
    m.extended_error()?;
    q.reply(&Tx::new().data(b"helped"))?;
    m.read()?;
    m.reply(&Tx::new().data(b"done"))?;
    p.read()?;
    Ok(())
}

fn takes_no_calls(s: &Stage) -> Outcome {
    let m = manager(s)?;
    let (p, handle) = known_client(s, &m)?;
    p.send(&Tx::to(0, 1).data(b"waiting"))?;
    let t = m.new_thread()?;
    t.post(&Tx::to(handle, 2).data(b"unrelated"))?;
    p.read()?;
    let u = p.new_thread()?;
    u.read()?;
    u.read()?;
    Ok(())
}

fn caller_dies(s: &Stage) -> Outcome {
    let m = blocking_manager(s)?;
    let p = client(s)?;
    call_in_progress(&m, &p)?;
    await_death_of(s, &p, &m)?;
    m.reply(&Tx::new().data(b"to nobody"))?;
    m.extended_error()
}

/// Kills `p` and waits until the driver has noticed: `m` has a reference to a node of `p` and
/// receives the death notification on a thread of its own.
fn await_death_of(s: &Stage, p: &Peer, m: &Peer) -> Outcome {
    let t = m.new_thread()?;
    let q = p.new_thread()?;
    s.quietly(|| {
        q.post(&Tx::to(0, 1).one_way().object(local(0x7000, 0x7001)))?;
        t.write(&[Command::EnterLooper])?;
        let data = t.receive()?;
        let handle = t.handle_in(&data, 0)?;
        let notification = BinderHandleCookie { handle, cookie: 0x7070 };
        t.write(&[Command::Acquire(handle), Command::RequestDeathNotification(notification)])?;
        Ok(())
    })?;
    p.die()?;
    t.read()?;
    Ok(())
}

fn target_dies_before(s: &Stage) -> Outcome {
    let m = manager(s)?;
    let p = blocking_client(s)?;
    p.start(&[Tx::to(0, 1).data(b"call").transaction(p.arena())], 256)?;
    p.blocks()?;
    m.die()?;
    p.finish()?;
    p.extended_error()
}

fn target_dies_serving(s: &Stage) -> Outcome {
    let m = manager(s)?;
    let p = blocking_client(s)?;
    p.start(&[Tx::to(0, 1).data(b"call").transaction(p.arena())], 256)?;
    p.blocks()?;
    m.receive()?;
    m.die()?;
    p.finish()?;
    p.extended_error()
}

fn target_thread_exits(s: &Stage) -> Outcome {
    let (m, p) = pair(s)?;
    let t = m.new_thread()?;
    p.send(&Tx::to(0, 1).data(b"call"))?;
    t.write(&[Command::EnterLooper])?;
    t.receive()?;
    t.thread_exit()?;
    p.read()?;
    p.extended_error()?;
    t.reply(&Tx::new())?;
    Ok(())
}

fn target_thread_ends(s: &Stage) -> Outcome {
    let m = manager(s)?;
    let p = blocking_client(s)?;
    let t = m.new_thread()?;
    p.start(&[Tx::to(0, 1).data(b"call").transaction(p.arena())], 256)?;
    p.blocks()?;
    t.write(&[Command::EnterLooper])?;
    t.receive()?;
    t.leave()?;
    p.blocks()
}

fn caller_thread_exits(s: &Stage) -> Outcome {
    let (m, p) = pair(s)?;
    call_in_progress(&m, &p)?;
    p.thread_exit()?;
    m.reply(&Tx::new().data(b"to nobody"))?;
    m.extended_error()?;
    p.drain()
}

fn middle_dies(s: &Stage) -> Outcome {
    let m = manager(s)?;
    let (c, handle) = known_client(s, &m)?;
    let p = blocking_client(s)?;
    p.start(&[Tx::to(0, 1).data(b"call").transaction(p.arena())], 256)?;
    p.blocks()?;
    m.receive()?;
    m.post(&Tx::to(handle, 2).data(b"deeper"))?;
    c.receive()?;
    m.die()?;
    p.blocks()?;
    c.reply(&Tx::new().data(b"to nobody"))?;
    c.extended_error()?;
    p.finish()?;
    Ok(())
}

fn dead_target(s: &Stage) -> Outcome {
    let m = blocking_manager(s)?;
    let p = client(s)?;
    let handle = introduce(s, &p, &m, NODE)?;
    let notification = BinderHandleCookie { handle, cookie: 0x70 };
    m.write(&[Command::RequestDeathNotification(notification)])?;
    p.die()?;
    m.read()?;
    m.send(&Tx::to(handle, 1).data(b"call"))?;
    m.extended_error()?;
    m.send(&Tx::to(handle, 1).one_way())?;
    m.extended_error()
}

fn target_closes(s: &Stage) -> Outcome {
    let m = manager(s)?;
    let p = blocking_client(s)?;
    p.start(&[Tx::to(0, 1).data(b"call").transaction(p.arena())], 256)?;
    p.blocks()?;
    m.unmap()?;
    m.close()?;
    p.finish()?;
    Ok(())
}

fn frees_while_waiting(s: &Stage) -> Outcome {
    let (m, p) = pair(s)?;
    call_in_progress(&m, &p)?;
    m.reply(&Tx::new().data(b"first"))?;
    let reply = p.receive()?;
    p.send(&Tx::to(0, 1).data(b"second"))?;
    p.exchange(&[Command::FreeBuffer(reply.buffer), Command::Acquire(0)], 256)?;
    m.drain()
}
