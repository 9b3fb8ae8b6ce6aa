//! Messages on the lease socket, and the layout of the page that daemon and client share.
//!
//! A client keeps one `SOCK_SEQPACKET` connection until it exits; one packet is one [`Request`] or
//! one [`Reply`], of fixed size, numbers in the machine's byte order (both ends are on one
//! machine). Nothing here allocates: a client sends requests from inside its allocator. The first
//! reply carries a file descriptor, a sealed memfd of [`page::BYTES`] bytes that both sides map.
//!
//! The page holds the client's *balance*: bytes that it may allocate from the system without a
//! request. The daemon adds its grants and may take unused balance back; the client subtracts its
//! allocations. No message carries an identity: the kernel reports the sender, and the lease
//! belongs to the process.

/// Default lease socket.
pub const LEASE_SOCKET: &str = "/run/headroom/lease.sock";
/// Name of the lease socket in the folder of the control socket.
pub const LEASE_SOCKET_NAME: &str = "lease.sock";
/// Version of messages and page; a client of another one is refused.
pub const VERSION: u64 = 1;
/// Balance and grant of a process without a limit, bytes: more than it can ever use.
pub const UNLIMITED_BYTES: u64 = 1 << 60;

/// The page that daemon and client share: byte offsets of its words.
pub mod page {
    /// Length, bytes.
    pub const BYTES: usize = 4096;
    /// `u64`: balance, bytes. Changed by both sides with compare-and-swap.
    pub const BALANCE: usize = 0;
    /// `u32`: not 0 if the user has a limit. Written by the daemon.
    pub const LIMITED: usize = 64;
    /// `u32`: not 0 if the daemon requests memory that the client's allocator keeps unused. Set by
    /// the daemon, cleared by the client.
    pub const RECALL: usize = 68;
}

/// Length of a request, bytes.
pub const REQUEST_BYTES: usize = 40;
/// Length of a reply, bytes.
pub const REPLY_BYTES: usize = 32;

/// A request of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// The first packet of a connection.
    Hello {
        /// [`VERSION`].
        version: u64,
        /// Bytes that it has allocated from the system under earlier grants.
        spent: u64,
        /// Unused bytes of an earlier grant.
        unspent: u64,
        /// [`Reply::base`] of an earlier connection of the same process; 0: there was none.
        base: u64,
    },
    /// Requests more balance.
    Grow {
        /// Minimum, bytes.
        need: u64,
        /// Preferred amount, for fewer requests, bytes.
        wish: u64,
        /// Maximum delay of the reply while `need` is not available, milliseconds.
        wait_ms: u32,
    },
    /// Queries how much could be granted now.
    Headroom,
    /// The client has returned memory to the balance: the daemon checks it for requests that wait.
    GivenBack,
}

/// Result of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Status {
    /// Done.
    Done = 0,
    /// It exceeds the user's limit.
    Full = 1,
    /// It did not become possible within the given time.
    TimedOut = 5,
    /// The user, or the daemon, has the maximum number of clients.
    TooManyClients = 6,
    /// The client's process could not be identified, or belongs to another user.
    NotYou = 7,
    /// The request is invalid here, or of another version.
    BadRequest = 8,
    /// It fits within the limit, but the system is short of memory.
    Short = 9,
}

impl Status {
    /// The status with this number.
    pub fn from_number(number: u32) -> Option<Self> {
        const ALL: [Status; 7] = [
            Status::Done,
            Status::Full,
            Status::TimedOut,
            Status::TooManyClients,
            Status::NotYou,
            Status::BadRequest,
            Status::Short,
        ];
        ALL.into_iter().find(|status| *status as u32 == number)
    }

    /// The status in words.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::Full => "it does not fit below the user's limit",
            Self::TimedOut => "it did not become free in time",
            Self::TooManyClients => "the user has too many clients",
            Self::NotYou => "the daemon cannot find the user of this process",
            Self::BadRequest => "the daemon does not understand (another version?)",
            Self::Short => "the machine itself is short of memory",
        }
    }
}

