//! Text of commands, returns and errnos, with names for values that differ from run to run.

use binder_uapi::*;
use zerocopy::FromBytes;

use crate::names::Names;
use crate::process::Process;

/// Maximum bytes of data that are shown in full; longer data is shown by its hash.
const SHOWN: usize = 48;
/// Longer data is not read, bytes.
const READ_AT_MOST: u64 = 4 << 20;

/// Reads memory of the described process.
pub type Reader<'a> = &'a dyn Fn(u64, usize) -> Result<Vec<u8>, i32>;

/// Describes commands and returns of one process.
pub struct Describe<'a> {
    /// Names so far.
    pub names: &'a Names,
    /// The process of the commands and returns.
    pub process: &'a Process,
    /// Reads its memory.
    pub read: Reader<'a>,
}

/// Name of an errno.
pub fn errno_name(errno: i32) -> String {
    let name = match errno {
        libc::EPERM => "EPERM",
        libc::ENOENT => "ENOENT",
        libc::ESRCH => "ESRCH",
        libc::EINTR => "EINTR",
        libc::EIO => "EIO",
        libc::ENXIO => "ENXIO",
        libc::EBADF => "EBADF",
        libc::ECHILD => "ECHILD",
        libc::EAGAIN => "EAGAIN",
        libc::ENOMEM => "ENOMEM",
        libc::EACCES => "EACCES",
        libc::EFAULT => "EFAULT",
        libc::EBUSY => "EBUSY",
        libc::EEXIST => "EEXIST",
        libc::ENODEV => "ENODEV",
        libc::ENOTDIR => "ENOTDIR",
        libc::EINVAL => "EINVAL",
        libc::EMFILE => "EMFILE",
        libc::ENOTTY => "ENOTTY",
        libc::ENOSPC => "ENOSPC",
        libc::ESPIPE => "ESPIPE",
        libc::EPROTO => "EPROTO",
        libc::ECONNREFUSED => "ECONNREFUSED",
        libc::EOPNOTSUPP => "EOPNOTSUPP",
        libc::ENOSYS => "ENOSYS",
        libc::ETIMEDOUT => "ETIMEDOUT",
        libc::ENOTCONN => "ENOTCONN",
        libc::ECONNABORTED => "ECONNABORTED",
        libc::EOVERFLOW => "EOVERFLOW",
        _ => return format!("errno {errno}"),
    };
    name.to_owned()
}

fn flag_names(flags: u32) -> String {
    let known = [
        (TF_ONE_WAY, "ONE_WAY"),
        (TF_ROOT_OBJECT, "ROOT_OBJECT"),
        (TF_STATUS_CODE, "STATUS_CODE"),
        (TF_ACCEPT_FDS, "ACCEPT_FDS"),
        (TF_CLEAR_BUF, "CLEAR_BUF"),
        (TF_UPDATE_TXN, "UPDATE_TXN"),
    ];
    let mut names: Vec<String> =
        known.iter().filter(|(bit, _)| flags & bit != 0).map(|(_, n)| (*n).to_owned()).collect();
    let rest = known.iter().fold(flags, |rest, (bit, _)| rest & !bit);
    if rest != 0 {
        names.push(format!("{rest:#x}"));
    }
    if names.is_empty() { "-".to_owned() } else { names.join("|") }
}

/// Bytes in hexadecimal, or their length and hash (FNV-1a) when they are many.
fn bytes(data: &[u8]) -> String {
    if data.len() <= SHOWN {
        return data.iter().map(|byte| format!("{byte:02x}")).collect();
    }
    let hash = data
        .iter()
        .fold(0xcbf2_9ce4_8422_2325_u64, |h, b| (h ^ u64::from(*b)).wrapping_mul(0x100_0000_01b3));
    format!("#{hash:016x}")
}

/// Name of the `BR_` word in an extended error.
fn return_name(word: u32) -> String {
    use binder_uapi::returns::*;
    match word {
        BR_OK => "BR_OK".to_owned(),
        BR_FAILED_REPLY => "BR_FAILED_REPLY".to_owned(),
        BR_DEAD_REPLY => "BR_DEAD_REPLY".to_owned(),
        BR_FROZEN_REPLY => "BR_FROZEN_REPLY".to_owned(),
        BR_TRANSACTION_PENDING_FROZEN => "BR_TRANSACTION_PENDING_FROZEN".to_owned(),
        BR_ONEWAY_SPAM_SUSPECT => "BR_ONEWAY_SPAM_SUSPECT".to_owned(),
        word => format!("{word:#x}"),
    }
}

