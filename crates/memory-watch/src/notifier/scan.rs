//! Reads from the iterators.

use std::collections::HashSet;
use std::io::Read;
use std::os::fd::AsFd;

use libbpf_rs::{Iter, Map, Object};
use zerocopy::FromBytes;

use super::wire::WireSample;
use crate::NotifierError;
use crate::watch::ProcessSample;

/// What an iterator runs over.
#[derive(Clone, Copy)]
enum Range<'a> {
    Tasks,
    Elements(&'a Map<'a>),
}

/// Runs the iterator `program` and passes its output to `f`, in whole records of `record` bytes.
fn run(
    (object, program): (&Object, &str),
    range: Range<'_>,
    buffer: &mut [u8],
    record: usize,
    f: &mut dyn FnMut(&[u8]),
) -> Result<(), NotifierError> {
    let found = object
        .progs_mut()
        .find(|candidate| candidate.name() == program)
        .ok_or_else(|| NotifierError::Unsupported(format!("BPF program {program} is missing")))?;
    let link = match range {
        Range::Tasks => found.attach(),
        Range::Elements(map) => found.attach_iter(map.as_fd()),
    };
    let link = link.map_err(|e| NotifierError::bpf(format!("attach iterator {program}"), e))?;
    let mut iterator =
        Iter::new(&link).map_err(|e| NotifierError::bpf(format!("start iterator {program}"), e))?;
    let mut filled = 0;
    loop {
        let read = match iterator.read(&mut buffer[filled..]) {
            Ok(0) => return Ok(()),
            Ok(read) => read,
            // The kernel ends a read early after a million tasks without output.
            Err(e) if matches!(e.raw_os_error(), Some(libc::EAGAIN | libc::EINTR)) => continue,
            Err(e) => return Err(NotifierError::os(format!("read iterator {program}"), e)),
        };
        filled += read;
        let whole = filled - filled % record;
        buffer[..whole].chunks_exact(record).for_each(&mut *f);
        buffer.copy_within(whole..filled, 0);
        filled -= whole;
    }
}

/// All processes that have an address space, into `out`.
pub fn snapshot(
    object: &Object,
    buffer: &mut [u8],
    out: &mut Vec<ProcessSample>,
) -> Result<(), NotifierError> {
    out.clear();
    run((object, "snapshot"), Range::Tasks, buffer, size_of::<WireSample>(), &mut |bytes| {
        if let Ok(sample) = WireSample::read_from_bytes(bytes) {
            out.push(sample.decode());
        }
    })?;
    // Several threads are reported for a process with a leader that has exited; the iterator's
    // order is by tid, so they need not be neighbours.
    out.sort_unstable_by_key(|sample| sample.tgid);
    out.dedup_by_key(|sample| sample.tgid);
    Ok(())
}

/// Runs the iterator that charges and corrects the accounts.
pub fn reconcile(object: &Object, buffer: &mut [u8]) -> Result<(), NotifierError> {
    run((object, "reconcile"), Range::Tasks, buffer, 1, &mut |_| ())
}

/// The address spaces with an account that have users, by address.
pub fn used_spaces(
    object: &Object,
    accounts: &Map<'_>,
    buffer: &mut [u8],
) -> Result<HashSet<u64>, NotifierError> {
    let mut used = HashSet::new();
    let range = Range::Elements(accounts);
    run((object, "used_spaces"), range, buffer, size_of::<u64>(), &mut |bytes| {
        used.extend(bytes.try_into().map(u64::from_ne_bytes));
    })?;
    Ok(used)
}
