//! The INIT negotiation, and the choice of the mapping.

use std::sync::Arc;

use rustix::event::{PollFd, PollFlags, Timespec};
use serde::{Deserialize, Serialize};

use crate::channel::{Channel, Incoming, RequestBuffer};
use crate::error::Error;
use crate::mapping::{CacheBypass, MappingChoice, MappingKind, Passthrough, machine_page_size};
use crate::wire::reply::ReplyBuffer;
use crate::wire::types::{
    INIT_DIRECT_IO_ALLOW_MMAP, INIT_EXT, INIT_PARALLEL_DIROPS, INIT_PASSTHROUGH, InitIn, InitOut,
    KERNEL_MINOR_VERSION, KERNEL_VERSION, OLDEST_MINOR_VERSION,
};
use crate::wire::{Operation, Request};

/// The kernel sends INIT by itself right after mount(2); if it is missing after this time, the
/// mount has failed.
const INIT_SECONDS: i64 = 10;

/// Result of the negotiation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Agreement {
    pub(crate) mapping: MappingKind,
    pub(crate) cache_bypass: CacheBypass,
}

/// Replies to INIT and decides how mappings are backed.
pub(super) fn start(
    channel: &Arc<Channel>,
    choice: MappingChoice,
    degraded: &mut Vec<String>,
) -> Result<Agreement, Error> {
    let mut buffer = RequestBuffer::new();
    let len = wait_for_init(channel, &mut buffer)?;
    let request = Request::parse(buffer.bytes(len)).map_err(|e| Error::Handshake(e.to_string()))?;
    let Operation::Init(init, flags2) = request.operation else {
        return Err(Error::Handshake(format!("expected INIT, got {:?}", request.operation)));
    };
    let wanted = match choice {
        MappingChoice::Only(kind) => kind,
        MappingChoice::Auto => MappingKind::Passthrough,
    };
    let (out, offered) = negotiate(&init, flags2, wanted)?;
    let notify_store = Agreement { mapping: MappingKind::NotifyStore, ..offered };
    channel
        .send(ReplyBuffer::default().body(request.header.unique, &out))
        .map_err(Error::io("cannot answer INIT"))?;
    let lacking = if offered.mapping == MappingKind::Passthrough {
        Passthrough::new(channel).err().map(|error| format!("a backing file is refused: {error}"))
    } else {
        Some("the kernel does not offer it (Linux 6.9 does)".to_owned())
    };
    match (choice, lacking) {
        (MappingChoice::Only(MappingKind::NotifyStore), _) => Ok(notify_store),
        (_, None) => Ok(offered),
        (MappingChoice::Only(MappingKind::Passthrough), Some(why)) => {
            Err(Error::NoPassthrough(why))
        }
        (MappingChoice::Auto, Some(why)) => {
            degraded.push(format!(
                "no FUSE passthrough ({why}): receive buffers go through the page cache by \
                 notify-store, one more copy each"
            ));
            Ok(notify_store)
        }
    }
}

fn wait_for_init(channel: &Channel, buffer: &mut RequestBuffer) -> Result<usize, Error> {
    let wait = Timespec { tv_sec: INIT_SECONDS, tv_nsec: 0 };
    let mut fds = [PollFd::new(channel, PollFlags::IN)];
    rustix::io::retry_on_intr(|| rustix::event::poll(&mut fds, Some(&wait)))
        .map_err(Error::io("cannot wait for INIT"))?;
    match channel.read(buffer).map_err(Error::io("cannot read INIT"))? {
        Incoming::Request(len) => Ok(len),
        Incoming::Nothing => Err(Error::Handshake(format!("no INIT within {INIT_SECONDS} s"))),
        Incoming::Closed => Err(Error::Handshake("unmounted before INIT".into())),
    }
}

