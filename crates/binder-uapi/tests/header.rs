//! Our numbers against the C headers of the distribution (`linux-libc-dev`).
//!
//! A generated C program prints the size of every structure, the offset of every field and the
//! value of every constant; all of them must equal ours. Expressions that the installed header is
//! too old for are listed on stderr and compared with numbers in this file.

use std::fmt::Write as _;
use std::fs;
use std::mem::{offset_of, size_of};
use std::path::Path;
use std::process::Command;

use binder_uapi::*;

const HEADERS: [&str; 2] =
    ["/usr/include/linux/android/binder.h", "/usr/include/linux/android/binderfs.h"];
const PREAMBLE: &str = "#include <stddef.h>\n#include <stdio.h>\n\
     #include <linux/android/binder.h>\n#include <linux/android/binderfs.h>\n";

/// One C expression and its expected value.
struct Fact {
    expression: String,
    ours: u64,
}

fn fact(expression: impl Into<String>, ours: impl Into<u64>) -> Fact {
    Fact { expression: expression.into(), ours: ours.into() }
}

macro_rules! constants {
    ($($module:ident: $($name:ident)*;)*) => { vec![$($(
        fact(stringify!($name), $module::$name as u64),
    )*)*] };
}

macro_rules! layout {
    ($facts:ident, $c:literal, $ours:ty { $($cfield:literal => $field:ident),* $(,)? }) => {
        $facts.push(fact(concat!("sizeof(struct ", $c, ")"), size_of::<$ours>() as u64));
        $($facts.push(fact(
            concat!("offsetof(struct ", $c, ", ", $cfield, ")"),
            offset_of!($ours, $field) as u64,
        ));)*
    };
}

fn constants() -> Vec<Fact> {
    use binder_uapi::{command, ioctl, returns};
    let mut facts = constants! {
        ioctl: BINDER_WRITE_READ BINDER_SET_IDLE_TIMEOUT BINDER_SET_MAX_THREADS
            BINDER_SET_IDLE_PRIORITY BINDER_SET_CONTEXT_MGR BINDER_THREAD_EXIT BINDER_VERSION
            BINDER_GET_NODE_DEBUG_INFO BINDER_GET_NODE_INFO_FOR_REF BINDER_SET_CONTEXT_MGR_EXT
            BINDER_FREEZE BINDER_GET_FROZEN_INFO BINDER_ENABLE_ONEWAY_SPAM_DETECTION
            BINDER_GET_EXTENDED_ERROR BINDER_CTL_ADD;
        command: BC_TRANSACTION BC_REPLY BC_ACQUIRE_RESULT BC_FREE_BUFFER BC_INCREFS BC_ACQUIRE
            BC_RELEASE BC_DECREFS BC_INCREFS_DONE BC_ACQUIRE_DONE BC_ATTEMPT_ACQUIRE
            BC_REGISTER_LOOPER BC_ENTER_LOOPER BC_EXIT_LOOPER BC_REQUEST_DEATH_NOTIFICATION
            BC_CLEAR_DEATH_NOTIFICATION BC_DEAD_BINDER_DONE BC_TRANSACTION_SG BC_REPLY_SG
            BC_REQUEST_FREEZE_NOTIFICATION BC_CLEAR_FREEZE_NOTIFICATION
            BC_FREEZE_NOTIFICATION_DONE;
        returns: BR_ERROR BR_OK BR_TRANSACTION_SEC_CTX BR_TRANSACTION BR_REPLY BR_ACQUIRE_RESULT
            BR_DEAD_REPLY BR_TRANSACTION_COMPLETE BR_INCREFS BR_ACQUIRE BR_RELEASE BR_DECREFS
            BR_ATTEMPT_ACQUIRE BR_NOOP BR_SPAWN_LOOPER BR_FINISHED BR_DEAD_BINDER
            BR_CLEAR_DEATH_NOTIFICATION_DONE BR_FAILED_REPLY BR_FROZEN_REPLY
            BR_ONEWAY_SPAM_SUSPECT BR_TRANSACTION_PENDING_FROZEN BR_FROZEN_BINDER
            BR_CLEAR_FREEZE_NOTIFICATION_DONE;
        binder_uapi: BINDER_TYPE_BINDER BINDER_TYPE_WEAK_BINDER BINDER_TYPE_HANDLE
            BINDER_TYPE_WEAK_HANDLE BINDER_TYPE_FD BINDER_TYPE_FDA BINDER_TYPE_PTR
            FLAT_BINDER_FLAG_PRIORITY_MASK FLAT_BINDER_FLAG_ACCEPTS_FDS
            FLAT_BINDER_FLAG_TXN_SECURITY_CTX TF_ONE_WAY TF_ROOT_OBJECT TF_STATUS_CODE
            TF_ACCEPT_FDS TF_CLEAR_BUF TF_UPDATE_TXN BINDER_BUFFER_FLAG_HAS_PARENT
            BINDERFS_MAX_NAME;
    };
    facts.push(fact("BINDER_CURRENT_PROTOCOL_VERSION", CURRENT_PROTOCOL_VERSION as u64));
    facts
}

