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

/// Opens `device`, maps 4 MiB and makes a call, `clients` times; all stay open until the end.
/// Counts on behalf of this process and of those in `daemons`. The device's context manager must be
/// serving.
pub fn count(device: &Path, clients: usize, daemons: &[u32]) -> Result<u64> {
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
    trace.count()
}