/// The reply to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reply {
    /// Result of the request.
    pub status: Status,
    /// The user has a limit.
    pub limited: bool,
    /// Bytes added to the balance by this request.
    pub granted: u64,
    /// Bytes that could be granted now; for [`Request::Headroom`] only.
    pub headroom: u64,
    /// To be sent in the next [`Request::Hello`], after a restart of the daemon: memory that the
    /// process had besides its grants, bytes, plus 1.
    pub base: u64,
}

impl Reply {
    /// A reply with this status, and 0 in all other fields.
    pub fn of(status: Status) -> Self {
        Self { status, limited: false, granted: 0, headroom: 0, base: 0 }
    }
}

fn put<const N: usize>(words: [u64; 4], kind: u32, extra: u32) -> [u8; N] {
    let mut packet = [0; N];
    packet[..4].copy_from_slice(&kind.to_ne_bytes());
    packet[4..8].copy_from_slice(&extra.to_ne_bytes());
    for (to, word) in packet[8..].chunks_exact_mut(8).zip(words) {
        to.copy_from_slice(&word.to_ne_bytes());
    }
    packet
}

fn u32_at(packet: &[u8], at: usize) -> u32 {
    packet.get(at..at + 4).and_then(|b| b.try_into().ok()).map_or(0, u32::from_ne_bytes)
}

fn u64_at(packet: &[u8], at: usize) -> u64 {
    packet.get(at..at + 8).and_then(|b| b.try_into().ok()).map_or(0, u64::from_ne_bytes)
}

impl Request {
    /// Encodes it as a packet.
    pub fn encode(&self) -> [u8; REQUEST_BYTES] {
        match *self {
            Self::Hello { version, spent, unspent, base } => {
                put([version, spent, unspent, base], 1, 0)
            }
            Self::Grow { need, wish, wait_ms } => put([need, wish, 0, 0], 2, wait_ms),
            Self::Headroom => put([0; 4], 4, 0),
            Self::GivenBack => put([0; 4], 5, 0),
        }
    }

    /// Decodes a packet; `None`: it is invalid.
    pub fn decode(packet: &[u8]) -> Option<Self> {
        if packet.len() != REQUEST_BYTES {
            return None;
        }
        let word = |n: usize| u64_at(packet, 8 + 8 * n);
        Some(match u32_at(packet, 0) {
            1 => Self::Hello { version: word(0), spent: word(1), unspent: word(2), base: word(3) },
            2 => Self::Grow { need: word(0), wish: word(1), wait_ms: u32_at(packet, 4) },
            4 => Self::Headroom,
            5 => Self::GivenBack,
            _ => return None,
        })
    }
}

impl Reply {
    /// Encodes it as a packet.
    pub fn encode(&self) -> [u8; REPLY_BYTES] {
        let words = [self.granted, self.headroom, self.base, 0];
        put(words, self.status as u32, self.limited.into())
    }

    /// Decodes a packet; `None`: it is invalid.
    pub fn decode(packet: &[u8]) -> Option<Self> {
        if packet.len() != REPLY_BYTES {
            return None;
        }
        Some(Self {
            status: Status::from_number(u32_at(packet, 0))?,
            limited: u32_at(packet, 4) != 0,
            granted: u64_at(packet, 8),
            headroom: u64_at(packet, 16),
            base: u64_at(packet, 24),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_read_as_they_were_sent() {
        let requests = [
            Request::Hello { version: VERSION, spent: 1, unspent: u64::MAX, base: 3 },
            Request::Grow { need: 4096, wish: 1 << 20, wait_ms: 77 },
            Request::Headroom,
            Request::GivenBack,
        ];
        for request in requests {
            assert_eq!(Request::decode(&request.encode()), Some(request));
        }
        let reply =
            Reply { status: Status::Short, limited: true, granted: 1, headroom: 2, base: 3 };
        assert_eq!(Reply::decode(&reply.encode()), Some(reply));
    }

    #[test]
    fn garbage_is_no_message() {
        assert_eq!(Request::decode(&[]), None);
        assert_eq!(Request::decode(&[9; REQUEST_BYTES]), None);
        assert_eq!(Request::decode(&[0; REQUEST_BYTES]), None);
        assert_eq!(Request::decode(&[1; REQUEST_BYTES - 1]), None);
        assert_eq!(Reply::decode(&[0xff; REPLY_BYTES]), None);
        assert_eq!(Reply::decode(&[0; REPLY_BYTES + 1]), None);
    }
}
