//! The cases, by subject.
//!
//! Opens are nonblocking where a script only reads pending work (a read without work is `EAGAIN`,
//! without any waiting), and blocking where waiting is the subject or a death must be waited for.

use binder_uapi::{BinderPtrCookie, BinderTransactionData, Command};

use crate::peer::{MAP_LEN, Peer};
use crate::shared::{Outcome, Stop};
use crate::stage::Stage;
use crate::transaction::{Tx, local};

mod buffers;
mod calls;
mod context_manager;
mod death;
mod descriptors;
mod freeze;
mod freeze_notification;
mod ioctls;
mod looper;
mod mapping;
mod objects;
mod oneway;
mod poll;
mod processes;
mod references;
mod scatter_gather;
mod stack;
mod streams;

/// One case: a script and its name.
pub struct Case {
    /// `subject.what_happens`.
    pub name: &'static str,
    /// Description, one sentence.
    pub about: &'static str,
    /// The script.
    pub play: fn(&Stage) -> Outcome,
}

/// A table of cases.
macro_rules! cases {
    ($($name:literal, $play:path, $about:literal;)*) => {
        /// The cases of this subject.
        pub const CASES: &[$crate::cases::Case] =
            &[$($crate::cases::Case { name: $name, about: $about, play: $play }),*];
    };
}
use cases;

/// All cases, in the order in which they are played.
pub fn all() -> Vec<&'static Case> {
    let tables = [
        ioctls::CASES,
        context_manager::CASES,
        mapping::CASES,
        streams::CASES,
        calls::CASES,
        stack::CASES,
        oneway::CASES,
        buffers::CASES,
        objects::CASES,
        descriptors::CASES,
        scatter_gather::CASES,
        references::CASES,
        death::CASES,
        looper::CASES,
        poll::CASES,
        processes::CASES,
        freeze::CASES,
        freeze_notification::CASES,
    ];
    tables.into_iter().flatten().collect()
}

const NONBLOCK: i32 = libc::O_NONBLOCK;

/// A node that many scripts use: pointer and cookie.
const NODE: BinderPtrCookie = BinderPtrCookie { ptr: 0x1000, cookie: 0x1001 };
/// Another one.
const OTHER_NODE: BinderPtrCookie = BinderPtrCookie { ptr: 0x2000, cookie: 0x2001 };
/// A handle that no client has.
const UNKNOWN: u32 = 77;

/// A process with a nonblocking open, mapped.
fn client(s: &Stage) -> Result<Peer, Stop> {
    let peer = s.process()?;
    peer.set_up(NONBLOCK, MAP_LEN)?;
    Ok(peer)
}

/// A process with a blocking open, mapped.
fn blocking_client(s: &Stage) -> Result<Peer, Stop> {
    let peer = s.process()?;
    peer.set_up(0, MAP_LEN)?;
    Ok(peer)
}

/// The context manager.
fn manager(s: &Stage) -> Result<Peer, Stop> {
    let peer = client(s)?;
    peer.manage()?;
    Ok(peer)
}

/// The context manager, with a blocking open.
fn blocking_manager(s: &Stage) -> Result<Peer, Stop> {
    let peer = blocking_client(s)?;
    peer.manage()?;
    Ok(peer)
}

/// The context manager and a client.
fn pair(s: &Stage) -> Result<(Peer, Peer), Stop> {
    Ok((manager(s)?, client(s)?))
}

/// Gives the manager a strong reference to a node of `owner`; returns the manager's handle. Not in
/// the transcript: objects and references have cases of their own.
fn introduce(s: &Stage, owner: &Peer, manager: &Peer, node: BinderPtrCookie) -> Result<u32, Stop> {
    let BinderPtrCookie { ptr, cookie } = node;
    s.note(&format!("the manager gets a reference to {ptr:#x}"));
    s.quietly(|| {
        let got = owner.send(&Tx::to(0, 1).one_way().object(local(ptr, cookie)))?;
        owner.acknowledge(&got)?;
        let data = manager.receive()?;
        let handle = manager.handle_in(&data, 0)?;
        manager.write(&[Command::Acquire(handle), Command::FreeBuffer(data.buffer)])?;
        settle(owner)?;
        Ok(handle)
    })
}

/// Reads pending work of a nonblocking open, so that references are acknowledged.
fn settle(owner: &Peer) -> Outcome {
    if owner.is_blocking()? { Ok(()) } else { owner.drain() }
}

/// Passes a reference of the manager to `to`, which keeps a strong reference.
fn pass_on(s: &Stage, manager: &Peer, handle: u32, to: &Peer) -> Result<u32, Stop> {
    s.note("the manager passes it on");
    s.quietly(|| {
        to.post(&Tx::to(0, 2))?;
        let data = manager.receive()?;
        manager.reply(&Tx::new().object(crate::transaction::remote(handle)))?;
        manager.free(&data)?;
        let reply = to.receive()?;
        let mine = to.handle_in(&reply, 0)?;
        to.write(&[Command::Acquire(mine), Command::FreeBuffer(reply.buffer)])?;
        Ok(mine)
    })
}

/// The client makes a sync call that the manager has read, without a reply.
fn call_in_progress(manager: &Peer, client: &Peer) -> Result<BinderTransactionData, Stop> {
    client.post(&Tx::to(0, 1).data(b"call"))?;
    manager.receive()
}
