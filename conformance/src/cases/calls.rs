//! Sync calls and replies between two processes.

use binder_uapi::*;

use super::*;

cases! {
    "call.echo", echo, "a call, its reply, and who is told what when";
    "call.blocking", blocking, "the caller waits for its reply, the manager for a call";
    "call.completion_comes_late", completion,
        "BR_TRANSACTION_COMPLETE of a sync call comes with the reply, of a one-way call at once";
    "call.empty", empty, "a call and a reply without data";
    "call.sizes", sizes, "data of many sizes arrives unchanged";
    "call.flags", flags, "flags and code pass, known or not";
    "call.target_noise", target_noise, "cookie and upper half of the target are not looked at";
    "call.sender", sender, "who calls: pid and uid; a one-way call has no pid";
    "call.two_callers", two_callers, "calls of two processes are delivered in order";
    "call.unknown_handle", unknown_handle, "a handle that nobody gave";
    "call.weak_handle", weak_handle, "a handle that is held weakly only";
    "call.reply_without_call", reply_without_call, "a reply to nothing";
    "call.reply_twice", reply_twice, "the second reply is to nothing";
    "call.reply_from_other_thread", reply_from_other_thread,
        "only the thread that has the call may answer";
    "call.reply_is_one_way", reply_one_way, "flags of a reply are passed, one-way or not";
    "call.reply_fails", reply_fails, "a reply that cannot be made fails both sides";
    "call.reply_too_large", reply_too_large, "a reply that has no room at the caller";
    "call.too_large", too_large, "a call that has no room at the target";
    "call.faulting_data", faulting_data, "data or offsets that cannot be read";
    "call.huge_sizes", huge, "sizes that wrap around";
    "call.status_reply", status_reply, "a reply that is a status code";
    "call.after_failure", after_failure, "a failed call leaves the thread able to call";
    "call.from_second_thread", from_second_thread, "the reply goes to the thread that called";
    "call.to_own_node", to_own_node, "a process cannot have a handle of its own node";
    "call.echo_of_the_buffer", echo_of_the_buffer, "a reply straight out of the received buffer";
}

fn echo(s: &Stage) -> Outcome {
    let (m, p) = pair(s)?;
    p.post(&Tx::to(0, 42).data(b"ping"))?;
    let got = m.read()?;
    m.reply(&Tx::new().data(b"pong"))?;
    m.free(&got.incoming()?)?;
    let got = p.read()?;
    p.free(&got.incoming()?)?;
    m.drain()?;
    p.drain()
}

fn blocking(s: &Stage) -> Outcome {
    let m = blocking_manager(s)?;
    let p = blocking_client(s)?;
    m.start(&[], 256)?;
    m.blocks()?;
    p.start(&[Tx::to(0, 1).data(b"ping").transaction(p.arena())], 256)?;
    let got = m.finish()?;
    p.blocks()?;
    m.write(&[
        Tx::new().data(b"pong").reply(m.arena()),
        Command::FreeBuffer(got.incoming()?.buffer),
    ])?;
    p.finish()?;
    s.note("the manager waits again, which takes in what it is owed");
    m.read()?;
    m.start(&[], 256)?;
    m.blocks()
}

fn completion(s: &Stage) -> Outcome {
    let (m, p) = pair(s)?;
    p.send(&Tx::to(0, 1))?;
    p.read()?;
    let q = client(s)?;
    q.post(&Tx::to(0, 2).one_way())?;
    q.read()?;
    m.receive()?;
    m.write(&[Tx::new().reply(m.arena())])?;
    m.read()?;
    p.read()?;
    Ok(())
}

fn empty(s: &Stage) -> Outcome {
    let (m, p) = pair(s)?;
    p.post(&Tx::to(0, 0))?;
    let first = m.receive()?;
    m.reply(&Tx::new())?;
    let reply = p.receive()?;
    s.note("empty buffers are buffers: freed once");
    m.free(&first)?;
    p.free(&reply)?;
    m.free(&first)?;
    Ok(())
}

fn sizes(s: &Stage) -> Outcome {
    let (m, p) = pair(s)?;
    for size in [1usize, 3, 4, 7, 8, 9, 4095, 4096, 4097, 65536, 500_000] {
        let data: Vec<u8> = (0..size).map(|i| (i * 31 % 251) as u8).collect();
        p.post(&Tx::to(0, 1).data(&data))?;
        let received = m.receive()?;
        m.reply(&Tx::new().data(&data))?;
        m.free(&received)?;
        let reply = p.receive()?;
        p.free(&reply)?;
    }
    Ok(())
}

