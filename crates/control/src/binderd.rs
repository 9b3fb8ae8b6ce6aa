//! What is said to `headroom-binderd`.

use owners::Uid;
use serde::{Deserialize, Serialize};

/// A request. Anybody may ask for [`Status`](Request::Status); the rest is root's.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "request", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Request {
    /// Is it up, and how does it work here?
    Status,
    /// Everything that is open.
    Ls,
    /// Give idle buffers' memory back, the coldest first. One request gives back a batch; whoever
    /// wants more asks again, so that calls are served in between.
    Reclaim {
        /// Pages of 4096 bytes, at most.
        pages: u64,
    },
    /// Calls that have ended since the last request. The daemon traces while somebody asks for it,
    /// and for some seconds longer; whoever wants to see everything asks a few times a second.
    Trace {
        /// Where the last reply said to read on; `None`: from now on.
        from: Option<u64>,
        /// What is wanted.
        filter: TraceFilter,
    },
    /// Commands and returns since the start, by kind.
    Stat,
}

/// Which calls of a trace are wanted: all, if it says nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TraceFilter {
    /// Of this device.
    pub device: Option<String>,
    /// From or to this process.
    pub pid: Option<u32>,
    /// From or to a process of this name.
    pub comm: Option<String>,
    /// With this code.
    pub code: Option<u32>,
    /// Only those that were not answered, or not taken.
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
    Reclaimed {
        /// Pages given back.
        pages: u64,
        /// Idle pages that are left.
        idle_pages: u64,
    },
    /// To [`Request::Trace`].
    Trace {
        /// Calls in the order of their ends.
        calls: Vec<Call>,
        /// From where to read on.
        next: u64,
        /// Calls that ended and were overwritten before the reader came.
        lost: u64,
    },
    /// To [`Request::Stat`].
    Stat {
        /// Commands by name.
        commands: Vec<(String, u32)>,
        /// Returns by name.
        returns: Vec<(String, u32)>,
        /// The rest.
        status: Status,
    },
    /// The request was refused or failed.
    Error {
        /// For a person.
        message: String,
    },
}

/// The daemon in a few numbers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// Crate version.
    pub version: String,
    /// The daemon's process id.
    pub pid: u32,
    /// Where the bus is mounted.
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
    /// Pages given back since start.
    pub reclaimed_pages: u64,
    /// Bytes of messages that one owner may have.
    pub owner_quota_bytes: u64,
    /// Bytes of messages of the owner that has most.
    pub largest_owner_bytes: u64,
    /// What does not work here and what is lost by it, a sentence each.
    pub degraded: Vec<String>,
}

/// A call that has ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Call {
    /// When it was sent, microseconds since 1970.
    pub sent_us: u64,
    /// The device.
    pub device: String,
    /// Nobody waited for an answer.
    pub oneway: bool,
    /// Who called.
    pub from: CallEnd,
    /// Who was called; `None`: it did not come so far.
    pub to: Option<CallEnd>,
    /// The caller's name for the object.
    pub handle: u32,
    /// Number of the object in the daemon; 0: none.
    pub node: u32,
    /// What was asked for.
    pub code: u32,
    /// `TF_` flags.
    pub flags: u32,
    /// Bytes of data.
    pub bytes: u64,
    /// Objects in it.
    pub objects: u64,
    /// Bytes of the answer.
    pub reply_bytes: Option<u64>,
    /// From sending until a thread took it, nanoseconds.
    pub waited_ns: Option<u64>,
    /// From sending until its end, nanoseconds.
    pub took_ns: u64,
    /// How it ended.
    pub outcome: Outcome,
    /// The negative errno that refused it; 0: none.
    pub errno: i32,
}

/// An end of a call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CallEnd {
    /// Process.
    pub pid: u32,
    /// Thread; 0 if it never had one.
    pub tid: u32,
    /// Name of the process; empty if it could not be read.
    pub comm: String,
}

/// How a call ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// Answered; a one-way call: taken.
    Done,
    /// Its receiver is dead.
    Dead,
    /// Its receiver is frozen.
    Frozen,
    /// It failed.
    Failed,
    /// Nobody took it.
    Dropped,
}

/// One device: a context.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Device {
    /// File name in the mount.
    pub name: String,
    /// Pid of the context manager.
    pub manager: Option<u32>,
    /// Opens of the device.
    pub processes: Vec<Process>,
}

/// One open of a device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Process {
    /// Who opened it.
    pub pid: u32,
    /// Effective uid of the opener.
    pub euid: Uid,
    /// The party that it is charged to: a user, or a user namespace that root created.
    pub owner: String,
    /// Bytes of all messages of this owner.
    pub owner_bytes: u64,
    /// Name of the opener, where it can be read.
    pub comm: Option<String>,
    /// Threads that have called.
    pub threads: Vec<Thread>,
    /// Objects that it owns.
    pub nodes: Vec<Node>,
    /// Its names for the objects of others.
    pub handles: Vec<Handle>,
    /// Live buffers in its mapping.
    pub buffers: Buffers,
    /// Work queued for any of its threads.
    pub queued: u32,
}

/// A thread of an open.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Thread {
    /// Thread id.
    pub tid: u32,
    /// Looper state in words.
    pub looper: String,
    /// Blocked in a read.
    pub waiting: bool,
    /// Depth of its transaction stack.
    pub stack: u32,
}

/// An object.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Node {
    /// The owner's pointer.
    pub ptr: u64,
    /// The owner's cookie.
    pub cookie: u64,
    /// Strong references from outside.
    pub strong: u32,
    /// Weak references from outside.
    pub weak: u32,
    /// Handles that name it.
    pub handles: u32,
}

/// A handle.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Handle {
    /// The number.
    pub handle: u32,
    /// Strong references by this process.
    pub strong: u32,
    /// Weak references by this process.
    pub weak: u32,
    /// Pid of the node's owner; `None` when the node is dead.
    pub owner: Option<u32>,
    /// A death notification is registered.
    pub death: bool,
}

/// The state of a mapping.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Buffers {
    /// Bytes of the mapping; 0 until it is known.
    pub mapped_bytes: u64,
    /// Live buffers.
    pub count: u32,
    /// Bytes in live buffers.
    pub bytes: u64,
    /// Bytes of one-way space left.
    pub async_free_bytes: u64,
    /// Pages that hold memory, 4096 bytes each.
    pub touched_pages: u32,
    /// Of these, pages on which no buffer lies.
    pub idle_pages: u32,
}