fn layouts() -> Vec<Fact> {
    let mut f = Vec::new();
    layout!(f, "binder_object_header", BinderObjectHeader { "type" => ty });
    layout!(f, "flat_binder_object", FlatBinderObject {
        "hdr.type" => ty, "flags" => flags, "binder" => binder, "handle" => binder,
        "cookie" => cookie,
    });
    layout!(f, "binder_fd_object", BinderFdObject {
        "hdr.type" => ty, "pad_flags" => pad_flags, "fd" => fd, "cookie" => cookie,
    });
    layout!(f, "binder_buffer_object", BinderBufferObject {
        "hdr.type" => ty, "flags" => flags, "buffer" => buffer, "length" => length,
        "parent" => parent, "parent_offset" => parent_offset,
    });
    layout!(f, "binder_fd_array_object", BinderFdArrayObject {
        "hdr.type" => ty, "pad" => pad, "num_fds" => num_fds, "parent" => parent,
        "parent_offset" => parent_offset,
    });
    layout!(f, "binder_write_read", BinderWriteRead {
        "write_size" => write_size, "write_consumed" => write_consumed,
        "write_buffer" => write_buffer, "read_size" => read_size,
        "read_consumed" => read_consumed, "read_buffer" => read_buffer,
    });
    layout!(f, "binder_version", BinderVersion { "protocol_version" => protocol_version });
    layout!(f, "binder_node_debug_info", BinderNodeDebugInfo {
        "ptr" => ptr, "cookie" => cookie, "has_strong_ref" => has_strong_ref,
        "has_weak_ref" => has_weak_ref,
    });
    layout!(f, "binder_node_info_for_ref", BinderNodeInfoForRef {
        "handle" => handle, "strong_count" => strong_count, "weak_count" => weak_count,
        "reserved1" => reserved1, "reserved2" => reserved2, "reserved3" => reserved3,
    });
    layout!(f, "binder_freeze_info", BinderFreezeInfo {
        "pid" => pid, "enable" => enable, "timeout_ms" => timeout_ms,
    });
    layout!(f, "binder_frozen_status_info", BinderFrozenStatusInfo {
        "pid" => pid, "sync_recv" => sync_recv, "async_recv" => async_recv,
    });
    layout!(f, "binder_extended_error", BinderExtendedError {
        "id" => id, "command" => command, "param" => param,
    });
    layout!(f, "binder_transaction_data", BinderTransactionData {
        "target.ptr" => target, "target.handle" => target, "cookie" => cookie, "code" => code,
        "flags" => flags, "sender_pid" => sender_pid, "sender_euid" => sender_euid,
        "data_size" => data_size, "offsets_size" => offsets_size, "data.ptr.buffer" => buffer,
        "data.ptr.offsets" => offsets,
    });
    layout!(f, "binder_transaction_data_secctx", BinderTransactionDataSecctx {
        "transaction_data" => transaction_data, "secctx" => secctx,
    });
    layout!(f, "binder_transaction_data_sg", BinderTransactionDataSg {
        "transaction_data" => transaction_data, "buffers_size" => buffers_size,
    });
    layout!(f, "binder_ptr_cookie", BinderPtrCookie { "ptr" => ptr, "cookie" => cookie });
    layout!(f, "binder_handle_cookie", BinderHandleCookie {
        "handle" => handle, "cookie" => cookie,
    });
    layout!(f, "binder_pri_desc", BinderPriDesc { "priority" => priority, "desc" => desc });
    layout!(f, "binder_pri_ptr_cookie", BinderPriPtrCookie {
        "priority" => priority, "ptr" => ptr, "cookie" => cookie,
    });
    layout!(f, "binder_frozen_state_info", BinderFrozenStateInfo {
        "cookie" => cookie, "is_frozen" => is_frozen, "reserved" => reserved,
    });
    layout!(f, "binderfs_device", BinderfsDevice {
        "name" => name, "major" => major, "minor" => minor,
    });
    f
}

/// Values that an older header may lack, as numbers: direction, size, type and number combined by
/// hand with the encoding that the other constants verify.
const NEWER: [(&str, u64); 13] = [
    ("BR_TRANSACTION_PENDING_FROZEN", 0x0000_7214),
    ("BR_FROZEN_BINDER", 0x8010_7215),
    ("BR_CLEAR_FREEZE_NOTIFICATION_DONE", 0x8008_7216),
    ("BC_REQUEST_FREEZE_NOTIFICATION", 0x400c_6313),
    ("BC_CLEAR_FREEZE_NOTIFICATION", 0x400c_6314),
    ("BC_FREEZE_NOTIFICATION_DONE", 0x4008_6315),
    ("sizeof(struct binder_frozen_state_info)", 16),
    ("offsetof(struct binder_frozen_state_info, cookie)", 0),
    ("offsetof(struct binder_frozen_state_info, is_frozen)", 8),
    ("offsetof(struct binder_frozen_state_info, reserved)", 12),
    ("BINDER_GET_EXTENDED_ERROR", 0xc00c_6211),
    ("BR_ONEWAY_SPAM_SUSPECT", 0x0000_7213),
    ("BINDER_ENABLE_ONEWAY_SPAM_DETECTION", 0x4004_6210),
];