/// The reply to INIT, and what the kernel supports: the `wanted` mapping or the lesser one.
fn negotiate(
    init: &InitIn,
    flags2: u32,
    wanted: MappingKind,
) -> Result<(InitOut, Agreement), Error> {
    if init.major != KERNEL_VERSION || init.minor < OLDEST_MINOR_VERSION {
        return Err(Error::TooOld { major: init.major, minor: init.minor });
    }
    let offered = u64::from(init.flags) | u64::from(flags2) << 32;
    let mut flags = INIT_PARALLEL_DIROPS | INIT_EXT | INIT_DIRECT_IO_ALLOW_MMAP;
    if wanted == MappingKind::Passthrough {
        flags |= INIT_PASSTHROUGH;
    }
    let agreed = offered & flags;
    let mapping = if agreed & INIT_PASSTHROUGH == 0 {
        MappingKind::NotifyStore
    } else {
        MappingKind::Passthrough
    };
    let cache_bypass = if agreed & INIT_DIRECT_IO_ALLOW_MMAP == 0 {
        CacheBypass::Never
    } else {
        CacheBypass::ReadAndWrite
    };
    let out = InitOut {
        major: KERNEL_VERSION,
        minor: KERNEL_MINOR_VERSION.min(init.minor),
        // Reading ahead would only lock more pages of a receive buffer for longer.
        max_readahead: 0,
        flags: agreed as u32,
        flags2: (agreed >> 32) as u32,
        max_background: 64,
        congestion_threshold: 48,
        // Writes are refused: a page that a client has modified must fit, so that its write-back
        // is.
        max_write: machine_page_size().bytes(),
        time_gran: 1,
        // The backing files are on tmpfs, which is not stacked on another filesystem.
        max_stack_depth: u32::from(mapping == MappingKind::Passthrough),
        ..InitOut::default()
    };
    Ok((out, Agreement { mapping, cache_bypass }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn init(minor: u32, flags: u64) -> (InitIn, u32) {
        let init =
            InitIn { major: 7, minor, max_readahead: 131_072, flags: (flags & 0xffff_ffff) as u32 };
        (init, (flags >> 32) as u32)
    }

    #[test]
    fn passthrough_is_agreed_on_where_it_is_offered_and_wanted() {
        let (new, flags2) = init(45, INIT_EXT | INIT_PASSTHROUGH | INIT_PARALLEL_DIROPS | 1);
        let (out, agreed) = negotiate(&new, flags2, MappingKind::Passthrough).unwrap();
        assert_eq!(agreed.mapping, MappingKind::Passthrough);
        assert_eq!((out.minor, out.max_stack_depth, out.flags2), (40, 1, 1 << 5));
        assert_eq!(u64::from(out.flags), INIT_EXT | INIT_PARALLEL_DIROPS, "nothing else");
        let (out, agreed) = negotiate(&new, flags2, MappingKind::NotifyStore).unwrap();
        assert_eq!(agreed.mapping, MappingKind::NotifyStore);
        assert_eq!((out.max_stack_depth, out.flags2), (0, 0));
    }

    #[test]
    fn an_older_kernel_gets_its_own_version_and_no_passthrough() {
        let (old, flags2) = init(31, INIT_PARALLEL_DIROPS);
        let (out, agreed) = negotiate(&old, flags2, MappingKind::Passthrough).unwrap();
        assert_eq!((out.minor, agreed.mapping), (31, MappingKind::NotifyStore));
    }

    #[test]
    fn reads_bypass_the_cache_only_where_shared_mappings_are_possible_all_the_same() {
        let offers = [
            (INIT_EXT, CacheBypass::Never),
            (INIT_EXT | INIT_DIRECT_IO_ALLOW_MMAP, CacheBypass::ReadAndWrite),
        ];
        for (flags, expected) in offers {
            let (init, flags2) = init(39, flags);
            let (_, agreed) = negotiate(&init, flags2, MappingKind::NotifyStore).unwrap();
            assert_eq!(agreed.cache_bypass, expected);
        }
    }

    #[test]
    fn an_outdated_kernel_is_named() {
        let (old, flags2) = init(30, 0);
        let error = negotiate(&old, flags2, MappingKind::Passthrough).unwrap_err();
        assert!(error.to_string().contains("7.30"), "{error}");
    }
}
