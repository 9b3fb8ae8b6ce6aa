//! File descriptors in transactions.

use binder_uapi::*;

use super::*;
use crate::transaction::descriptor;

cases! {
    "fd.refused", refused, "a node that does not accept descriptors";
    "fd.accepted", accepted, "a descriptor arrives as one of the receiver's own, close-on-exec";
    "fd.works", works, "what is written to it comes out at the sender's end";
    "fd.bad", bad, "a descriptor that the sender does not have";
    "fd.in_reply", in_reply, "a reply may carry one where the caller accepts it";
    "fd.unread", unread, "a descriptor that is never delivered";
    "fd.closed_by_sender", closed_by_sender, "the sender closes its own before delivery";
    "fd.two", two, "two descriptors in one call";
    "fd.table_full", table_full, "the receiver has no room for a descriptor";
    "fd.freed", freed, "freeing the buffer leaves a plain descriptor open";
    "fd.binder_itself", binder_itself, "an open of the device as a descriptor";
}

/// A manager whose node has these flags, and a client with a pipe: (manager, client, read end,
/// write end).
fn with_pipe(s: &Stage, flags: u32) -> Result<(Peer, Peer, u32, u32), Stop> {
    let m = client(s)?;
    m.manage_as(FlatBinderObject { flags, ..local(0, 0) })?;
    let p = client(s)?;
    let (read, write) = pipe(&p)?;
    Ok((m, p, read, write))
}

fn pipe(p: &Peer) -> Result<(u32, u32), Stop> {
    let at = p.arena().place(&[0; 8]);
    p.call(libc::SYS_pipe2, [at, 0, 0, 0, 0, 0])?;
    let fds = p.arena().get(at, 8).unwrap_or_default();
    let fd = |at: usize| u32::from_ne_bytes([fds[at], fds[at + 1], fds[at + 2], fds[at + 3]]);
    Ok((fd(0), fd(4)))
}

/// The descriptor at the `index`th offset.
fn received(m: &Peer, data: &BinderTransactionData, index: u64) -> Result<u64, Stop> {
    let lost = |_| Stop("the buffer cannot be read".to_owned());
    let offset = m.peek(data.offsets + 8 * index, 8).map_err(lost)?;
    let offset = u64::from_ne_bytes(offset.try_into().unwrap_or_default());
    let object = m.peek(data.buffer.wrapping_add(offset) + 8, 4).map_err(lost)?;
    Ok(u64::from(u32::from_ne_bytes(object.try_into().unwrap_or_default())))
}

fn state(m: &Peer, fd: u64) -> Outcome {
    let flags = m.call(libc::SYS_fcntl, [fd, libc::F_GETFD as u64, 0, 0, 0, 0])?;
    m.log(match flags {
        0 => format!("descriptor {fd} is open"),
        1 => format!("descriptor {fd} is open, close-on-exec"),
        error => format!("descriptor {fd}: {}", crate::describe::errno_name(-error as i32)),
    });
    Ok(())
}

fn refused(s: &Stage) -> Outcome {
    let (m, p, read, _) = with_pipe(s, 0)?;
    p.send(&Tx::to(0, 1).one_way().object(descriptor(read)))?;
    p.extended_error()?;
    p.send(&Tx::to(0, 1).object(descriptor(read)))?;
    p.extended_error()?;
    m.drain()
}

fn accepted(s: &Stage) -> Outcome {
    let (m, p, read, _) = with_pipe(s, FLAT_BINDER_FLAG_ACCEPTS_FDS)?;
    p.send(&Tx::to(0, 1).one_way().object(descriptor(read)))?;
    let data = m.receive()?;
    state(&m, received(&m, &data, 0)?)
}

fn works(s: &Stage) -> Outcome {
    let (m, p, read, write) = with_pipe(s, FLAT_BINDER_FLAG_ACCEPTS_FDS)?;
    p.post(&Tx::to(0, 1).object(descriptor(write)))?;
    let data = m.receive()?;
    let fd = received(&m, &data, 0)?;
    let text = m.arena().place(b"through");
    let wrote = m.call(libc::SYS_write, [fd, text, 7, 0, 0, 0])?;
    let room = p.arena().place(&[0; 8]);
    let got = p.call(libc::SYS_read, [read.into(), room, 8, 0, 0, 0])?;
    let bytes = p.arena().get(room, got.max(0) as usize).unwrap_or_default();
    p.log(format!("{wrote} bytes went in, {:?} came out", String::from_utf8_lossy(&bytes)));
    Ok(())
}

