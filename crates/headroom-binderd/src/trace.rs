//! Trace requests of the control socket.

use std::time::{Duration, UNIX_EPOCH};

use binder_fuse::{Server, TraceEnd, TraceOutcome, TraceRecord};
use control::binderd::{Call, CallEnd, Outcome, Reply, TraceFilter};

/// Records in one reply, which takes a fraction of a millisecond to write, so that clients do not
/// wait.
const CALLS_A_REPLY: usize = 256;

/// Returns the next part of the trace.
pub fn answer(server: &mut Server, from: Option<u64>, filter: &TraceFilter) -> Reply {
    let part = server.trace(from, CALLS_A_REPLY, |record| is_wanted(filter, record));
    let calls = part.records.into_iter().map(call).collect();
    Reply::Trace { calls, next: part.next, lost: part.lost }
}

fn is_wanted(filter: &TraceFilter, record: &TraceRecord) -> bool {
    let ends = || record.to.iter().chain([&record.from]);
    filter.device.as_ref().is_none_or(|device| *device == record.device)
        && filter.pid.is_none_or(|pid| ends().any(|end| end.pid == pid))
        && filter.comm.as_ref().is_none_or(|comm| ends().any(|end| end.comm == *comm))
        && filter.code.is_none_or(|code| record.call.code == code)
        && !(filter.failed && record.outcome == TraceOutcome::Done)
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

fn end(end: TraceEnd) -> CallEnd {
    CallEnd { pid: end.pid, tid: end.tid, comm: end.comm }
}

fn call(record: TraceRecord) -> Call {
    let sent = record.sent.duration_since(UNIX_EPOCH).unwrap_or_default();
    Call {
        sent_us: u64::try_from(sent.as_micros()).unwrap_or(u64::MAX),
        device: record.device,
        oneway: record.call.oneway,
        from: end(record.from),
        to: record.to.map(end),
        handle: record.call.handle,
        node: record.call.node,
        code: record.call.code,
        flags: record.call.flags,
        bytes: record.call.bytes,
        objects: record.call.objects,
        reply_bytes: record.reply_bytes,
        waited_ns: record.waited.map(nanoseconds),
        took_ns: nanoseconds(record.took),
        outcome: match record.outcome {
            TraceOutcome::Done => Outcome::Done,
            TraceOutcome::Dead => Outcome::Dead,
            TraceOutcome::Frozen => Outcome::Frozen,
            TraceOutcome::Failed => Outcome::Failed,
            TraceOutcome::Dropped => Outcome::Dropped,
        },
        errno: record.errno,
        refusal: record.refusal,
    }
}
