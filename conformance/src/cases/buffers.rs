//! Buffers: their addresses, and freeing them.

use binder_uapi::*;

use super::*;

cases! {
    "buffer.free_unknown", free_unknown, "addresses that are no buffer";
    "buffer.free_twice", free_twice, "the second time it is no buffer";
    "buffer.free_inside", free_inside, "an address inside of a buffer";
    "buffer.free_before_delivery", free_before_delivery,
        "a buffer that has not been delivered cannot be freed";
    "buffer.free_others", free_others, "a buffer of another process";
    "buffer.free_before_reply", free_before_reply,
        "the call can be answered after its buffer is gone";
    "buffer.reuse", reuse, "freed space is used again";
    "buffer.best_fit", best_fit, "the smallest hole that suffices is taken";
    "buffer.merge", merge, "neighbouring holes become one";
    "buffer.exhausted_by_small", exhausted_by_small, "how many empty calls fit";
    "buffer.alignment", alignment, "data and offsets start at multiples of 8";
    "buffer.clear_on_free", clear_on_free, "TF_CLEAR_BUF leaves zeros behind";
    "buffer.reply_clear_on_free", reply_clear, "and so in a reply";
    "buffer.kept_over_reply", kept, "an unfreed buffer stays readable";
    "buffer.freed_in_reply_stream", freed_in_stream, "reply and free in one write, in either order";
}

fn free_unknown(s: &Stage) -> Outcome {
    let p = client(s)?;
    let (address, len) = p.mapping()?;
    for address in [0, 0x1234, address, address + 8, address + len, u64::MAX] {
        p.write(&[Command::FreeBuffer(address)])?;
    }
    p.drain()
}

fn delivered(m: &Peer, p: &Peer, data: &[u8]) -> Result<BinderTransactionData, Stop> {
    p.send(&Tx::to(0, 1).one_way().data(data))?;
    m.receive()
}

fn free_twice(s: &Stage) -> Outcome {
    let (m, p) = pair(s)?;
    let data = delivered(&m, &p, b"once")?;
    m.free(&data)?;
    m.free(&data)?;
    m.drain()
}

fn free_inside(s: &Stage) -> Outcome {
    let (m, p) = pair(s)?;
    let data = delivered(&m, &p, &[1; 64])?;
    m.write(&[Command::FreeBuffer(data.buffer + 8)])?;
    m.write(&[Command::FreeBuffer(data.buffer - 8)])?;
    m.free(&data)
}

fn free_before_delivery(s: &Stage) -> Outcome {
    let (m, p) = pair(s)?;
    let (address, _) = m.mapping()?;
    p.send(&Tx::to(0, 1).one_way().data(b"secret"))?;
    m.write(&[Command::FreeBuffer(address)])?;
    m.read()?;
    Ok(())
}

fn free_others(s: &Stage) -> Outcome {
    let (m, p) = pair(s)?;
    let data = delivered(&m, &p, b"mine")?;
    let q = client(s)?;
    q.write(&[Command::FreeBuffer(data.buffer)])?;
    m.free(&data)
}

fn free_before_reply(s: &Stage) -> Outcome {
    let (m, p) = pair(s)?;
    let data = call_in_progress(&m, &p)?;
    m.free(&data)?;
    m.reply(&Tx::new().data(b"late"))?;
    p.read()?;
    Ok(())
}

fn reuse(s: &Stage) -> Outcome {
    let (m, p) = pair(s)?;
    for size in [16usize, 4096, 16, 100_000] {
        let data = delivered(&m, &p, &vec![1; size])?;
        m.free(&data)?;
    }
    Ok(())
}

/// Several sync calls at once, each from its own thread: their buffers can be freed in any order.
fn held_calls(m: &Peer, p: &Peer, sizes: &[usize]) -> Result<Vec<BinderTransactionData>, Stop> {
    let mut held = Vec::new();
    for size in sizes {
        let t = p.new_thread()?;
        t.post(&Tx::to(0, *size as u32).data(&vec![1; *size]))?;
        held.push(m.receive()?);
        // Replied to, but not freed.
        m.reply(&Tx::new())?;
    }
    Ok(held)
}

