//! Signals, closing, and exits in every state.

use binder_uapi::*;

use super::*;

cases! {
    "process.signal", signal, "a signal ends a waiting read";
    "process.signal_restart", signal_restart, "a signal whose handler asks for a restart";
    "process.signal_restart_after_write", restart_after_write,
        "what was written before is not taken again after a restart";
    "process.signal_in_call", signal_in_call,
        "a signal while waiting for a reply; the reply comes later";
    "process.signal_before", signal_before, "what was written before the wait is taken once";
    "process.killed_waiting", killed_waiting, "killed in a waiting read";
    "process.killed_in_call", killed_in_call, "killed while it waits for a reply";
    "process.close_wakes", close_wakes, "closing a copy of the descriptor wakes who waits";
    "process.close_keeps_mapping", close_keeps,
        "an open lives on in its mapping's process until the last close";
    "process.second_open_is_another", second_open, "two opens of one process are two";
    "process.dies_with_nodes_unread", dies_unread, "dies with calls that carry objects unread";
    "process.dies_holding_buffers", dies_holding,
        "dies with buffers, references and a call in hand";
    "process.exits_normally", exits, "exit_group ends the open like a kill";
    "process.reopened", reopened, "a process that opens the device again starts anew";
    "process.many", many, "sixteen processes call one after the other";
}

fn signal(s: &Stage) -> Outcome {
    let p = blocking_client(s)?;
    p.catch_signal(0)?;
    p.start(&[], 256)?;
    p.blocks()?;
    p.interrupt()?;
    p.finish()?;
    p.start(&[], 256)?;
    p.blocks()
}

fn signal_restart(s: &Stage) -> Outcome {
    let m = blocking_manager(s)?;
    m.catch_signal(libc::SA_RESTART)?;
    m.start(&[], 256)?;
    m.blocks()?;
    m.interrupt()?;
    m.blocks()?;
    m.finish().map(drop)
}

fn restart_after_write(s: &Stage) -> Outcome {
    let m = manager(s)?;
    let p = blocking_client(s)?;
    p.catch_signal(libc::SA_RESTART)?;
    p.start(&[Tx::to(0, 1).data(b"once").transaction(p.arena())], 256)?;
    p.blocks()?;
    p.interrupt()?;
    p.blocks()?;
    s.note("the manager sees one call");
    m.receive()?;
    m.reply(&Tx::new().data(b"answer"))?;
    m.drain()?;
    p.finish()?;
    p.extended_error()
}

fn signal_in_call(s: &Stage) -> Outcome {
    let m = manager(s)?;
    let p = blocking_client(s)?;
    p.catch_signal(0)?;
    p.start(&[Tx::to(0, 1).data(b"call").transaction(p.arena())], 256)?;
    p.blocks()?;
    p.interrupt()?;
    p.finish()?;
    m.receive()?;
    m.reply(&Tx::new().data(b"later"))?;
    p.read()?;
    Ok(())
}

fn signal_before(s: &Stage) -> Outcome {
    let m = manager(s)?;
    let p = blocking_client(s)?;
    p.catch_signal(0)?;
    p.send(&Tx::to(0, 1).one_way())?;
    p.start(&[Tx::to(0, 2).one_way().transaction(p.arena())], 4)?;
    p.finish()?;
    p.read()?;
    p.start(&[Command::EnterLooper, Command::Acquire(0)], 256)?;
    p.blocks()?;
    p.interrupt()?;
    p.finish()?;
    let first = m.receive()?;
    m.free(&first)?;
    m.drain()
}

fn killed_waiting(s: &Stage) -> Outcome {
    let m = blocking_manager(s)?;
    m.start(&[], 256)?;
    m.blocks()?;
    m.die()?;
    let p = client(s)?;
    p.let_time_pass();
    p.send(&Tx::to(0, 1))?;
    Ok(())
}

fn killed_in_call(s: &Stage) -> Outcome {
    let m = manager(s)?;
    let p = blocking_client(s)?;
    p.start(&[Tx::to(0, 1).data(b"call").transaction(p.arena())], 256)?;
    p.blocks()?;
    p.die()?;
    m.let_time_pass();
    s.note("the call is delivered all the same");
    m.receive()?;
    m.reply(&Tx::new())?;
    m.extended_error()?;
    m.drain()
}

