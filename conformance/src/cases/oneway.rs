//! One-way calls: order, buffer space, and floods.

use binder_uapi::ioctl::*;
use binder_uapi::*;

use super::*;

cases! {
    "oneway.order", order,
        "one node gets one at a time, the next when the buffer of the last is freed";
    "oneway.two_nodes", two_nodes, "two nodes of a process do not wait for each other";
    "oneway.sync_passes", sync_passes, "a sync call passes queued one-way calls";
    "oneway.free_unread", free_unread,
        "the buffer of the one in progress cannot be freed twice to skip the queue";
    "oneway.half_the_space", half_the_space, "one-way calls may take half of the mapping";
    "oneway.space_comes_back", space_comes_back, "freed one-way space can be used again";
    "oneway.sync_space_is_left", sync_space_is_left,
        "full one-way space leaves room for sync calls";
    "oneway.queued_to_the_dying", queued_to_the_dying,
        "the target dies with one-way calls in its queue";
    "oneway.next_thread", next_thread,
        "the next one of a node may go to another thread, after the free";
    "oneway.freed_by_other_thread", freed_by_other_thread, "any thread of the process may free";
    "oneway.spam_suspect", spam_suspect,
        "a sender that fills the space is suspected, where detection is on";
    "oneway.spam_off", spam_off, "and is not, where it is off";
    "oneway.update", update, "TF_UPDATE_TXN has no effect on a process that is not frozen";
    "oneway.to_unread_manager", to_unread_manager, "a hundred calls in order";
    "oneway.sync_flag_on_reply", between_calls, "one-way and sync calls from one thread, in order";
}

fn order(s: &Stage) -> Outcome {
    let (m, p) = pair(s)?;
    for text in [b"one", b"two", b"six"] {
        p.send(&Tx::to(0, 1).one_way().data(text))?;
    }
    let first = m.receive()?;
    m.read()?;
    m.free(&first)?;
    let second = m.receive()?;
    m.exchange(&[Command::FreeBuffer(second.buffer)], 256)?;
    Ok(())
}

/// Two nodes of `m` that `p` may call.
fn two_handles(s: &Stage, m: &Peer, p: &Peer) -> Result<(u32, u32), Stop> {
    s.note("P2 gets references to two nodes of P1");
    s.quietly(|| {
        p.post(&Tx::to(0, 1))?;
        let data = m.receive()?;
        let nodes = Tx::new()
            .object(local(NODE.ptr, NODE.cookie))
            .object(local(OTHER_NODE.ptr, OTHER_NODE.cookie));
        m.reply(&nodes)?;
        m.free(&data)?;
        let reply = p.receive()?;
        let handles = (p.handle_in(&reply, 0)?, p.handle_in(&reply, 1)?);
        p.write(&[
            Command::Acquire(handles.0),
            Command::Acquire(handles.1),
            Command::FreeBuffer(reply.buffer),
        ])?;
        m.drain()?;
        Ok(handles)
    })
}

fn two_nodes(s: &Stage) -> Outcome {
    let (m, p) = pair(s)?;
    let (one, other) = two_handles(s, &m, &p)?;
    p.send(&Tx::to(one, 1).one_way().data(b"1a"))?;
    p.send(&Tx::to(one, 2).one_way().data(b"1b"))?;
    p.send(&Tx::to(other, 3).one_way().data(b"2a"))?;
    p.send(&Tx::to(0, 4).one_way().data(b"0a"))?;
    let first = m.receive()?;
    m.receive()?;
    m.receive()?;
    m.read()?;
    m.free(&first)?;
    m.read()?;
    Ok(())
}

fn sync_passes(s: &Stage) -> Outcome {
    let (m, p) = pair(s)?;
    p.send(&Tx::to(0, 1).one_way().data(b"async1"))?;
    p.send(&Tx::to(0, 2).one_way().data(b"async2"))?;
    p.send(&Tx::to(0, 3).data(b"sync"))?;
    m.receive()?;
    m.receive()?;
    m.reply(&Tx::new())?;
    m.read()?;
    Ok(())
}

fn free_unread(s: &Stage) -> Outcome {
    let (m, p) = pair(s)?;
    for text in [b"one", b"two", b"six"] {
        p.send(&Tx::to(0, 1).one_way().data(text))?;
    }
    let first = m.receive()?;
    m.write(&[Command::FreeBuffer(first.buffer), Command::FreeBuffer(first.buffer)])?;
    m.read()?;
    m.read()?;
    Ok(())
}

fn small_manager(s: &Stage, len: u64) -> Result<Peer, Stop> {
    let m = s.process()?;
    m.set_up(NONBLOCK, len)?;
    m.manage()?;
    Ok(m)
}

fn half_the_space(s: &Stage) -> Outcome {
    small_manager(s, 16384)?;
    let p = client(s)?;
    p.send(&Tx::to(0, 1).one_way().data(&[1; 8193]))?;
    p.extended_error()?;
    p.send(&Tx::to(0, 1).one_way().data(&[1; 8192]))?;
    p.send(&Tx::to(0, 1).one_way().data(&[1; 8]))?;
    p.send(&Tx::to(0, 1).one_way())?;
    p.extended_error()
}