fn best_fit(s: &Stage) -> Outcome {
    let m = s.process()?;
    m.set_up(NONBLOCK, 64 * 1024)?;
    m.manage()?;
    let p = client(s)?;
    let held = held_calls(&m, &p, &[8192, 64, 2048, 64, 4096])?;
    s.note("holes of 8192 and 2048 bytes");
    m.free(&held[0])?;
    m.free(&held[2])?;
    delivered(&m, &p, &[2; 2000])?;
    Ok(())
}

fn merge(s: &Stage) -> Outcome {
    let m = s.process()?;
    m.set_up(NONBLOCK, 16 * 1024)?;
    m.manage()?;
    let p = client(s)?;
    let held = held_calls(&m, &p, &[4096, 4096, 4096, 4096])?;
    m.free(&held[1])?;
    m.free(&held[2])?;
    let q = client(s)?;
    q.send(&Tx::to(0, 9).data(&[3; 8192]))?;
    m.read()?;
    Ok(())
}

fn exhausted_by_small(s: &Stage) -> Outcome {
    let m = s.process()?;
    m.set_up(NONBLOCK, 4096)?;
    m.manage()?;
    let p = client(s)?;
    let mut fitted = 0;
    s.quietly(|| {
        for _ in 0..600 {
            let got = p.send(&Tx::to(0, 1).one_way())?;
            if !got.returns.contains(&Return::TransactionComplete) {
                break;
            }
            fitted += 1;
        }
        Ok(())
    })?;
    s.note(&format!("{fitted} empty one-way calls fit into a page"));
    Ok(())
}

fn alignment(s: &Stage) -> Outcome {
    let (m, p) = pair(s)?;
    for size in [1usize, 9, 17] {
        let tx = Tx::to(0, 1).one_way().object(local(NODE.ptr, NODE.cookie)).data(&vec![7; size]);
        p.send(&tx)?;
        let data = m.receive()?;
        m.log(format!("buffer at a multiple of 8: {}", data.buffer % 8 == 0));
        m.free(&data)?;
    }
    Ok(())
}

fn looks(m: &Peer, data: &BinderTransactionData) {
    m.log(match m.peek(data.buffer, data.data_size as usize) {
        Ok(bytes) => format!("sees {bytes:02x?}"),
        Err(errno) => format!("sees nothing: {}", crate::describe::errno_name(errno)),
    });
}

fn clear_on_free(s: &Stage) -> Outcome {
    let (m, p) = pair(s)?;
    p.send(&Tx::to(0, 1).one_way().flags(TF_CLEAR_BUF).data(b"secrets!"))?;
    s.note("a neighbour keeps the page");
    let q = client(s)?;
    q.post(&Tx::to(0, 2).data(b"neighbour"))?;
    let data = m.receive()?;
    let neighbour = m.receive()?;
    looks(&m, &data);
    m.free(&data)?;
    looks(&m, &data);
    looks(&m, &neighbour);
    Ok(())
}

fn reply_clear(s: &Stage) -> Outcome {
    let (m, p) = pair(s)?;
    s.note("an earlier reply keeps the page");
    call_in_progress(&m, &p)?;
    m.reply(&Tx::new().data(b"keep"))?;
    p.receive()?;
    call_in_progress(&m, &p)?;
    m.reply(&Tx::new().flags(TF_CLEAR_BUF).data(b"secrets!"))?;
    let reply = p.receive()?;
    looks(&p, &reply);
    p.free(&reply)?;
    looks(&p, &reply);
    Ok(())
}

fn kept(s: &Stage) -> Outcome {
    let (m, p) = pair(s)?;
    let data = call_in_progress(&m, &p)?;
    m.reply(&Tx::new())?;
    p.read()?;
    p.die()?;
    looks(&m, &data);
    m.free(&data)
}

fn freed_in_stream(s: &Stage) -> Outcome {
    let (m, p) = pair(s)?;
    let data = call_in_progress(&m, &p)?;
    let reply = Tx::new().data(b"a").reply(m.arena());
    m.exchange(&[Command::FreeBuffer(data.buffer), reply], 256)?;
    p.read()?;
    let data = call_in_progress(&m, &p)?;
    let reply = Tx::new().data(b"b").reply(m.arena());
    m.exchange(&[reply, Command::FreeBuffer(data.buffer)], 256)?;
    p.read()?;
    Ok(())
}
