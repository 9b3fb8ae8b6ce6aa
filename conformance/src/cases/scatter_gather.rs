//! Scatter-gather: buffers beside the data, pointers in them, and arrays of descriptors.

use binder_uapi::*;

use super::*;
use crate::transaction::{descriptors, pointer, pointer_in};

cases! {
    "sg.none", none, "the SG commands without buffers are the plain ones";
    "sg.one", one, "a buffer is copied and its pointer follows";
    "sg.reply", reply, "and so in a reply";
    "sg.two", two, "two buffers, each 8-aligned";
    "sg.empty_buffer", empty_buffer, "a buffer of no bytes";
    "sg.no_space", no_space, "buffers_size is less than the buffers";
    "sg.size_unaligned", size_unaligned, "buffers_size must be a multiple of 8";
    "sg.more_space", more_space, "buffers_size is more than the buffers";
    "sg.in_plain_transaction", in_plain, "a buffer object without the SG command";
    "sg.faulting", faulting, "a buffer that cannot be read";
    "sg.parent", parent, "a pointer inside of a parent buffer is fixed up";
    "sg.parent_at_0", parent_at_0, "a parent that is the first thing in the data";
    "sg.parent_bad", parent_bad, "parents that are no buffer, or come later, or are too small";
    "sg.parent_order", parent_order,
        "only the last buffer or its ancestors may be fixed up, in ascending order";
    "sg.fda", fda, "an array of descriptors in a buffer";
    "sg.fda_freed", fda_freed, "descriptors of an array are closed with the buffer";
    "sg.fda_bad", fda_bad, "arrays that stick out, or with bad descriptors";
    "sg.huge", huge, "lengths that wrap around";
}

fn none(s: &Stage) -> Outcome {
    let (m, p) = pair(s)?;
    p.post(&Tx::to(0, 1).data(b"plain").buffers_size(0))?;
    m.receive()?;
    m.reply(&Tx::new().data(b"reply").buffers_size(0))?;
    p.read()?;
    Ok(())
}

fn deliver(m: &Peer, p: &Peer, tx: &Tx) -> Outcome {
    p.send(&tx.clone().one_way())?;
    let got = m.read()?;
    match got.incoming() {
        Ok(data) => m.free(&data),
        Err(_) => p.extended_error(),
    }
}

fn one(s: &Stage) -> Outcome {
    let (m, p) = pair(s)?;
    let text = p.arena().place(b"beside the data");
    deliver(&m, &p, &Tx::to(0, 1).data(b"1234").object(pointer(text, 15)).buffers_size(16))
}

fn reply(s: &Stage) -> Outcome {
    let (m, p) = pair(s)?;
    call_in_progress(&m, &p)?;
    let text = m.arena().place(b"beside the reply");
    m.reply(&Tx::new().object(pointer(text, 16)).buffers_size(16))?;
    p.read()?;
    Ok(())
}

fn two(s: &Stage) -> Outcome {
    let (m, p) = pair(s)?;
    let a = p.arena().place(b"abc");
    let b = p.arena().place(b"defghijkl");
    deliver(&m, &p, &Tx::to(0, 1).object(pointer(a, 3)).object(pointer(b, 9)).buffers_size(24))
}

fn empty_buffer(s: &Stage) -> Outcome {
    let (m, p) = pair(s)?;
    let a = p.arena().place(b"abc");
    deliver(&m, &p, &Tx::to(0, 1).object(pointer(a, 0)).object(pointer(a, 3)).buffers_size(8))?;
    deliver(&m, &p, &Tx::to(0, 1).object(pointer(0, 0)).buffers_size(0))
}

fn no_space(s: &Stage) -> Outcome {
    let (m, p) = pair(s)?;
    let a = p.arena().place(&[b'x'; 64]);
    deliver(&m, &p, &Tx::to(0, 1).object(pointer(a, 9)).buffers_size(8))?;
    deliver(&m, &p, &Tx::to(0, 1).object(pointer(a, 8)).object(pointer(a, 1)).buffers_size(8))?;
    deliver(&m, &p, &Tx::to(0, 1).object(pointer(a, 8)).buffers_size(0))
}

fn size_unaligned(s: &Stage) -> Outcome {
    let (m, p) = pair(s)?;
    let a = p.arena().place(b"abc");
    for size in [3, 4, 7, 9] {
        deliver(&m, &p, &Tx::to(0, 1).object(pointer(a, 3)).buffers_size(size))?;
    }
    Ok(())
}

