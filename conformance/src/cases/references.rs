//! References: which process is notified, in which order, and how handles are assigned.

use binder_uapi::*;

use super::*;

cases! {
    "ref.first_and_last", first_and_last,
        "the owner is told of the first reference and of the last";
    "ref.only_first_and_last", only_first, "and of nothing between";
    "ref.unacknowledged", unacknowledged, "nothing is taken back before it was acknowledged";
    "ref.wrong_acknowledgements", wrong_acks,
        "acknowledgements of unknown nodes, with wrong cookies, or twice";
    "ref.weak_outlives_strong", weak_outlives, "strong goes, weak stays";
    "ref.unknown_handle", unknown_handle, "commands on a handle that nobody gave";
    "ref.too_many_releases", too_many, "more releases than acquires";
    "ref.decrefs_of_strong", decrefs_of_strong, "BC_DECREFS on a handle that is held strongly only";
    "ref.handles_are_lowest", lowest, "a new handle is the lowest free number";
    "ref.handle_0", handle_0, "references to the manager";
    "ref.buffer_keeps_target", buffer_keeps_target, "a delivered call keeps its node";
    "ref.queued_call_keeps_target", queued_keeps, "and so does one that waits";
    "ref.two_holders", two_holders, "two processes hold one node";
    "ref.holder_dies", holder_dies, "a dead holder holds nothing";
    "ref.told_to_any_thread", notified_any, "who is told: the thread that sent the object";
    "ref.acquire_after_release", acquire_after_release,
        "taken again before the owner read that it was gone";
    "ref.in_the_buffer_only", in_the_buffer, "a handle that only a buffer holds";
}

fn first_and_last(s: &Stage) -> Outcome {
    let (m, p) = pair(s)?;
    p.post(&Tx::to(0, 1).one_way().object(local(NODE.ptr, NODE.cookie)))?;
    let data = m.receive()?;
    let handle = m.handle_in(&data, 0)?;
    p.read()?;
    let node = NODE;
    p.write(&[Command::IncRefsDone(node)])?;
    p.write(&[Command::AcquireDone(node)])?;
    m.write(&[Command::IncRefs(handle), Command::Acquire(handle)])?;
    m.free(&data)?;
    p.read()?;
    m.write(&[Command::Release(handle)])?;
    p.read()?;
    m.write(&[Command::DecRefs(handle)])?;
    p.read()?;
    p.node_debug_info(0)?;
    Ok(())
}

fn only_first(s: &Stage) -> Outcome {
    let (m, p) = pair(s)?;
    let handle = introduce(s, &p, &m, NODE)?;
    m.write(&[Command::Acquire(handle), Command::IncRefs(handle), Command::Acquire(handle)])?;
    p.read()?;
    m.write(&[Command::Release(handle), Command::Release(handle), Command::DecRefs(handle)])?;
    p.read()?;
    m.write(&[Command::Release(handle)])?;
    p.read()?;
    Ok(())
}

fn unacknowledged(s: &Stage) -> Outcome {
    let (m, p) = pair(s)?;
    p.post(&Tx::to(0, 1).one_way().object(local(NODE.ptr, NODE.cookie)))?;
    let data = m.receive()?;
    p.read()?;
    m.free(&data)?;
    s.note("the reference is gone, and the owner has not acknowledged it yet");
    p.read()?;
    let node = NODE;
    p.write(&[Command::IncRefsDone(node)])?;
    p.read()?;
    p.write(&[Command::AcquireDone(node)])?;
    p.read()?;
    Ok(())
}

fn wrong_acks(s: &Stage) -> Outcome {
    let (m, p) = pair(s)?;
    introduce(s, &p, &m, NODE)?;
    let node = NODE;
    let wrong = BinderPtrCookie { cookie: 5, ..node };
    let unknown = BinderPtrCookie { ptr: 0x8888, cookie: 5 };
    for which in [wrong, unknown, node] {
        p.write(&[Command::IncRefsDone(which)])?;
        p.write(&[Command::AcquireDone(which)])?;
    }
    p.node_debug_info(0)?;
    Ok(())
}

fn weak_outlives(s: &Stage) -> Outcome {
    let (m, p) = pair(s)?;
    let handle = introduce(s, &p, &m, NODE)?;
    m.write(&[Command::IncRefs(handle), Command::Release(handle)])?;
    p.drain()?;
    p.node_debug_info(0)?;
    m.write(&[Command::Acquire(handle)])?;
    p.drain()?;
    m.write(&[Command::Release(handle), Command::DecRefs(handle)])?;
    p.drain()
}

fn unknown_handle(s: &Stage) -> Outcome {
    let (_m, p) = pair(s)?;
    for handle in [1, UNKNOWN, u32::MAX] {
        for command in [
            Command::IncRefs(handle),
            Command::Acquire(handle),
            Command::Release(handle),
            Command::DecRefs(handle),
        ] {
            p.write(&[command])?;
        }
    }
    p.drain()
}

fn too_many(s: &Stage) -> Outcome {
    let (m, p) = pair(s)?;
    let handle = introduce(s, &p, &m, NODE)?;
    m.write(&[Command::IncRefs(handle)])?;
    for _ in 0..3 {
        m.write(&[Command::Release(handle)])?;
    }
    p.drain()?;
    for _ in 0..3 {
        m.write(&[Command::DecRefs(handle)])?;
    }
    p.drain()?;
    m.write(&[Command::Acquire(handle)])?;
    m.drain()
}

