//! Objects in transactions: translation and errors.

use binder_uapi::*;

use super::*;
use crate::transaction::{remote, weak_local, weak_remote};

cases! {
    "object.local_becomes_handle", becomes_handle, "an object of the sender becomes a handle";
    "object.comes_home", comes_home, "a handle becomes the object again at its owner";
    "object.to_a_third", to_a_third,
        "a handle becomes a handle elsewhere, and lives on without the one between";
    "object.same_node_same_handle", same_node, "a node has one handle in a process";
    "object.twice_in_one", twice_in_one, "the same node twice in one transaction";
    "object.other_cookie", other_cookie, "the same pointer with another cookie";
    "object.null_pointer", null_pointer,
        "pointer and cookie may be 0, or the same in two processes";
    "object.weak", weak, "weak objects become weak handles";
    "object.weak_then_strong", weak_then_strong, "a weak handle and a strong one of one node";
    "object.weak_handle_sent_strongly", weak_sent_strongly,
        "a weakly held handle cannot be sent as a strong one";
    "object.unknown_handle", unknown_handle, "a handle that the sender does not have";
    "object.in_reply", in_reply, "objects in a reply";
    "object.in_one_way_unread", in_one_way_unread, "an object in a call that is not read yet";
    "object.flags", flags, "flags of an object";
    "object.unknown_type", unknown_type, "types that are no object";
    "object.offset_misaligned", misaligned, "offsets that are no multiple of 4";
    "object.offset_outside", outside, "offsets at and behind the end of the data";
    "object.offset_cut", cut, "an object that sticks out of the data";
    "object.offsets_overlap", overlap, "objects that overlap, or come in descending order";
    "object.offsets_odd_size", odd_size, "an offsets array that is no multiple of 8";
    "object.no_data", no_data, "offsets without data";
    "object.failure_undoes_earlier", failure_undoes, "objects before the bad one are undone";
    "object.many", many, "a hundred objects in one transaction";
    "object.changed_in_flight", changed_in_flight,
        "the sender changes its memory after the call was made";
    "object.handle_0", handle_0, "handle 0 as an object";
    "object.unwritten_gap", gap, "bytes between objects arrive as they were";
}

fn becomes_handle(s: &Stage) -> Outcome {
    let (m, p) = pair(s)?;
    p.send(
        &Tx::to(0, 1).one_way().data(b"abcd").object(local(NODE.ptr, NODE.cookie)).data(b"efgh"),
    )?;
    s.note("the sender is told of the references");
    p.drain()?;
    let data = m.receive()?;
    let handle = m.handle_in(&data, 0)?;
    m.send(&Tx::to(handle, 7).one_way().data(b"hello node"))?;
    p.drain()?;
    m.free(&data)?;
    s.note("nobody kept it");
    p.drain()
}

fn comes_home(s: &Stage) -> Outcome {
    let (m, p) = pair(s)?;
    let handle = introduce(s, &p, &m, NODE)?;
    p.post(&Tx::to(0, 1))?;
    m.receive()?;
    m.reply(&Tx::new().object(remote(handle)).object(weak_remote(handle)))?;
    let reply = p.receive()?;
    p.free(&reply)?;
    p.drain()
}

fn to_a_third(s: &Stage) -> Outcome {
    let (m, p) = pair(s)?;
    let q = client(s)?;
    let handle = introduce(s, &p, &m, NODE)?;
    let q_handle = pass_on(s, &m, handle, &q)?;
    m.write(&[Command::Release(handle)])?;
    p.drain()?;
    q.send(&Tx::to(q_handle, 5).data(b"direct"))?;
    p.receive()?;
    p.reply(&Tx::new().data(b"here"))?;
    q.read()?;
    Ok(())
}

fn same_node(s: &Stage) -> Outcome {
    let (m, p) = pair(s)?;
    for _ in 0..2 {
        p.send(&Tx::to(0, 1).object(local(NODE.ptr, NODE.cookie)))?;
        m.receive()?;
        m.reply(&Tx::new())?;
        p.drain()?;
    }
    p.send(&Tx::to(0, 1).object(local(OTHER_NODE.ptr, OTHER_NODE.cookie)))?;
    m.receive()?;
    Ok(())
}

fn twice_in_one(s: &Stage) -> Outcome {
    let (m, p) = pair(s)?;
    let node = local(NODE.ptr, NODE.cookie);
    p.send(
        &Tx::to(0, 1).one_way().object(node).object(node).object(weak_local(NODE.ptr, NODE.cookie)),
    )?;
    p.drain()?;
    let data = m.receive()?;
    m.free(&data)?;
    p.drain()
}