fn flags(s: &Stage) -> Outcome {
    let (m, p) = pair(s)?;
    for (code, flags) in
        [(u32::MAX, TF_ROOT_OBJECT), (0, TF_STATUS_CODE | TF_CLEAR_BUF), (7, 0xffff_fffe)]
    {
        p.post(&Tx::to(0, code).flags(flags).data(b"flag"))?;
        let received = m.receive()?;
        m.reply(&Tx::to(0, code).flags(flags).data(b"back"))?;
        m.free(&received)?;
        p.receive()?;
    }
    Ok(())
}

fn target_noise(s: &Stage) -> Outcome {
    let (m, p) = pair(s)?;
    p.send(&Tx::to(0, 1).one_way().cookie(0x1234))?;
    m.read()?;
    p.send(&Tx::to(0, 1).one_way().wide_target(0x5_0000_0000))?;
    m.read()?;
    Ok(())
}

fn sender(s: &Stage) -> Outcome {
    let (m, p) = pair(s)?;
    let q = client(s)?;
    q.call(libc::SYS_setresuid, [1000, 1000, 1000, 0, 0, 0])?;
    q.log("is uid 1000 now");
    for peer in [&p, &q] {
        peer.send(&Tx::to(0, 1).one_way())?;
        let data = m.receive()?;
        m.free(&data)?;
        peer.post(&Tx::to(0, 2))?;
        let data = m.receive()?;
        m.reply(&Tx::new())?;
        m.free(&data)?;
        peer.receive()?;
    }
    s.note("a thread of its own is the same process");
    let t = p.new_thread()?;
    t.post(&Tx::to(0, 3))?;
    m.receive()?;
    Ok(())
}

fn two_callers(s: &Stage) -> Outcome {
    let (m, p) = pair(s)?;
    let q = client(s)?;
    p.send(&Tx::to(0, 1).data(b"p"))?;
    q.send(&Tx::to(0, 2).data(b"q"))?;
    let first = m.receive()?;
    s.note("a thread with a call of its own to answer takes no other");
    m.read()?;
    m.reply(&Tx::new().data(b"to p"))?;
    m.free(&first)?;
    let second = m.receive()?;
    m.reply(&Tx::new().data(b"to q"))?;
    m.free(&second)?;
    p.read()?;
    q.read()?;
    Ok(())
}

fn unknown_handle(s: &Stage) -> Outcome {
    let (_, p) = pair(s)?;
    for handle in [1, UNKNOWN, u32::MAX] {
        p.send(&Tx::to(handle, 1).data(b"x"))?;
        p.extended_error()?;
        p.send(&Tx::to(handle, 1).one_way())?;
        p.extended_error()?;
    }
    Ok(())
}

fn weak_handle(s: &Stage) -> Outcome {
    let (m, p) = pair(s)?;
    let handle = introduce(s, &p, &m, NODE)?;
    m.write(&[Command::IncRefs(handle), Command::Release(handle)])?;
    m.send(&Tx::to(handle, 1).one_way())?;
    m.extended_error()?;
    s.note("weak becomes strong where the node lives on");
    m.write(&[Command::Acquire(handle)])?;
    m.send(&Tx::to(handle, 1).one_way())?;
    p.drain()
}

fn reply_without_call(s: &Stage) -> Outcome {
    let p = client(s)?;
    p.reply(&Tx::new().data(b"what?"))?;
    p.extended_error()
}

fn reply_twice(s: &Stage) -> Outcome {
    let (m, p) = pair(s)?;
    call_in_progress(&m, &p)?;
    m.reply(&Tx::new().data(b"one"))?;
    m.reply(&Tx::new().data(b"two"))?;
    m.extended_error()?;
    p.drain()
}

fn reply_from_other_thread(s: &Stage) -> Outcome {
    let (m, p) = pair(s)?;
    call_in_progress(&m, &p)?;
    let t = m.new_thread()?;
    t.reply(&Tx::new().data(b"not mine"))?;
    t.extended_error()?;
    p.read()?;
    m.reply(&Tx::new().data(b"mine"))?;
    p.read()?;
    Ok(())
}

fn reply_one_way(s: &Stage) -> Outcome {
    let (m, p) = pair(s)?;
    call_in_progress(&m, &p)?;
    m.reply(&Tx::to(5, 99).one_way().data(b"done"))?;
    p.read()?;
    Ok(())
}

fn reply_fails(s: &Stage) -> Outcome {
    let (m, p) = pair(s)?;
    call_in_progress(&m, &p)?;
    m.reply(&Tx::new().data(b"1234").offset(100))?;
    m.extended_error()?;
    p.read()?;
    p.extended_error()?;
    s.note("that was the answer");
    m.reply(&Tx::new())?;
    p.read()?;
    Ok(())
}