fn decrefs_of_strong(s: &Stage) -> Outcome {
    let (m, p) = pair(s)?;
    let handle = introduce(s, &p, &m, NODE)?;
    m.write(&[Command::DecRefs(handle)])?;
    m.send(&Tx::to(handle, 1).one_way())?;
    p.drain()?;
    m.write(&[Command::Release(handle)])?;
    p.drain()
}

fn lowest(s: &Stage) -> Outcome {
    let (m, p) = pair(s)?;
    let mut handles = Vec::new();
    for i in 1..=5 {
        handles.push(introduce(s, &p, &m, BinderPtrCookie { ptr: 0x1000 * i, cookie: i })?);
    }
    s.note(&format!("the handles are {handles:?}; 4 and 2 are let go"));
    m.write(&[Command::Release(4), Command::Release(2)])?;
    settle(&p)?;
    handles.clear();
    for i in 6..=8 {
        handles.push(introduce(s, &p, &m, BinderPtrCookie { ptr: 0x1000 * i, cookie: i })?);
    }
    s.note(&format!("the next handles are {handles:?}"));
    Ok(())
}

fn handle_0(s: &Stage) -> Outcome {
    let m = client(s)?;
    m.manage_as(local(0x5000, 0x5001))?;
    let p = client(s)?;
    p.write(&[Command::IncRefs(0)])?;
    m.drain()?;
    p.write(&[Command::Acquire(0), Command::Acquire(0)])?;
    m.drain()?;
    p.write(&[Command::Release(0), Command::Release(0), Command::DecRefs(0)])?;
    m.drain()?;
    m.node_debug_info(0)?;
    p.write(&[Command::Release(0)])?;
    p.send(&Tx::to(0, 1).one_way())?;
    Ok(())
}

fn buffer_keeps_target(s: &Stage) -> Outcome {
    let (m, p) = pair(s)?;
    let handle = introduce(s, &p, &m, NODE)?;
    m.send(&Tx::to(handle, 1).one_way().data(b"held"))?;
    m.write(&[Command::Release(handle)])?;
    let data = p.receive()?;
    p.read()?;
    p.free(&data)?;
    p.drain()
}

fn queued_keeps(s: &Stage) -> Outcome {
    let (m, p) = pair(s)?;
    let handle = introduce(s, &p, &m, NODE)?;
    m.send(&Tx::to(handle, 1).one_way().data(b"one"))?;
    m.send(&Tx::to(handle, 2).one_way().data(b"two"))?;
    m.write(&[Command::Release(handle)])?;
    let data = p.receive()?;
    p.free(&data)?;
    let data = p.receive()?;
    p.free(&data)?;
    p.drain()
}

fn two_holders(s: &Stage) -> Outcome {
    let (m, p) = pair(s)?;
    let q = client(s)?;
    let handle = introduce(s, &p, &m, NODE)?;
    let q_handle = pass_on(s, &m, handle, &q)?;
    p.read()?;
    m.write(&[Command::Release(handle)])?;
    p.read()?;
    q.write(&[Command::Release(q_handle)])?;
    p.read()?;
    Ok(())
}

fn holder_dies(s: &Stage) -> Outcome {
    let m = manager(s)?;
    let p = blocking_client(s)?;
    p.write(&[Command::EnterLooper])?;
    p.send(&Tx::to(0, 1).one_way().object(local(NODE.ptr, NODE.cookie)))?;
    let data = m.receive()?;
    let handle = m.handle_in(&data, 0)?;
    m.write(&[Command::Acquire(handle)])?;
    p.node_debug_info(0)?;
    let node = NODE;
    p.write(&[Command::IncRefsDone(node), Command::AcquireDone(node)])?;
    m.die()?;
    p.read()?;
    Ok(())
}

fn notified_any(s: &Stage) -> Outcome {
    let (m, p) = pair(s)?;
    let t = p.new_thread()?;
    t.post(&Tx::to(0, 1).one_way().object(local(NODE.ptr, NODE.cookie)))?;
    p.read()?;
    p.read()?;
    t.read()?;
    let data = m.receive()?;
    m.free(&data)?;
    s.note("that the reference is gone is told to the process");
    t.write(&[Command::EnterLooper])?;
    p.drain()?;
    t.drain()
}

fn acquire_after_release(s: &Stage) -> Outcome {
    let (m, p) = pair(s)?;
    let handle = introduce(s, &p, &m, NODE)?;
    m.write(&[Command::IncRefs(handle), Command::Release(handle)])?;
    m.write(&[Command::Acquire(handle)])?;
    s.note("nothing is left to tell");
    p.read()?;
    Ok(())
}

fn in_the_buffer(s: &Stage) -> Outcome {
    let (m, p) = pair(s)?;
    p.post(&Tx::to(0, 1).one_way().object(local(NODE.ptr, NODE.cookie)))?;
    let data = m.receive()?;
    p.drain()?;
    let handle = m.handle_in(&data, 0)?;
    s.note("works while the buffer lives");
    m.send(&Tx::to(handle, 2).one_way().data(b"x"))?;
    m.write(&[Command::Release(handle)])?;
    m.free(&data)?;
    m.send(&Tx::to(handle, 3).one_way().data(b"y"))?;
    p.drain()
}
