//! The five calls of the course project that had this idea first, implemented on tmalloc.
//!
//! There `transaction_reserve` reserved memory and `transaction_commit` ended the reservation as
//! soon as `malloc` had returned, before a page of it was touched. Here a reservation holds until
//! the memory is used, so a commit only returns the memory that the transaction's allocations
//! did not need.

use std::ffi::{c_int, c_ulong};
use std::path::PathBuf;

use control::oomd::{AccountRef, Reply, Request};
use control::{Client, ControlError, OOMD_SOCKET, Uid};

use crate::gate::{self, Refused};
use crate::{capi, heap, link, sys};

/// Overrides the path of the control socket.
const SOCKET_VARIABLE: &std::ffi::CStr = c"HEADROOM_OOMD_SOCKET";

/// Reason why a call failed.
#[derive(Debug)]
pub enum CompatError {
    /// The daemon cannot be reached.
    Control(ControlError),
    /// The daemon refused; its message.
    Refused(String),
}

impl std::fmt::Display for CompatError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Control(error) => error.fmt(f),
            Self::Refused(words) => f.write_str(words),
        }
    }
}

impl std::error::Error for CompatError {}

impl From<ControlError> for CompatError {
    fn from(error: ControlError) -> Self {
        Self::Control(error)
    }
}

fn send(request: &Request) -> Result<Reply, CompatError> {
    let path = sys::environment(SOCKET_VARIABLE).and_then(|path| path.to_str().ok());
    let path = PathBuf::from(path.unwrap_or(OOMD_SOCKET));
    match Client::connect(&path)?.call(request)? {
        Reply::Error { message } => Err(CompatError::Refused(message)),
        reply => Ok(reply),
    }
}

/// Limits a user's memory, bytes; 0 removes the limit.
pub fn set_mm_limit(uid: Uid, bytes: u64) -> Result<(), CompatError> {
    let account = AccountRef::user(uid);
    let request = match bytes {
        0 => Request::ClearLimit { account, grace_s: None },
        hard_bytes => Request::SetLimit { account, hard_bytes, soft_bytes: None, grace_s: None },
    };
    send(&request).map(drop)
}

/// The limits that the caller may see: pairs of uid and bytes.
pub fn get_mm_limit() -> Result<Vec<(u32, u64)>, CompatError> {
    match send(&Request::ListLimits)? {
        Reply::Limits { limits } => {
            Ok(limits.iter().map(|it| (it.account.uid, it.hard_bytes)).collect())
        }
        other => Err(CompatError::Refused(format!("unexpected answer: {other:?}"))),
    }
}

/// Checks all limits now, and kills where one is exceeded. Returns the number of kills.
pub fn run_oom_killer() -> Result<usize, CompatError> {
    match send(&Request::RunOomKiller { account: None })? {
        Reply::OomKillerRan { kills } => {
            Ok(kills.iter().filter(|why| why.victim.is_some()).count())
        }
        other => Err(CompatError::Refused(format!("unexpected answer: {other:?}"))),
    }
}

/// Reserves `bytes` for this thread's next allocations, or returns the reason for refusing.
pub fn transaction_reserve(bytes: usize) -> Result<(), Refused> {
    let lease = crate::reserve(bytes)?;
    gate::begin_transaction(lease.into_bytes());
    Ok(())
}

/// Ends this thread's transactions: memory that their allocations did not need is returned. Memory
/// that they took stays reserved until it is used. `bytes` is the size of the reservation, and the
/// maximum that is returned.
pub fn transaction_commit(bytes: usize) {
    let rest = gate::end_transaction(bytes as u64);
    if rest > 0 {
        gate::release(rest);
        link::report_released();
    }
}

/// The same calls for C, with the names of the original.
mod c {
    use super::*;

    fn done<T>(result: Result<T, CompatError>) -> Option<T> {
        result
            .map_err(|error| {
                capi::set_errno(match error {
                    CompatError::Control(_) => libc::ENOTCONN,
                    CompatError::Refused(_) => libc::EPERM,
                });
            })
            .ok()
    }

    /// Returns 0, or -1 with `errno`: `ENOTCONN` without a daemon, `EPERM` if it refuses.
    #[unsafe(export_name = "set_mm_limit")]
    extern "C" fn set_mm_limit_c(uid: libc::uid_t, bytes: c_ulong) -> c_int {
        done(set_mm_limit(Uid(uid), bytes)).map_or(-1, |()| 0)
    }

    /// Returns the number of limits, of which at most `count` were written; -1 with `errno`.
    ///
    /// # Safety
    /// Both arrays must have room for `count` elements.
    #[unsafe(export_name = "get_mm_limit")]
    unsafe extern "C" fn get_mm_limit_c(
        uids: *mut libc::uid_t,
        limits: *mut c_ulong,
        count: c_int,
    ) -> c_int {
        let Some(found) = done(get_mm_limit()) else { return -1 };
        let room = usize::try_from(count).unwrap_or(0);
        for (at, (uid, bytes)) in found.iter().take(room).enumerate() {
            // SAFETY: the caller guarantees it; `at` is below `count`.
            unsafe {
                uids.add(at).write(*uid);
                limits.add(at).write(*bytes);
            }
        }
        c_int::try_from(found.len()).unwrap_or(c_int::MAX)
    }

    /// Returns the number of kills; -1 with `errno`.
    #[unsafe(export_name = "run_oom_killer")]
    extern "C" fn run_oom_killer_c() -> c_int {
        done(run_oom_killer()).map_or(-1, |kills| c_int::try_from(kills).unwrap_or(c_int::MAX))
    }

    /// Returns 0, or -1 with `errno`.
    #[unsafe(export_name = "transaction_reserve")]
    extern "C" fn transaction_reserve_c(bytes: usize) -> c_int {
        heap::ready();
        match transaction_reserve(bytes) {
            Ok(()) => 0,
            Err(refused) => {
                capi::fail(refused);
                -1
            }
        }
    }

    /// Always returns 0.
    #[unsafe(export_name = "transaction_commit")]
    extern "C" fn transaction_commit_c(bytes: usize) -> c_int {
        transaction_commit(bytes);
        0
    }
}