fn other_cookie(s: &Stage) -> Outcome {
    let (m, p) = pair(s)?;
    introduce(s, &p, &m, NODE)?;
    p.send(&Tx::to(0, 1).one_way().object(local(NODE.ptr, 0x9999)))?;
    p.extended_error()?;
    m.drain()
}

fn null_pointer(s: &Stage) -> Outcome {
    let (m, p) = pair(s)?;
    let q = client(s)?;
    p.send(&Tx::to(0, 1).one_way().object(local(0, 0)))?;
    let data = m.receive()?;
    m.free(&data)?;
    p.drain()?;
    p.send(&Tx::to(0, 1).object(local(5, 5)))?;
    m.receive()?;
    m.reply(&Tx::new())?;
    q.send(&Tx::to(0, 1).object(local(5, 5)))?;
    m.receive()?;
    Ok(())
}

fn weak(s: &Stage) -> Outcome {
    let (m, p) = pair(s)?;
    p.send(&Tx::to(0, 1).one_way().object(weak_local(NODE.ptr, NODE.cookie)))?;
    p.drain()?;
    let data = m.receive()?;
    let handle = m.handle_in(&data, 0)?;
    m.send(&Tx::to(handle, 1).one_way())?;
    m.write(&[Command::Acquire(handle)])?;
    p.drain()?;
    m.send(&Tx::to(handle, 1).one_way())?;
    p.drain()?;
    m.free(&data)?;
    m.write(&[Command::Release(handle)])?;
    p.drain()
}

fn weak_then_strong(s: &Stage) -> Outcome {
    let (m, p) = pair(s)?;
    p.send(
        &Tx::to(0, 1)
            .one_way()
            .object(weak_local(NODE.ptr, NODE.cookie))
            .object(local(NODE.ptr, NODE.cookie)),
    )?;
    p.drain()?;
    let data = m.receive()?;
    m.write(&[Command::IncRefs(m.handle_in(&data, 0)?)])?;
    m.free(&data)?;
    s.note("the strong one is gone, the weak one stays");
    p.drain()
}

fn weak_sent_strongly(s: &Stage) -> Outcome {
    let (m, p) = pair(s)?;
    let q = client(s)?;
    let handle = introduce(s, &p, &m, NODE)?;
    m.write(&[Command::IncRefs(handle), Command::Release(handle)])?;
    p.drain()?;
    q.post(&Tx::to(0, 1))?;
    m.receive()?;
    m.reply(&Tx::new().object(remote(handle)))?;
    m.extended_error()?;
    q.drain()?;
    q.post(&Tx::to(0, 1))?;
    m.receive()?;
    m.reply(&Tx::new().object(weak_remote(handle)))?;
    q.drain()
}

fn unknown_handle(s: &Stage) -> Outcome {
    let (m, p) = pair(s)?;
    for object in [remote(UNKNOWN), weak_remote(UNKNOWN), remote(1)] {
        p.send(&Tx::to(0, 1).one_way().object(object))?;
        p.extended_error()?;
    }
    m.drain()
}

fn in_reply(s: &Stage) -> Outcome {
    let (m, p) = pair(s)?;
    p.post(&Tx::to(0, 1))?;
    m.receive()?;
    m.reply(
        &Tx::new()
            .object(local(NODE.ptr, NODE.cookie))
            .object(local(OTHER_NODE.ptr, OTHER_NODE.cookie)),
    )?;
    m.drain()?;
    let reply = p.receive()?;
    p.write(&[Command::Acquire(p.handle_in(&reply, 1)?)])?;
    p.free(&reply)?;
    m.drain()
}

fn in_one_way_unread(s: &Stage) -> Outcome {
    let (m, p) = pair(s)?;
    p.send(&Tx::to(0, 1).one_way())?;
    p.send(&Tx::to(0, 2).one_way().object(local(NODE.ptr, NODE.cookie)))?;
    p.drain()?;
    s.note("behind another call of the same node, and already referenced");
    p.node_debug_info(0)?;
    m.receive()?;
    Ok(())
}

fn flags(s: &Stage) -> Outcome {
    let (m, p) = pair(s)?;
    let all = FlatBinderObject { flags: 0xffff_efff, ..local(NODE.ptr, NODE.cookie) };
    p.send(&Tx::to(0, 1).object(all))?;
    m.receive()?;
    m.reply(&Tx::new())?;
    p.drain()?;
    s.note("with others for the same node");
    p.send(&Tx::to(0, 1).object(local(NODE.ptr, NODE.cookie)))?;
    m.receive()?;
    Ok(())
}

fn refused(s: &Stage, calls: impl IntoIterator<Item = Tx>) -> Outcome {
    let (m, p) = pair(s)?;
    for call in calls {
        p.send(&call)?;
        p.extended_error()?;
    }
    s.note("nothing arrived and nothing is left");
    m.drain()?;
    p.drain()?;
    p.node_debug_info(0)?;
    Ok(())
}

