//! Replies of the control socket.

use binder_driver::snapshot::{ContextSnapshot, ProcessSnapshot};
use binder_fuse::Server;
use control::binderd::{
    Call, Device, Outcome, PAGE_BYTES, Process, Reclaimed, Reply, Request, Stat, Status,
    TraceFilter,
};
use control::{Answer, Peer};

use crate::next_program::UpgradeRequests;

/// Records in one reply, which takes a fraction of a millisecond to write, so that clients do not
/// wait.
const CALLS_A_REPLY: usize = 256;

fn may_see(peer: Peer) -> bool {
    peer.is_root() || peer.uid.0 == rustix::process::geteuid().as_raw()
}

/// Replies to one request. Every user may read the status; what clients have open is visible to
/// root and to the user who runs this daemon.
pub fn answer(
    server: &mut Server,
    upgrades: &mut UpgradeRequests,
    control::Request { id, peer, body }: control::Request<Request>,
) -> Answer<Reply> {
    Answer::Now(match body {
        Ok(Request::Upgrade { program }) => {
            // The open of such a file would wait for a reply of this thread.
            let of_bus = program.as_deref().filter(|path| path.starts_with(server.mount_point()));
            let accepted = match of_bus {
                Some(path) => Err(format!("{}: a file of the bus is no program", path.display())),
                None => upgrades.accept(id, peer, program.as_deref()),
            };
            match accepted {
                Ok(()) => return Answer::Later,
                Err(message) => Reply::Error { message },
            }
        }
        Ok(Request::Status) => Reply::Status(status(server)),
        Ok(Request::Ls) if may_see(peer) => Reply::Ls {
            devices: server
                .snapshot()
                .contexts
                .into_iter()
                .map(|context| device(server, context))
                .collect(),
        },
        Ok(Request::Reclaim { pages }) if peer.is_root() => {
            let reclaimed = server.reclaim_batch(pages.div_ceil(units(1)));
            let idle_pages = units(server.page_counts().idle);
            Reply::Reclaimed(Reclaimed { pages: units(reclaimed.into()), idle_pages })
        }
        Ok(Request::Stat) if may_see(peer) => {
            let counts = server.command_counts();
            let owned = |counts: Vec<(&str, u32)>| {
                counts.into_iter().map(|(name, count)| (name.to_owned(), count)).collect()
            };
            let (commands, returns) = (owned(counts.commands), owned(counts.returns));
            Reply::Stat(Stat { commands, returns, status: status(server) })
        }
        Ok(Request::Trace { from, filter }) if may_see(peer) => trace(server, from, &filter),
        Ok(Request::Trace { .. } | Request::Stat) => {
            Reply::Error { message: format!("uid {} may not trace calls: only root may", peer.uid) }
        }
        Ok(Request::Reclaim { .. }) => Reply::Error {
            message: format!("uid {} may not reclaim memory: only root may", peer.uid),
        },
        Ok(Request::Ls) => Reply::Error {
            message: format!("uid {} may not list what is open: only root may", peer.uid),
        },
        Err(error) => Reply::Error { message: format!("cannot understand the request: {error}") },
    })
}

fn status(server: &Server) -> Status {
    let counts = server.page_counts();
    Status {
        version: env!("CARGO_PKG_VERSION").into(),
        protocol: control::PROTOCOL_VERSION,
        pid: std::process::id(),
        mount: server.mount_point().display().to_string(),
        mapping: server.mapping().name().into(),
        devices: count(server.device_count()),
        processes: count(server.open_count()),
        transactions: server.transactions(),
        touched_pages: units(counts.touched),
        idle_pages: units(counts.idle),
        reclaimed_pages: units(counts.reclaimed),
        owner_quota_bytes: server.owner_quota_bytes(),
        largest_owner_bytes: server.largest_owner_bytes(),
        rings: count(server.ring_count()),
        degraded: server.degraded().to_vec(),
    }
}

/// Pages of this machine in the unit of the protocol.
fn units(pages: u64) -> u64 {
    pages * (rustix::param::page_size() as u64 / PAGE_BYTES)
}

fn count(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

fn device(server: &Server, context: ContextSnapshot) -> Device {
    Device {
        file_is_bound: !context.removed && server.file_is_bound(&context.name),
        name: context.name,
        manager: context.manager_pid,
        processes: context.processes.into_iter().map(process).collect(),
    }
}

fn process(process: ProcessSnapshot) -> Process {
    let comm = std::fs::read_to_string(format!("/proc/{}/comm", process.pid)).ok();
    Process {
        pid: process.pid,
        euid: process.euid,
        owner: process.owner.to_string(),
        owner_bytes: process.owner_memory_bytes,
        comm: comm.map(|comm| comm.trim_end().to_owned()),
        threads: process.threads,
        nodes: process.nodes,
        handles: process.handles,
        buffers: process.buffers,
        queued: count(process.queued_work),
    }
}

/// The next part of the trace.
fn trace(server: &mut Server, from: Option<u64>, filter: &TraceFilter) -> Reply {
    let part = server.trace(from, CALLS_A_REPLY, |call| is_wanted(filter, call));
    Reply::Trace { calls: part.records, next: part.next, lost: part.lost }
}

fn is_wanted(filter: &TraceFilter, call: &Call) -> bool {
    let ends = || call.to.iter().chain([&call.from]);
    filter.device.as_ref().is_none_or(|device| *device == call.device)
        && filter.pid.is_none_or(|pid| ends().any(|end| end.pid == pid))
        && filter.comm.as_ref().is_none_or(|comm| ends().any(|end| end.comm == *comm))
        && filter.code.is_none_or(|code| call.code == code)
        && !(filter.failed && call.outcome == Outcome::Done)
}
