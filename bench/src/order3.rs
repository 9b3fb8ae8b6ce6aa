//! Allocations of eight contiguous pages and more. They are hard to satisfy when memory is
//! fragmented, and a driver should not need them for a new client.

use std::path::Path;

use anyhow::Result;
use binder_client::{Client, Options, Payload, Session};

use crate::tracing::Trace;

/// Maximum size of a mapping that a driver uses.
const MAP_LEN: usize = 4 << 20;
/// Size of the call that each client makes, bytes.
const CALL_LEN: usize = 4096;

/// Allocations that new clients have cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Order3 {
    /// Allocations of order 3 or higher.
    pub all: u64,
    /// Of these, those without `__GFP_NORETRY`: the caller had no fallback, so the kernel would
    /// have tried everything.
    pub required: u64,
}

/// Opens `device`, maps 4 MiB and makes a call, `clients` times; all stay open until the end.
/// Counts on behalf of this process and of those in `daemons`. The device's context manager must be
/// serving.
pub fn count(device: &Path, clients: usize, daemons: &[u32]) -> Result<Order3> {
    let mut pids = vec![std::process::id()];
    pids.extend(daemons);
    let trace = Trace::start("kmem/mm_page_alloc", "order >= 3", &pids)?;
    let message = vec![7; CALL_LEN];
    let mut open = Vec::new();
    for _ in 0..clients {
        let client = Client::open(device, &Options { map_len: MAP_LEN, ..Options::default() })?;
        let mut session = Session::new(&client);
        let reply = session.call(0, 1, Payload::bytes(&message))?;
        session.free(reply);
        session.flush()?;
        drop(session);
        open.push(client);
    }
    // Reading the buffer makes such an allocation itself.
    trace.stop()?;
    let lines = trace.lines()?;
    Ok(Order3 { all: trace.count()?, required: required(&lines) })
}

fn required(lines: &[String]) -> u64 {
    lines.iter().filter(|line| !line.contains("__GFP_NORETRY")).count() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_allocation_that_may_fail_is_not_required() {
        let lines = [
            "x-1 [000] ..... 1.0: mm_page_alloc: page=1 pfn=0x1 order=3 migratetype=0 \
             gfp_flags=GFP_KERNEL|__GFP_ZERO",
            "x-1 [000] ..... 1.1: mm_page_alloc: page=1 pfn=0x1 order=3 migratetype=0 \
             gfp_flags=GFP_KERNEL|__GFP_NOWARN|__GFP_NORETRY|__GFP_ZERO",
        ];
        assert_eq!(required(&lines.map(str::to_owned)), 1);
    }
}