fn more_space(s: &Stage) -> Outcome {
    let (m, p) = pair(s)?;
    let a = p.arena().place(b"abc");
    deliver(&m, &p, &Tx::to(0, 1).object(pointer(a, 3)).buffers_size(4096))
}

fn in_plain(s: &Stage) -> Outcome {
    let (m, p) = pair(s)?;
    let a = p.arena().place(b"abc");
    deliver(&m, &p, &Tx::to(0, 1).object(pointer(a, 3)))
}

fn faulting(s: &Stage) -> Outcome {
    let (m, p) = pair(s)?;
    let bad = p.arena().guard();
    deliver(&m, &p, &Tx::to(0, 1).object(pointer(bad, 8)).buffers_size(8))?;
    deliver(&m, &p, &Tx::to(0, 1).object(pointer(bad - 4, 8)).buffers_size(8))
}

/// A parent of `len` zero bytes and a child.
fn parent_and_child(p: &Peer, len: usize, child: BinderBufferObject) -> Tx {
    let parent = p.arena().place(&vec![0; len]);
    let size = (len.next_multiple_of(8) as u64) + child.length.next_multiple_of(8);
    Tx::to(0, 1)
        .data(b"ahead---")
        .object(pointer(parent, len as u64))
        .object(child)
        .buffers_size(size)
}

fn parent_at_0(s: &Stage) -> Outcome {
    let (m, p) = pair(s)?;
    let parent = p.arena().place(&[0; 8]);
    let child = p.arena().place(b"child");
    let tx = Tx::to(0, 1).object(pointer(parent, 8)).object(pointer_in(0, 0, child, 5));
    deliver(&m, &p, &tx.buffers_size(16))
}

fn parent(s: &Stage) -> Outcome {
    let (m, p) = pair(s)?;
    let child = p.arena().place(b"the child");
    p.send(&parent_and_child(&p, 24, pointer_in(0, 8, child, 9)).one_way())?;
    let data = m.receive()?;
    let lost = |_| Stop("the buffer cannot be read".to_owned());
    let word =
        |at: u64| m.peek(at, 8).map(|b| u64::from_ne_bytes(b.try_into().unwrap_or_default()));
    let parent = word(data.buffer + 8 + 8).map_err(lost)?;
    let child = word(data.buffer + 8 + 40 + 8).map_err(lost)?;
    let in_parent = word(parent + 8).map_err(lost)?;
    m.log(format!("the pointer in the parent is that of the child: {}", in_parent == child));
    let text = m.peek(in_parent, 9).map_err(lost)?;
    m.log(format!("behind it is {:?}", String::from_utf8_lossy(&text)));
    Ok(())
}

fn parent_bad(s: &Stage) -> Outcome {
    let (m, p) = pair(s)?;
    let child = p.arena().place(b"the child");
    for (parent, offset) in [(1, 0), (2, 0), (u64::MAX, 0), (0, 17), (0, 24), (0, u64::MAX), (0, 4)]
    {
        deliver(&m, &p, &parent_and_child(&p, 24, pointer_in(parent, offset, child, 9)))?;
    }
    s.note("the parent is no buffer");
    let tx = Tx::to(0, 1).object(local(NODE.ptr, NODE.cookie)).object(pointer_in(0, 0, child, 9));
    deliver(&m, &p, &tx.buffers_size(16))
}

fn parent_order(s: &Stage) -> Outcome {
    let (m, p) = pair(s)?;
    let parent = pointer(p.arena().place(&[0; 32]), 32);
    let other = pointer(p.arena().place(&[0; 32]), 32);
    let child = |parent, offset| pointer_in(parent, offset, p.arena().place(&[1; 16]), 16);
    let size = 32 + 32 + 16 + 16;
    s.note("ascending");
    let tx = Tx::to(0, 1).data(b"ahead---").object(parent).object(child(0, 0)).object(child(0, 8));
    deliver(&m, &p, &tx.buffers_size(size))?;
    s.note("descending");
    let tx = Tx::to(0, 1).data(b"ahead---").object(parent).object(child(0, 8)).object(child(0, 0));
    deliver(&m, &p, &tx.buffers_size(size))?;
    s.note("an older parent after another buffer");
    let tx = Tx::to(0, 1).data(b"ahead---").object(parent).object(other).object(child(0, 0));
    deliver(&m, &p, &tx.buffers_size(size))?;
    s.note("a grandchild, then the parent again");
    let tx = Tx::to(0, 1)
        .data(b"ahead---")
        .object(parent)
        .object(child(0, 0))
        .object(child(1, 0))
        .object(child(0, 8));
    deliver(&m, &p, &tx.buffers_size(size))
}

