//! Requests to `headroom-binderd`, and its replies.

use std::path::PathBuf;

pub use binder_uapi::status::{Buffers, Handle, Node, PAGE_BYTES, Thread};
use owners::Uid;
use serde::{Deserialize, Serialize};

/// A request. Any user may send [`Status`](Request::Status); all others are for root only, and in
/// part for the user that runs the daemon.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "request", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Request {
    /// Version, mapping, counters and degradations.
    Status,
    /// All opens of all devices.
    Ls,
    /// Reclaims the memory of idle buffers, the coldest first. One request reclaims one batch; a
    /// client that wants more sends another request, so that calls are served in between.
    Reclaim {
        /// Maximum number of pages of 4096 bytes.
        pages: u64,
    },
    /// Calls that have ended since the last request. The daemon traces while a client sends these
    /// requests, and for some seconds longer; a client that must not miss calls sends one a few
    /// times per second.
    Trace {
        /// `next` of the last reply; `None`: only calls from now on.
        from: Option<u64>,
        /// The calls to return.
        filter: TraceFilter,
    },
    /// Commands and returns since the start, by kind.
    Stat,
    /// Replaces the daemon's program, with its clients attached.
    Upgrade {
        /// An absolute path; `None`: the file that the running program was started from, or the one
        /// that has replaced it.
        program: Option<PathBuf>,
    },
}

/// Filter for the calls of a trace; the default matches all.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TraceFilter {
    /// Only calls of this device.
    pub device: Option<String>,
    /// Only calls from or to this process.
    pub pid: Option<u32>,
    /// Only calls from or to a process of this name.
    pub comm: Option<String>,
    /// Only calls with this code.
    pub code: Option<u32>,
    /// Only calls that were not answered, or not taken.
    pub failed: bool,
}

/// A reply.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "reply", rename_all = "kebab-case")]
pub enum Reply {
    /// To [`Request::Status`].
    Status(Status),
    /// To [`Request::Ls`].
    Ls {
        /// Devices in the order in which they were added.
        devices: Vec<Device>,
    },
    /// To [`Request::Reclaim`].
    Reclaimed(Reclaimed),
    /// To [`Request::Trace`].
    Trace {
        /// Calls in the order in which they ended.
        calls: Vec<Call>,
        /// Position to continue from.
        next: u64,
        /// Calls that ended and were overwritten before this request.
        lost: u64,
    },
    /// To [`Request::Stat`].
    Stat(Stat),
    /// To [`Request::Upgrade`], by the new program.
    Upgraded(Upgraded),
    /// The request was refused or failed.
    Error {
        /// Human-readable.
        message: String,
    },
}

/// Reply to [`Request::Reclaim`]; pages of [`PAGE_BYTES`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reclaimed {
    /// Pages reclaimed.
    pub pages: u64,
    /// Idle pages that are left.
    pub idle_pages: u64,
}

/// Reply to [`Request::Stat`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stat {
    /// Commands by name.
    pub commands: Vec<(String, u32)>,
    /// Returns by name.
    pub returns: Vec<(String, u32)>,
    /// All other counters.
    pub status: Status,
}

/// Reply to [`Request::Upgrade`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Upgraded {
    /// Crate version of the previous program.
    pub from: String,
    /// Crate version of the new program.
    pub to: String,
    /// Opens of all devices, which were taken over.
    pub processes: u32,
    /// How long no client was served, microseconds.
    pub pause_us: u64,
}

/// Status of the daemon.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// Crate version.
    pub version: String,
    /// [`PROTOCOL_VERSION`](crate::PROTOCOL_VERSION) of the daemon; 0 before it was introduced.
    #[serde(default)]
    pub protocol: u32,
    /// The daemon's process id.
    pub pid: u32,
    /// Mount point of the bus.
    pub mount: String,
    /// How receive buffers reach clients: `passthrough` or `notify-store`.
    pub mapping: String,
    /// Devices served.
    pub devices: u32,
    /// Opens of all devices.
    pub processes: u32,
    /// Transactions delivered since start.
    pub transactions: u64,
    /// Pages of receive buffers that hold memory, 4096 bytes each.
    pub touched_pages: u64,
    /// Of these, pages on which no buffer lies.
    pub idle_pages: u64,
    /// Pages reclaimed since start.
    pub reclaimed_pages: u64,
    /// Maximum of an owner's messages in buffers, bytes.
    pub owner_quota_bytes: u64,
    /// Messages of the owner that has most, bytes.
    pub largest_owner_bytes: u64,
    /// Threads of clients whose calls go over rings.
    #[serde(default)]
    pub rings: u32,
    /// One sentence per degradation: what is missing and its consequence.
    pub degraded: Vec<String>,
}

/// A call that has ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Call {
    /// Time of sending, microseconds since 1970.
    pub sent_us: u64,
    /// Name of the device.
    pub device: String,
    /// One-way: the caller does not wait for a reply.
    pub oneway: bool,
    /// The caller.
    pub from: CallEnd,
    /// The receiver; `None`: the call failed before the receiver was known.
    pub to: Option<CallEnd>,
    /// The caller's handle of the object.
    pub handle: u32,
    /// Number of the object in the daemon; 0: none.
    pub node: u32,
    /// Code of the method.
    pub code: u32,
    /// `TF_` flags.
    pub flags: u32,
    /// Size of the data, bytes.
    pub bytes: u64,
    /// Number of objects in the data.
    pub objects: u64,
    /// Size of the reply, bytes.
    pub reply_bytes: Option<u64>,
    /// From sending until a thread received it, nanoseconds.
    pub waited_ns: Option<u64>,
    /// From sending until it ended, nanoseconds.
    pub took_ns: u64,
    /// How it ended.
    pub outcome: Outcome,
    /// The negative errno with which it was refused; 0: none.
    pub errno: i32,
    /// Why files of the call or of its reply could not be given to their receiver; else empty.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub refusal: String,
}

/// One side of a call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CallEnd {
    /// Process id.
    pub pid: u32,
    /// Thread id; 0: no thread was assigned.
    pub tid: u32,
    /// Name of the process; empty if it could not be read.
    pub comm: String,
}

/// Outcome of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// Answered; a one-way call: received.
    Done,
    /// The receiver is dead: it has exited or closed the device.
    Dead,
    /// The receiver is frozen.
    Frozen,
    /// It failed.
    Failed,
    /// No thread received it: a one-way call to a process that has exited or one that was replaced
    /// by a newer call, or a call whose caller has exited.
    Dropped,
}

/// One device: a context of binder.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Device {
    /// File name in the mount.
    pub name: String,
    /// Pid of the context manager.
    pub manager: Option<u32>,
    /// Opens of the device.
    pub processes: Vec<Process>,
    /// A second open of one file of the device was refused with `EBUSY`: the file is bound by
    /// itself, instead of the folder.
    #[serde(default)]
    pub file_is_bound: bool,
}

/// One open of a device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Process {
    /// Pid of the opener.
    pub pid: u32,
    /// Effective uid of the opener.
    pub euid: Uid,
    /// The owner that it is charged to: a user, or a user namespace that root created.
    pub owner: String,
    /// Messages of this owner in all opens, bytes.
    pub owner_bytes: u64,
    /// Name of the opener, if it can be read.
    pub comm: Option<String>,
    /// Threads that have called.
    pub threads: Vec<Thread>,
    /// Objects that it publishes.
    pub nodes: Vec<Node>,
    /// Its handles of objects of other processes.
    pub handles: Vec<Handle>,
    /// Live buffers in its mapping.
    pub buffers: Buffers,
    /// Work queued for any of its threads.
    pub queued: u32,
}