impl Describe<'_> {
    /// A stream of commands, one line each; bytes that do not parse in hexadecimal.
    pub fn commands(&self, stream: &[u8]) -> Vec<String> {
        let mut lines = Vec::new();
        let mut reader = CommandReader::new(stream);
        loop {
            let at = reader.consumed();
            match reader.next() {
                None => return lines,
                Some(Ok(command)) => lines.push(self.command(&command)),
                Some(Err(_)) => {
                    lines.push(format!("bytes {}", bytes(&stream[at..])));
                    return lines;
                }
            }
        }
    }

    fn command(&self, command: &Command) -> String {
        let notice = |name: &str, payload: &BinderHandleCookie| {
            let (handle, cookie) = (payload.handle, payload.cookie);
            format!("{name} handle={handle} cookie={cookie:#x}")
        };
        let node = |name: &str, node: &BinderPtrCookie| {
            format!("{name} ptr={:#x} cookie={:#x}", node.ptr, node.cookie)
        };
        match command {
            Command::Transaction { data, buffers_size } => {
                let target = match data.target >> 32 {
                    0 => format!("handle={}", data.handle()),
                    _ => format!("target={:#x}", data.target),
                };
                self.sent("BC_TRANSACTION", &target, data, *buffers_size)
            }
            Command::Reply { data, buffers_size } => self.sent("BC_REPLY", "", data, *buffers_size),
            Command::AcquireResult(result) => format!("BC_ACQUIRE_RESULT {result}"),
            Command::FreeBuffer(address) => {
                format!("BC_FREE_BUFFER {}", self.names.address(self.process, *address))
            }
            Command::IncRefs(handle) => format!("BC_INCREFS {handle}"),
            Command::Acquire(handle) => format!("BC_ACQUIRE {handle}"),
            Command::Release(handle) => format!("BC_RELEASE {handle}"),
            Command::DecRefs(handle) => format!("BC_DECREFS {handle}"),
            Command::IncRefsDone(n) => node("BC_INCREFS_DONE", n),
            Command::AcquireDone(n) => node("BC_ACQUIRE_DONE", n),
            Command::AttemptAcquire(p) => {
                format!("BC_ATTEMPT_ACQUIRE priority={} handle={}", p.priority, p.desc)
            }
            Command::RegisterLooper => "BC_REGISTER_LOOPER".to_owned(),
            Command::EnterLooper => "BC_ENTER_LOOPER".to_owned(),
            Command::ExitLooper => "BC_EXIT_LOOPER".to_owned(),
            Command::RequestDeathNotification(p) => notice("BC_REQUEST_DEATH_NOTIFICATION", p),
            Command::ClearDeathNotification(p) => notice("BC_CLEAR_DEATH_NOTIFICATION", p),
            Command::DeadBinderDone(cookie) => format!("BC_DEAD_BINDER_DONE cookie={cookie:#x}"),
            Command::RequestFreezeNotification(p) => notice("BC_REQUEST_FREEZE_NOTIFICATION", p),
            Command::ClearFreezeNotification(p) => notice("BC_CLEAR_FREEZE_NOTIFICATION", p),
            Command::FreezeNotificationDone(cookie) => {
                format!("BC_FREEZE_NOTIFICATION_DONE cookie={cookie:#x}")
            }
        }
    }

    fn sent(
        &self,
        name: &str,
        target: &str,
        data: &BinderTransactionData,
        buffers_size: Option<u64>,
    ) -> String {
        let mut line = name.to_owned();
        if let Some(size) = buffers_size {
            line += &format!("_SG buffers={size}");
        }
        if !target.is_empty() {
            line += &format!(" {target}");
        }
        if data.cookie != 0 {
            line += &format!(" cookie={:#x}", data.cookie);
        }
        line += &format!(" code={} flags={}", data.code, flag_names(data.flags));
        line + &self.payload(data)
    }

    /// One return.
    pub fn item(&self, item: &Return) -> String {
        let node = |name: &str, node: &BinderPtrCookie| {
            format!("{name} ptr={:#x} cookie={:#x}", node.ptr, node.cookie)
        };
        match item {
            Return::Error(errno) => format!("BR_ERROR {errno}"),
            Return::Ok => "BR_OK".to_owned(),
            Return::Transaction(data) => self.received("BR_TRANSACTION", data),
            Return::TransactionSecCtx(data) => {
                let base = data.transaction_data.buffer;
                let secctx = match (self.read)(data.secctx, 1) {
                    Ok(_) => self.names.inside(self.process, base, data.secctx),
                    Err(errno) => errno_name(errno),
                };
                let line = self.received("BR_TRANSACTION_SEC_CTX", &data.transaction_data);
                format!("{line} secctx={secctx}")
            }
            Return::Reply(data) => self.received("BR_REPLY", data),
            Return::DeadReply => "BR_DEAD_REPLY".to_owned(),
            Return::TransactionComplete => "BR_TRANSACTION_COMPLETE".to_owned(),
            Return::IncRefs(n) => node("BR_INCREFS", n),
            Return::Acquire(n) => node("BR_ACQUIRE", n),
            Return::Release(n) => node("BR_RELEASE", n),
            Return::DecRefs(n) => node("BR_DECREFS", n),
            Return::Noop => "BR_NOOP".to_owned(),
            Return::SpawnLooper => "BR_SPAWN_LOOPER".to_owned(),
            Return::DeadBinder(cookie) => format!("BR_DEAD_BINDER cookie={cookie:#x}"),
            Return::ClearDeathNotificationDone(cookie) => {
                format!("BR_CLEAR_DEATH_NOTIFICATION_DONE cookie={cookie:#x}")
            }
            Return::FailedReply => "BR_FAILED_REPLY".to_owned(),
            Return::FrozenReply => "BR_FROZEN_REPLY".to_owned(),
            Return::OnewaySpamSuspect => "BR_ONEWAY_SPAM_SUSPECT".to_owned(),
            Return::TransactionPendingFrozen => "BR_TRANSACTION_PENDING_FROZEN".to_owned(),
            Return::FrozenBinder(info) => format!(
                "BR_FROZEN_BINDER cookie={:#x} is_frozen={} reserved={}",
                info.cookie, info.is_frozen, info.reserved
            ),
            Return::ClearFreezeNotificationDone(cookie) => {
                format!("BR_CLEAR_FREEZE_NOTIFICATION_DONE cookie={cookie:#x}")
            }
        }
    }

    fn received(&self, name: &str, data: &BinderTransactionData) -> String {
        let mut line = format!(
            "{name} ptr={:#x} cookie={:#x} code={} flags={} from={} euid={} buffer={}",
            data.target,
            data.cookie,
            data.code,
            flag_names(data.flags),
            self.names.pid(data.sender_pid),
            data.sender_euid,
            self.names.buffer(self.process, data.buffer),
        );
        line += &self.payload(data);
        if data.offsets_size > 0 {
            let at = self.names.inside(self.process, data.buffer, data.offsets);
            line += &format!(" offsets at {at}");
        }
        line
    }

    /// Sizes, data and objects of a transaction, as the process reads them.
    fn payload(&self, data: &BinderTransactionData) -> String {
        let mut line = format!(" data={}", data.data_size);
        if data.offsets_size > 0 {
            line += &format!(" offsets={}", data.offsets_size);
        }
        if data.data_size > READ_AT_MOST || data.offsets_size > READ_AT_MOST {
            return line;
        }
        let read = |address, size: u64| match size {
            0 => Ok(Vec::new()),
            size => (self.read)(address, size as usize),
        };
        let contents = match read(data.buffer, data.data_size) {
            Ok(contents) => contents,
            Err(errno) => return format!("{line} (data unreadable: {})", errno_name(errno)),
        };
        let offsets = match read(data.offsets, data.offsets_size) {
            Ok(offsets) => offsets,
            Err(errno) => return format!("{line} (offsets unreadable: {})", errno_name(errno)),
        };
        line + &self.contents(contents, &offsets, data.buffer)
    }

    fn contents(&self, mut contents: Vec<u8>, offsets: &[u8], base: u64) -> String {
        let mut objects = String::new();
        for offset in offsets.chunks(8) {
            let Ok(offset) = <[u8; 8]>::try_from(offset) else {
                objects += &format!(" [{} odd bytes of offset]", offset.len());
                continue;
            };
            let offset = u64::from_ne_bytes(offset);
            let (text, len) = usize::try_from(offset)
                .ok()
                .and_then(|at| contents.get(at..))
                .map_or(("nothing".to_owned(), 0), |rest| self.object(rest, base));
            objects += &format!(" [@{offset} {text}]");
            // Blanked, since descriptors and addresses in them differ from run to run.
            if len > 0 {
                contents[offset as usize..offset as usize + len].fill(0xee);
            }
        }
        let plain = if contents.iter().all(|byte| *byte == 0xee) && !contents.is_empty() {
            String::new()
        } else {
            format!(":{}", bytes(&contents))
        };
        plain + &objects
    }

    /// Text of an object, and its length if it is one.
    fn object(&self, rest: &[u8], base: u64) -> (String, usize) {
        fn at<T: FromBytes>(rest: &[u8]) -> Option<T> {
            T::read_from_prefix(rest).ok().map(|(value, _)| value)
        }
        let pointer = |object: &FlatBinderObject| format!("ptr={:#x}", object.binder);
        let handle = |object: &FlatBinderObject| format!("handle={}", object.binder);
        let ty = at::<u32>(rest).unwrap_or(0);
        let flat = |name: &str, target: fn(&FlatBinderObject) -> String| {
            let object: FlatBinderObject = at(rest)?;
            let who = target(&object);
            let text =
                format!("{name} {who} cookie={:#x} flags={:#x}", object.cookie, object.flags);
            Some((text, 24))
        };
        let described = match ty {
            BINDER_TYPE_BINDER => flat("BINDER", pointer),
            BINDER_TYPE_WEAK_BINDER => flat("WEAK_BINDER", pointer),
            BINDER_TYPE_HANDLE => flat("HANDLE", handle),
            BINDER_TYPE_WEAK_HANDLE => flat("WEAK_HANDLE", handle),
            BINDER_TYPE_FD => at(rest).map(|object: BinderFdObject| {
                (format!("FD fd={} cookie={:#x}", object.fd as u32, object.cookie), 24)
            }),
            BINDER_TYPE_PTR => at(rest).map(|object: BinderBufferObject| {
                let address = self.names.inside(self.process, base, object.buffer);
                let parent = match object.flags & BINDER_BUFFER_FLAG_HAS_PARENT {
                    0 => String::new(),
                    _ => format!(" parent={}+{}", object.parent, object.parent_offset),
                };
                let seen = match (self.read)(object.buffer, object.length.min(8) as usize) {
                    Ok(_) if !parent.is_empty() || object.length > 64 => String::new(),
                    Ok(_) if object.length == 0 => String::new(),
                    Ok(_) => (self.read)(object.buffer, object.length as usize)
                        .map(|data| format!(":{}", self.bytes_with_pointers(&data, base)))
                        .unwrap_or_default(),
                    Err(errno) => format!(" (unreadable: {})", errno_name(errno)),
                };
                let length = object.length;
                (
                    format!(
                        "PTR flags={:#x} at {address} length={length}{parent}{seen}",
                        object.flags
                    ),
                    40,
                )
            }),
            BINDER_TYPE_FDA => at(rest).map(|object: BinderFdArrayObject| {
                let (fds, parent, offset) = (object.num_fds, object.parent, object.parent_offset);
                (format!("FDA num_fds={fds} parent={parent}+{offset}"), 32)
            }),
            _ => None,
        };
        described.unwrap_or_else(|| (format!("no object ({ty:#x})"), 0))
    }

    /// Bytes in hexadecimal; pointers into the mapping are shown relative to the buffer.
    fn bytes_with_pointers(&self, data: &[u8], base: u64) -> String {
        let mut text = String::new();
        let mut at = 0;
        while at < data.len() {
            let word = data.get(at..at + 8).and_then(|word| word.try_into().ok());
            match word.map(u64::from_ne_bytes) {
                Some(word) if at % 4 == 0 && self.names.is_mapped(self.process, word) => {
                    text += &format!("<{}>", self.names.inside(self.process, base, word));
                    at += 8;
                }
                _ => {
                    text += &format!("{:02x}", data[at]);
                    at += 1;
                }
            }
        }
        text
    }

    /// An extended error.
    pub fn extended_error(&self, error: &BinderExtendedError) -> String {
        let id = self.names.debug_id(error.id);
        let param = match error.param {
            0 => "0".to_owned(),
            negative if negative < 0 => format!("-{}", errno_name(-negative)),
            positive => positive.to_string(),
        };
        format!("id={id} command={} param={param}", return_name(error.command))
    }
}