/// A manager that accepts descriptors and a client with a pipe.
fn with_pipe(s: &Stage) -> Result<(Peer, Peer, [u32; 2]), Stop> {
    let m = client(s)?;
    m.manage_as(FlatBinderObject { flags: FLAT_BINDER_FLAG_ACCEPTS_FDS, ..local(0, 0) })?;
    let p = client(s)?;
    let at = p.arena().place(&[0; 8]);
    p.call(libc::SYS_pipe2, [at, 0, 0, 0, 0, 0])?;
    let fds = p.arena().get(at, 8).unwrap_or_default();
    let fd = |at: usize| u32::from_ne_bytes([fds[at], fds[at + 1], fds[at + 2], fds[at + 3]]);
    Ok((m, p, [fd(0), fd(4)]))
}

fn array(p: &Peer, fds: &[u32], num_fds: u64, parent: u64, offset: u64) -> Tx {
    let bytes: Vec<u8> = fds.iter().flat_map(|fd| fd.to_ne_bytes()).collect();
    let at = p.arena().place(&bytes);
    Tx::to(0, 1)
        .data(b"ahead---")
        .object(pointer(at, bytes.len() as u64))
        .object(descriptors(num_fds, parent, offset))
        .buffers_size((bytes.len() as u64).next_multiple_of(8))
}

fn fds_at(m: &Peer, data: &BinderTransactionData, count: u64) -> Result<Vec<u64>, Stop> {
    let lost = |_| Stop("the buffer cannot be read".to_owned());
    let at = m.peek(data.buffer + 8 + 8, 8).map_err(lost)?;
    let at = u64::from_ne_bytes(at.try_into().unwrap_or_default());
    (0..count)
        .map(|i| m.peek(at + 4 * i, 4).map_err(lost))
        .map(|fd| Ok(u64::from(u32::from_ne_bytes(fd?.try_into().unwrap_or_default()))))
        .collect()
}

fn states(m: &Peer, fds: &[u64]) -> Outcome {
    for fd in fds {
        let flags = m.call(libc::SYS_fcntl, [*fd, libc::F_GETFD as u64, 0, 0, 0, 0])?;
        m.log(match flags {
            0.. => format!("descriptor {fd} is open, flags {flags}"),
            error => format!("descriptor {fd}: {}", crate::describe::errno_name(-error as i32)),
        });
    }
    Ok(())
}

fn fda(s: &Stage) -> Outcome {
    let (m, p, fds) = with_pipe(s)?;
    p.send(&array(&p, &fds, 2, 0, 0).one_way())?;
    let data = m.receive()?;
    states(&m, &fds_at(&m, &data, 2)?)
}

fn fda_freed(s: &Stage) -> Outcome {
    let (m, p, fds) = with_pipe(s)?;
    p.post(&array(&p, &fds, 2, 0, 0))?;
    let data = m.receive()?;
    let theirs = fds_at(&m, &data, 2)?;
    m.reply(&Tx::new())?;
    states(&m, &theirs)?;
    m.free(&data)?;
    s.note("freed");
    states(&m, &theirs)
}

fn fda_bad(s: &Stage) -> Outcome {
    let (m, p, fds) = with_pipe(s)?;
    for (num, parent, offset) in [
        (3, 0, 0),
        (2, 0, 4),
        (2, 1, 0),
        (2, 7, 0),
        (u64::MAX, 0, 0),
        (1, 0, 2),
        (1, 0, u64::MAX - 3),
        (0, 0, 0),
    ] {
        deliver(&m, &p, &array(&p, &fds, num, parent, offset))?;
    }
    s.note("a bad descriptor among good ones");
    deliver(&m, &p, &array(&p, &[fds[0], 150], 2, 0, 0))
}

fn huge(s: &Stage) -> Outcome {
    let (m, p) = pair(s)?;
    let a = p.arena().place(b"abc");
    deliver(&m, &p, &Tx::to(0, 1).object(pointer(a, u64::MAX)).buffers_size(8))?;
    deliver(&m, &p, &Tx::to(0, 1).object(pointer(a, u64::MAX - 6)).buffers_size(8))?;
    deliver(&m, &p, &Tx::to(0, 1).object(pointer(a, 3)).buffers_size(u64::MAX - 7))?;
    deliver(&m, &p, &Tx::to(0, 1).object(pointer(a, 3)).buffers_size(1 << 62))
}