fn bad(s: &Stage) -> Outcome {
    let (m, p, ..) = with_pipe(s, FLAT_BINDER_FLAG_ACCEPTS_FDS)?;
    for fd in [150, u32::MAX] {
        p.send(&Tx::to(0, 1).one_way().object(descriptor(fd)))?;
        p.extended_error()?;
    }
    m.drain()
}

fn in_reply(s: &Stage) -> Outcome {
    let m = manager(s)?;
    let p = client(s)?;
    let (read, _) = pipe(&m)?;
    for flags in [0, TF_ACCEPT_FDS] {
        p.post(&Tx::to(0, 1).flags(flags))?;
        let data = m.receive()?;
        m.reply(&Tx::new().object(descriptor(read)))?;
        m.extended_error()?;
        m.free(&data)?;
        p.read()?;
        p.extended_error()?;
    }
    Ok(())
}

fn unread(s: &Stage) -> Outcome {
    let m = client(s)?;
    m.manage_as(FlatBinderObject { flags: FLAT_BINDER_FLAG_ACCEPTS_FDS, ..local(0, 0) })?;
    let p = blocking_client(s)?;
    let (read, write) = pipe(&p)?;
    p.send(&Tx::to(0, 1).one_way().object(descriptor(read)))?;
    p.call(libc::SYS_close, [read.into(), 0, 0, 0, 0, 0])?;
    s.note("the manager dies; then nobody has the read end");
    let notification = BinderHandleCookie { handle: 0, cookie: 1 };
    p.write(&[Command::Acquire(0), Command::RequestDeathNotification(notification)])?;
    m.die()?;
    p.read()?;
    p.let_time_pass();
    let all = p.arena().place(&u64::MAX.to_ne_bytes());
    p.call(libc::SYS_rt_sigprocmask, [0, all, 0, 8, 0, 0])?;
    let text = p.arena().place(b"x");
    let wrote = p.call(libc::SYS_write, [write.into(), text, 1, 0, 0, 0])?;
    p.log(match wrote {
        1 => "writes to the pipe = ok".to_owned(),
        error if error == -i64::from(libc::EPIPE) => "writes to the pipe = EPIPE".to_owned(),
        error => format!("writes to the pipe = {error}"),
    });
    Ok(())
}

fn closed_by_sender(s: &Stage) -> Outcome {
    let (m, p, read, _) = with_pipe(s, FLAT_BINDER_FLAG_ACCEPTS_FDS)?;
    p.send(&Tx::to(0, 1).one_way().object(descriptor(read)))?;
    p.call(libc::SYS_close, [read.into(), 0, 0, 0, 0, 0])?;
    let data = m.receive()?;
    state(&m, received(&m, &data, 0)?)
}

fn two(s: &Stage) -> Outcome {
    let (m, p, read, write) = with_pipe(s, FLAT_BINDER_FLAG_ACCEPTS_FDS)?;
    p.send(
        &Tx::to(0, 1).one_way().object(descriptor(read)).data(b"gap!").object(descriptor(write)),
    )?;
    let data = m.receive()?;
    state(&m, received(&m, &data, 0)?)?;
    state(&m, received(&m, &data, 1)?)
}

fn table_full(s: &Stage) -> Outcome {
    let (m, p, read, _) = with_pipe(s, FLAT_BINDER_FLAG_ACCEPTS_FDS)?;
    let limit = m.arena().place(&[3u64.to_ne_bytes(), 300u64.to_ne_bytes()].concat());
    m.call(libc::SYS_prlimit64, [0, libc::RLIMIT_NOFILE as u64, limit, 0, 0, 0])?;
    p.send(&Tx::to(0, 1).object(descriptor(read)))?;
    m.read()?;
    p.drain()?;
    p.extended_error()?;
    m.drain()
}

fn freed(s: &Stage) -> Outcome {
    let (m, p, read, _) = with_pipe(s, FLAT_BINDER_FLAG_ACCEPTS_FDS)?;
    p.send(&Tx::to(0, 1).one_way().object(descriptor(read)))?;
    let data = m.receive()?;
    let fd = received(&m, &data, 0)?;
    m.free(&data)?;
    state(&m, fd)
}

fn binder_itself(s: &Stage) -> Outcome {
    let (m, p, ..) = with_pipe(s, FLAT_BINDER_FLAG_ACCEPTS_FDS)?;
    p.send(&Tx::to(0, 1).one_way().object(descriptor(p.fd() as u32)))?;
    let data = m.receive()?;
    state(&m, received(&m, &data, 0)?)
}