fn skip_reason() -> Option<String> {
    if let Some(missing) = HEADERS.iter().find(|header| !Path::new(header).exists()) {
        return Some(format!("{missing} is missing; install linux-libc-dev"));
    }
    match Command::new("cc").arg("--version").output() {
        Ok(output) if output.status.success() => None,
        _ => Some("no C compiler; install gcc or clang".to_owned()),
    }
}

/// Whether the installed header defines the expression.
fn compiles(folder: &Path, expression: &str) -> bool {
    let source = folder.join("probe.c");
    let text = format!(
        "{PREAMBLE}unsigned long long probe(void) {{\n    \
         return (unsigned long long)({expression});\n}}\n"
    );
    fs::write(&source, text).unwrap();
    Command::new("cc").arg("-fsyntax-only").arg(&source).output().unwrap().status.success()
}

/// The C compiler's value of each expression, in order.
fn values(folder: &Path, facts: &[&Fact]) -> Vec<u64> {
    let mut source = format!("{PREAMBLE}int main(void) {{\n");
    for fact in facts {
        // Enumerators with bit 31 set are negative in C; the wire has 32 bits.
        let e = &fact.expression;
        writeln!(source, "printf(\"%llu\\n\", (unsigned long long)(unsigned int)({e}));").unwrap();
    }
    source.push_str("return 0;\n}\n");
    let (file, program) = (folder.join("facts.c"), folder.join("facts"));
    fs::write(&file, source).unwrap();
    let built = Command::new("cc").arg("-o").arg(&program).arg(&file).output().unwrap();
    assert!(built.status.success(), "cc: {}", String::from_utf8_lossy(&built.stderr));
    let printed = Command::new(&program).output().unwrap();
    assert!(printed.status.success(), "{program:?} failed: {:?}", printed.status);
    let printed = String::from_utf8(printed.stdout).unwrap();
    printed.lines().map(|line| line.parse().unwrap()).collect()
}

#[test]
fn every_number_equals_the_distributions_header() {
    if let Some(reason) = skip_reason() {
        test_support::skip(reason);
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let facts: Vec<Fact> = constants().into_iter().chain(layouts()).collect();
    let (known, unknown): (Vec<&Fact>, Vec<&Fact>) =
        facts.iter().partition(|fact| compiles(folder.path(), &fact.expression));

    let theirs = values(folder.path(), &known);
    assert_eq!(theirs.len(), known.len());
    let wrong: Vec<String> = known
        .iter()
        .zip(theirs)
        .filter(|(fact, theirs)| fact.ours != *theirs)
        .map(|(fact, theirs)| {
            format!("{}: ours {:#x}, theirs {theirs:#x}", fact.expression, fact.ours)
        })
        .collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));

    for fact in &unknown {
        let expression = &fact.expression;
        eprintln!("not in this header: {expression}; checked against the value in our table");
        assert!(
            NEWER.iter().any(|(name, _)| name == expression),
            "{expression} is neither in the header nor in the table of newer items: misspelt?"
        );
    }
    assert!(known.len() > 100, "only {} of {} facts compile", known.len(), facts.len());
}

#[test]
fn newer_numbers_equal_the_table() {
    let facts: Vec<Fact> = constants().into_iter().chain(layouts()).collect();
    for (name, value) in NEWER {
        let fact = facts.iter().find(|fact| fact.expression == name);
        assert_eq!(fact.map(|fact| fact.ours), Some(value), "{name}");
    }
}

/// Names that the header defines for its own use or that do not concern the wire protocol.
const NOT_OURS: [&str; 1] = ["BINDER_IPC_32BIT"];

#[test]
fn nothing_in_the_header_is_missing_here() {
    if let Some(reason) = skip_reason() {
        test_support::skip(reason);
        return;
    }
    let ours: Vec<String> =
        constants().into_iter().chain(layouts()).map(|fact| fact.expression).collect();
    let prefixes = ["BC_", "BR_", "TF_", "BINDER_", "FLAT_BINDER_", "BINDERFS_"];
    let mut missing = Vec::new();
    for header in HEADERS {
        let text = fs::read_to_string(header).unwrap();
        for line in text.lines().map(str::trim_start) {
            let line = line.strip_prefix("#define").map_or(line, str::trim_start);
            let name: String =
                line.chars().take_while(|c| c.is_ascii_alphanumeric() || *c == '_').collect();
            let defines = prefixes.iter().any(|prefix| name.starts_with(prefix));
            if defines && !NOT_OURS.contains(&name.as_str()) && !ours.contains(&name) {
                missing.push(name);
            }
            if let Some(name) = line.strip_prefix("struct ").and_then(|l| l.strip_suffix(" {")) {
                let size = format!("sizeof(struct {name})");
                if !ours.contains(&size) {
                    missing.push(size);
                }
            }
        }
    }
    assert!(missing.is_empty(), "in the header, not here: {missing:?}");
}