fn reply_too_large(s: &Stage) -> Outcome {
    let m = manager(s)?;
    let p = s.process()?;
    p.set_up(NONBLOCK, 8192)?;
    call_in_progress(&m, &p)?;
    m.reply(&Tx::new().data(&[1; 8193]))?;
    m.extended_error()?;
    p.read()?;
    p.extended_error()?;
    s.note("all of the room can be used");
    call_in_progress(&m, &p)?;
    m.reply(&Tx::new().data(&[1; 8192]))?;
    p.read()?;
    Ok(())
}

fn too_large(s: &Stage) -> Outcome {
    let m = s.process()?;
    m.set_up(NONBLOCK, 8192)?;
    m.manage()?;
    let p = client(s)?;
    p.send(&Tx::to(0, 1).data(&[1; 8193]))?;
    p.extended_error()?;
    p.send(&Tx::to(0, 1).data(&[1; 8192]))?;
    let q = client(s)?;
    q.send(&Tx::to(0, 2).data(b"x"))?;
    q.extended_error()?;
    let data = m.receive()?;
    m.reply(&Tx::new())?;
    m.free(&data)?;
    q.send(&Tx::to(0, 2).data(b"x"))?;
    m.read()?;
    Ok(())
}

fn faulting_data(s: &Stage) -> Outcome {
    let (m, p) = pair(s)?;
    let bad = p.arena().guard();
    let object = local(NODE.ptr, NODE.cookie);
    let calls = [
        Tx::to(0, 1).data_address(bad).data_size(16),
        Tx::to(0, 1).data_address(0).data_size(16),
        Tx::to(0, 1).data_address(bad - 8).data_size(16),
        Tx::to(0, 1).object(object).offsets_address(bad),
        Tx::to(0, 1).data_address(bad).data_size(0),
    ];
    for call in calls {
        p.send(&call.one_way())?;
        p.extended_error()?;
        m.drain()?;
    }
    Ok(())
}

fn huge(s: &Stage) -> Outcome {
    let (m, p) = pair(s)?;
    for size in [1 << 30, i64::MAX as u64, u64::MAX - 8, u64::MAX - 7, u64::MAX - 6, u64::MAX] {
        p.send(&Tx::to(0, 1).one_way().data(b"data").data_size(size))?;
        p.extended_error()?;
        p.send(&Tx::to(0, 1).one_way().data(b"data").offsets_size(size))?;
        p.extended_error()?;
    }
    p.send(&Tx::to(0, 1).one_way().data_size(u64::MAX / 2 + 1).offsets_size(u64::MAX / 2 + 1))?;
    p.extended_error()?;
    m.drain()
}

fn status_reply(s: &Stage) -> Outcome {
    let (m, p) = pair(s)?;
    call_in_progress(&m, &p)?;
    m.reply(&Tx::new().flags(TF_STATUS_CODE).data(&(-22i32).to_ne_bytes()))?;
    p.read()?;
    Ok(())
}

fn after_failure(s: &Stage) -> Outcome {
    let (m, p) = pair(s)?;
    p.send(&Tx::to(UNKNOWN, 1))?;
    call_in_progress(&m, &p)?;
    m.reply(&Tx::new().data(b"fine"))?;
    p.read()?;
    Ok(())
}

fn from_second_thread(s: &Stage) -> Outcome {
    let (m, p) = pair(s)?;
    let t = p.new_thread()?;
    t.post(&Tx::to(0, 1).data(b"from t"))?;
    let data = m.receive()?;
    m.reply(&Tx::new().data(b"to t"))?;
    m.free(&data)?;
    p.read()?;
    t.read()?;
    Ok(())
}

fn to_own_node(s: &Stage) -> Outcome {
    let (m, p) = pair(s)?;
    let handle = introduce(s, &p, &m, NODE)?;
    s.note("the manager gives it back");
    p.post(&Tx::to(0, 1))?;
    m.receive()?;
    m.reply(&Tx::new().object(crate::transaction::remote(handle)))?;
    p.receive()?;
    p.send(&Tx::to(handle, 1).one_way())?;
    Ok(())
}

fn echo_of_the_buffer(s: &Stage) -> Outcome {
    let (m, p) = pair(s)?;
    p.post(&Tx::to(0, 1).data(b"round trip"))?;
    let data = m.receive()?;
    let reply = Tx::new().data_address(data.buffer).data_size(data.data_size);
    m.exchange(&[reply.reply(m.arena()), Command::FreeBuffer(data.buffer)], 256)?;
    p.read()?;
    Ok(())
}