fn space_comes_back(s: &Stage) -> Outcome {
    let m = small_manager(s, 16384)?;
    let p = client(s)?;
    for _ in 0..3 {
        p.send(&Tx::to(0, 1).one_way().data(&[1; 4096]))?;
    }
    let data = m.receive()?;
    m.free(&data)?;
    p.send(&Tx::to(0, 2).one_way().data(&[2; 4096]))?;
    p.send(&Tx::to(0, 3).one_way().data(&[2; 4096]))?;
    m.receive()?;
    Ok(())
}

fn sync_space_is_left(s: &Stage) -> Outcome {
    let m = small_manager(s, 16384)?;
    let p = client(s)?;
    p.send(&Tx::to(0, 1).one_way().data(&[1; 8192]))?;
    p.send(&Tx::to(0, 1).data(&[1; 8192]))?;
    m.receive()?;
    m.read()?;
    let q = client(s)?;
    q.send(&Tx::to(0, 1).data(&[1; 8]))?;
    q.extended_error()
}

fn queued_to_the_dying(s: &Stage) -> Outcome {
    let (m, p) = pair(s)?;
    let notification = BinderHandleCookie { handle: 0, cookie: 6 };
    p.write(&[Command::Acquire(0), Command::RequestDeathNotification(notification)])?;
    for code in 1..4 {
        let got = p.send(&Tx::to(0, code).one_way().object(local(NODE.ptr, NODE.cookie)))?;
        p.acknowledge(&got)?;
    }
    m.read()?;
    m.die()?;
    p.let_time_pass();
    s.note("the references of the buffers go, and the death is told");
    p.drain()?;
    p.node_debug_info(0)?;
    Ok(())
}

fn next_thread(s: &Stage) -> Outcome {
    let (m, p) = pair(s)?;
    let t = m.new_thread()?;
    t.write(&[Command::EnterLooper])?;
    m.write(&[Command::EnterLooper])?;
    p.send(&Tx::to(0, 1).one_way().data(b"one"))?;
    p.send(&Tx::to(0, 1).one_way().data(b"two"))?;
    let first = m.receive()?;
    t.read()?;
    m.free(&first)?;
    t.read()?;
    s.note("a thread is given the rest of the node only by reading");
    m.read()?;
    Ok(())
}

fn freed_by_other_thread(s: &Stage) -> Outcome {
    let (m, p) = pair(s)?;
    let t = m.new_thread()?;
    p.send(&Tx::to(0, 1).one_way().data(b"one"))?;
    p.send(&Tx::to(0, 1).one_way().data(b"two"))?;
    let first = m.receive()?;
    t.free(&first)?;
    m.read()?;
    Ok(())
}

#[derive(PartialEq)]
enum SpamDetection {
    On,
    Off,
}

fn flood(s: &Stage, detection: SpamDetection) -> Outcome {
    let m = small_manager(s, 64 * 1024)?;
    if detection == SpamDetection::On {
        m.ioctl(
            "BINDER_ENABLE_ONEWAY_SPAM_DETECTION 1",
            BINDER_ENABLE_ONEWAY_SPAM_DETECTION,
            1u32,
        )?;
    }
    let p = client(s)?;
    for _ in 0..9 {
        p.send(&Tx::to(0, 1).one_way().data(&[1; 4096]))?;
    }
    s.note("space comes back, and is filled again");
    for _ in 0..3 {
        let data = m.receive()?;
        m.free(&data)?;
    }
    for _ in 0..3 {
        p.send(&Tx::to(0, 1).one_way().data(&[1; 4096]))?;
    }
    Ok(())
}

fn spam_suspect(s: &Stage) -> Outcome {
    flood(s, SpamDetection::On)
}

fn spam_off(s: &Stage) -> Outcome {
    flood(s, SpamDetection::Off)
}

fn update(s: &Stage) -> Outcome {
    let (m, p) = pair(s)?;
    for text in [b"old", b"new", b"now"] {
        p.send(&Tx::to(0, 1).one_way().flags(TF_UPDATE_TXN).data(text))?;
    }
    for _ in 0..3 {
        let data = m.receive()?;
        m.free(&data)?;
    }
    Ok(())
}

fn to_unread_manager(s: &Stage) -> Outcome {
    let (m, p) = pair(s)?;
    s.quietly(|| {
        for code in 0..100 {
            p.send(&Tx::to(0, code).one_way().data(&code.to_ne_bytes()))?;
        }
        Ok(())
    })?;
    let mut in_order = true;
    s.quietly(|| {
        for code in 0..100 {
            let data = m.receive()?;
            in_order &= data.code == code;
            m.free(&data)?;
        }
        Ok(())
    })?;
    s.note(&format!("100 calls came in order: {in_order}"));
    m.drain()
}

fn between_calls(s: &Stage) -> Outcome {
    let (m, p) = pair(s)?;
    p.send(&Tx::to(0, 1).one_way().data(b"a"))?;
    p.post(&Tx::to(0, 2).data(b"b"))?;
    let first = m.receive()?;
    m.receive()?;
    m.reply(&Tx::new())?;
    p.read()?;
    p.send(&Tx::to(0, 3).one_way().data(b"c"))?;
    m.read()?;
    m.free(&first)?;
    m.read()?;
    Ok(())
}