fn close_wakes(s: &Stage) -> Outcome {
    let p = blocking_client(s)?;
    let t = p.new_thread()?;
    t.write(&[Command::EnterLooper])?;
    t.start(&[], 256)?;
    t.blocks()?;
    let copy = p.call(libc::SYS_dup, [p.fd() as u64, 0, 0, 0, 0, 0])?;
    p.call(libc::SYS_close, [copy as u64, 0, 0, 0, 0, 0])?;
    p.log("closes a copy of the descriptor");
    t.finish()?;
    s.note("the open is as it was");
    p.write(&[Command::EnterLooper])?;
    Ok(())
}

fn close_keeps(s: &Stage) -> Outcome {
    let (m, p) = pair(s)?;
    let notification = BinderHandleCookie { handle: 0, cookie: 1 };
    p.write(&[Command::Acquire(0), Command::RequestDeathNotification(notification)])?;
    m.close()?;
    p.let_time_pass();
    s.note("closed, still mapped");
    p.drain()?;
    m.unmap()?;
    p.let_time_pass();
    p.drain()
}

fn second_open(s: &Stage) -> Outcome {
    let (m, p) = pair(s)?;
    let other = p.second_open();
    other.set_up(NONBLOCK, MAP_LEN)?;
    let handle = introduce(s, &p, &m, NODE)?;
    s.note("the node of the one open is a handle in the other");
    other.post(&Tx::to(0, 1))?;
    m.receive()?;
    m.reply(&Tx::new().object(crate::transaction::remote(handle)))?;
    let reply = other.receive()?;
    let other_handle = other.handle_in(&reply, 0)?;
    other.send(&Tx::to(other_handle, 2).data(b"to myself"))?;
    p.receive()?;
    p.reply(&Tx::new().data(b"from myself"))?;
    other.read()?;
    Ok(())
}

fn dies_unread(s: &Stage) -> Outcome {
    let (m, p) = pair(s)?;
    let got = p.send(&Tx::to(0, 1).object(local(NODE.ptr, NODE.cookie)))?;
    p.acknowledge(&got)?;
    p.drain()?;
    m.die()?;
    p.let_time_pass();
    p.drain()?;
    p.node_debug_info(0)?;
    Ok(())
}

fn dies_holding(s: &Stage) -> Outcome {
    let (m, p) = pair(s)?;
    introduce(s, &p, &m, NODE)?;
    p.post(&Tx::to(0, 1).object(local(OTHER_NODE.ptr, OTHER_NODE.cookie)))?;
    p.drain()?;
    m.receive()?;
    m.die()?;
    p.let_time_pass();
    p.drain()?;
    p.node_debug_info(0)?;
    Ok(())
}

fn exits(s: &Stage) -> Outcome {
    let (m, p) = pair(s)?;
    let notification = BinderHandleCookie { handle: 0, cookie: 1 };
    p.write(&[Command::Acquire(0), Command::RequestDeathNotification(notification)])?;
    m.exit_group()?;
    p.let_time_pass();
    p.drain()
}

fn reopened(s: &Stage) -> Outcome {
    let (m, p) = pair(s)?;
    introduce(s, &p, &m, NODE)?;
    p.unmap()?;
    p.close()?;
    p.set_up(NONBLOCK, MAP_LEN)?;
    p.node_debug_info(0)?;
    p.send(&Tx::to(0, 1).one_way().object(local(NODE.ptr, 0x77)))?;
    m.receive()?;
    Ok(())
}

fn many(s: &Stage) -> Outcome {
    let m = manager(s)?;
    let mut served = 0;
    s.quietly(|| {
        for code in 0..16 {
            let p = client(s)?;
            p.post(&Tx::to(0, code).data(&code.to_ne_bytes()))?;
            let data = m.receive()?;
            m.reply(&Tx::new().data(&code.to_ne_bytes()))?;
            m.free(&data)?;
            let reply = p.receive()?;
            served += u32::from(reply.data_size == 4 && data.code == code);
        }
        Ok(())
    })?;
    s.note(&format!("{served} were served"));
    Ok(())
}