fn call() -> Tx {
    Tx::to(0, 1).one_way()
}

fn unknown_type(s: &Stage) -> Outcome {
    let node = local(NODE.ptr, NODE.cookie);
    let typed = |ty| call().object(FlatBinderObject { ty, ..node });
    refused(s, [typed(0), typed(u32::MAX), typed(BINDER_TYPE_BINDER + 1), typed(0x7368_2a84)])
}

fn misaligned(s: &Stage) -> Outcome {
    let node = local(NODE.ptr, NODE.cookie);
    refused(
        s,
        [1u64, 2, 3, 5].map(|offset| {
            call().data(&[0; 64]).data(&vec![0; offset as usize]).offset(offset).object(node)
        }),
    )
}

fn outside(s: &Stage) -> Outcome {
    let offsets = [24u64, 28, 100, 4096, 1 << 32, u64::MAX - 3, u64::MAX - 23];
    refused(s, offsets.map(|offset| call().data(&[0; 24]).offset(offset)))
}

fn cut(s: &Stage) -> Outcome {
    let node = local(NODE.ptr, NODE.cookie);
    refused(s, [23u64, 20, 16, 8, 4, 3].map(|size| call().object(node).data_size(size)))
}

fn overlap(s: &Stage) -> Outcome {
    let node = local(NODE.ptr, NODE.cookie);
    let twice = call().object(node).offset(0);
    let inside = call().object(node).data(&[0; 24]).offset(8);
    let descending = call().data(&[0; 24]).object(node).offset(0);
    let touching = call().object(node).object(weak_local(NODE.ptr, NODE.cookie)).offset(20);
    refused(s, [twice, inside, descending, touching])
}

fn odd_size(s: &Stage) -> Outcome {
    let node = local(NODE.ptr, NODE.cookie);
    refused(s, [1u64, 4, 7, 9, 12].map(|size| call().object(node).offset(0).offsets_size(size)))
}

fn no_data(s: &Stage) -> Outcome {
    refused(s, [call().offset(0), call().offset(0).offset(24)])
}

fn failure_undoes(s: &Stage) -> Outcome {
    let (m, p) = pair(s)?;
    let handle = introduce(s, &p, &m, OTHER_NODE)?;
    p.post(&Tx::to(0, 1))?;
    m.receive()?;
    m.reply(
        &Tx::new().object(local(0x5000, 0x5001)).object(remote(handle)).object(remote(UNKNOWN)),
    )?;
    m.drain()?;
    p.drain()?;
    m.node_debug_info(0)?;
    p.send(&Tx::to(0, 1).one_way().object(local(NODE.ptr, NODE.cookie)).object(remote(UNKNOWN)))?;
    p.drain()?;
    s.note("the next handle that the manager gets is the one the failed call used");
    p.send(&Tx::to(0, 1).one_way().object(local(0x3000, 0x3001)))?;
    m.receive()?;
    Ok(())
}

fn many(s: &Stage) -> Outcome {
    let (m, p) = pair(s)?;
    let mut tx = Tx::to(0, 1).one_way();
    for i in 0..100 {
        tx = tx.object(local(0x1_0000 + 16 * i, i));
    }
    p.send(&tx)?;
    let data = m.receive()?;
    m.free(&data)?;
    s.note("a small room for returns at a time");
    for _ in 0..3 {
        let got = p.exchange(&[], 64)?;
        p.acknowledge(&got)?;
    }
    Ok(())
}

fn changed_in_flight(s: &Stage) -> Outcome {
    let (m, p) = pair(s)?;
    let data = p.arena().place(b"as it was");
    p.post(&Tx::to(0, 1).one_way().data_address(data).data_size(9))?;
    p.arena().put(data, b"something");
    m.read()?;
    Ok(())
}

fn handle_0(s: &Stage) -> Outcome {
    let (m, p) = pair(s)?;
    s.note("without a reference to it");
    p.send(&Tx::to(0, 1).one_way().object(remote(0)))?;
    p.extended_error()?;
    m.drain()?;
    p.write(&[Command::Acquire(0)])?;
    m.drain()?;
    p.send(&Tx::to(0, 1).one_way().object(remote(0)))?;
    m.receive()?;
    Ok(())
}

fn gap(s: &Stage) -> Outcome {
    let (m, p) = pair(s)?;
    let node = local(NODE.ptr, NODE.cookie);
    let tx =
        Tx::to(0, 1).one_way().data(b"1234").object(node).data(b"56789abc").object(node).data(b"d");
    p.send(&tx)?;
    m.receive()?;
    Ok(())
}
