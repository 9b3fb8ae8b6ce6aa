//! The ioctls of a device, one by one.

use binder_uapi::ioctl::*;
use binder_uapi::*;

use super::*;

cases! {
    "ioctl.version", version, "the protocol version is told, to a mapped or unmapped open";
    "ioctl.version_null", version_null, "BINDER_VERSION with an argument that faults";
    "ioctl.max_threads", max_threads, "any number of threads may be set, at any time";
    "ioctl.idle", idle, "the idle ioctls were never implemented";
    "ioctl.unknown", unknown,
        "numbers that are no ioctl, or an ioctl with another size or direction";
    "ioctl.thread_exit", thread_exit,
        "a thread that said goodbye starts afresh with its next ioctl";
    "ioctl.thread_exit_null", thread_exit_null, "BINDER_THREAD_EXIT does not look at its argument";
    "ioctl.node_debug_info", node_debug_info, "nodes are told in the order of their pointers";
    "ioctl.node_debug_info_manager", node_debug_info_manager,
        "the manager's node is one of its nodes";
    "ioctl.node_info_for_ref", node_info_for_ref, "the manager may ask for the counts of a node";
    "ioctl.node_info_for_ref_refused", node_info_refused,
        "nobody else may, and reserved fields are 0";
    "ioctl.spam_detection", spam_detection, "one-way spam detection is turned on and off";
    "ioctl.extended_error", extended_error, "the last error of a thread is told once";
    "ioctl.extended_error_per_thread", extended_error_per_thread, "another thread has its own";
    "ioctl.extended_error_of_success", extended_error_of_success,
        "a call that went well leaves its id";
    "ioctl.faulting_arguments", faulting, "every ioctl with NULL and with an address that faults";
    "ioctl.read_write", read_write, "read, write, lseek and fsync on the device";
    "ioctl.other_process", other_process, "a process that was handed the open of another one";
}

fn version(s: &Stage) -> Outcome {
    let p = s.process()?;
    p.open(NONBLOCK)?;
    let (_, version) = p.ioctl("BINDER_VERSION", BINDER_VERSION, BinderVersion::default())?;
    p.log(format!("  version {}", version.protocol_version));
    p.map(MAP_LEN)?;
    let given = BinderVersion { protocol_version: 99 };
    let (_, version) = p.ioctl("BINDER_VERSION", BINDER_VERSION, given)?;
    p.log(format!("  version {}", version.protocol_version));
    p.close()
}

fn version_null(s: &Stage) -> Outcome {
    let p = client(s)?;
    p.ioctl_at("BINDER_VERSION", BINDER_VERSION, 0)?;
    p.ioctl_at("BINDER_VERSION", BINDER_VERSION, p.arena().guard())
}

fn max_threads(s: &Stage) -> Outcome {
    let p = client(s)?;
    for threads in [0, 1, 15, 0x7fff_ffff, u32::MAX, 0] {
        p.set_max_threads(threads)?;
    }
    p.ioctl_at("BINDER_SET_MAX_THREADS", BINDER_SET_MAX_THREADS, 0)
}

fn idle(s: &Stage) -> Outcome {
    let p = client(s)?;
    p.ioctl("BINDER_SET_IDLE_TIMEOUT", BINDER_SET_IDLE_TIMEOUT, 1000i64)?;
    p.ioctl("BINDER_SET_IDLE_PRIORITY", BINDER_SET_IDLE_PRIORITY, 1i32).map(drop)
}

fn unknown(s: &Stage) -> Outcome {
    let p = client(s)?;
    let numbers: [(&str, u32); 9] = [
        ("0", 0),
        ("_IO('b', 0)", 0x6200),
        ("_IO('b', 1)", 0x6201),
        ("_IOW('b', 2, int)", 0x4004_6202),
        ("_IOW('b', 4, int)", 0x4004_6204),
        ("_IOW('b', 200, int)", 0x4004_62c8),
        ("_IOR('b', 9, int)", 0x8004_6209),
        ("_IOWR('b', 9, 8 bytes)", 0xc008_6209),
        ("_IOWR('x', 9, int)", 0xc004_7809),
    ];
    for (name, number) in numbers {
        p.ioctl(name, number, [0u64; 8])?;
    }
    Ok(())
}

fn thread_exit(s: &Stage) -> Outcome {
    let p = client(s)?;
    p.read()?;
    p.write(&[Command::EnterLooper])?;
    p.thread_exit()?;
    s.note("its first read after that returns at once where a new thread's does");
    p.read()?;
    p.read()?;
    p.thread_exit()?;
    p.thread_exit()
}

fn thread_exit_null(s: &Stage) -> Outcome {
    let p = client(s)?;
    p.ioctl_at("BINDER_THREAD_EXIT", BINDER_THREAD_EXIT, 0)
}

fn node_debug_info(s: &Stage) -> Outcome {
    let (m, p) = pair(s)?;
    p.node_debug_info(0)?;
    introduce(s, &p, &m, BinderPtrCookie { ptr: 0x3000, cookie: 0x3001 })?;
    introduce(s, &p, &m, BinderPtrCookie { ptr: 0x1000, cookie: 0x1001 })?;
    introduce(s, &p, &m, BinderPtrCookie { ptr: 0x2000, cookie: 0x2001 })?;
    let mut after = 0;
    for _ in 0..4 {
        after = p.node_debug_info(after)?.ptr;
    }
    p.node_debug_info(0x2fff)?;
    p.node_debug_info(0x3000)?;
    p.node_debug_info(u64::MAX)?;
    Ok(())
}

fn node_debug_info_manager(s: &Stage) -> Outcome {
    let m = client(s)?;
    let object =
        FlatBinderObject { ty: BINDER_TYPE_BINDER, flags: 0x113, binder: 0x5000, cookie: 0x5001 };
    m.manage_as(object)?;
    m.node_debug_info(0)?;
    let p = client(s)?;
    p.write(&[Command::Acquire(0)])?;
    m.node_debug_info(0)?;
    m.drain()?;
    m.node_debug_info(0)?;
    m.node_debug_info(0x5000)?;
    Ok(())
}

fn node_info_for_ref(s: &Stage) -> Outcome {
    let (m, p) = pair(s)?;
    let handle = introduce(s, &p, &m, NODE)?;
    let query = BinderNodeInfoForRef { handle, ..Default::default() };
    m.node_info(query)?;
    m.write(&[Command::Acquire(handle), Command::IncRefs(handle)])?;
    m.node_info(query)?;
    m.write(&[Command::Release(handle), Command::Release(handle), Command::DecRefs(handle)])?;
    s.note("that was its last reference");
    m.node_info(query)
}

fn node_info_refused(s: &Stage) -> Outcome {
    let (m, p) = pair(s)?;
    let handle = introduce(s, &p, &m, NODE)?;
    let query = BinderNodeInfoForRef { handle, ..Default::default() };
    p.node_info(BinderNodeInfoForRef::default())?;
    m.node_info(BinderNodeInfoForRef { strong_count: 1, ..query })?;
    m.node_info(BinderNodeInfoForRef { weak_count: 1, ..query })?;
    m.node_info(BinderNodeInfoForRef { reserved1: 1, ..query })?;
    m.node_info(BinderNodeInfoForRef { reserved3: 1, ..query })?;
    m.node_info(BinderNodeInfoForRef { handle: UNKNOWN, ..query })?;
    m.node_info(BinderNodeInfoForRef { handle: 0, ..query })?;
    m.die()?;
    p.node_info(query)
}

fn spam_detection(s: &Stage) -> Outcome {
    let p = client(s)?;
    for on in [1u32, 0, 7] {
        let name = format!("BINDER_ENABLE_ONEWAY_SPAM_DETECTION {on}");
        p.ioctl(&name, BINDER_ENABLE_ONEWAY_SPAM_DETECTION, on)?;
    }
    Ok(())
}

fn extended_error(s: &Stage) -> Outcome {
    let p = client(s)?;
    p.extended_error()?;
    p.send(&Tx::to(UNKNOWN, 1))?;
    p.extended_error()?;
    p.extended_error()?;
    p.send(&Tx::to(0, 1))?;
    p.send(&Tx::to(UNKNOWN, 1))?;
    s.note("only the last one is kept");
    p.extended_error()
}

fn extended_error_per_thread(s: &Stage) -> Outcome {
    let p = client(s)?;
    let q = p.new_thread()?;
    p.send(&Tx::to(UNKNOWN, 1))?;
    q.extended_error()?;
    p.extended_error()
}

fn extended_error_of_success(s: &Stage) -> Outcome {
    let (m, p) = pair(s)?;
    p.send(&Tx::to(0, 1).one_way())?;
    p.extended_error()?;
    p.extended_error()?;
    p.send(&Tx::to(0, 1))?;
    p.extended_error()?;
    m.receive()?;
    m.extended_error()
}

fn faulting(s: &Stage) -> Outcome {
    let p = client(s)?;
    let ioctls = [
        ("BINDER_WRITE_READ", BINDER_WRITE_READ),
        ("BINDER_SET_MAX_THREADS", BINDER_SET_MAX_THREADS),
        ("BINDER_SET_CONTEXT_MGR_EXT", BINDER_SET_CONTEXT_MGR_EXT),
        ("BINDER_GET_NODE_DEBUG_INFO", BINDER_GET_NODE_DEBUG_INFO),
        ("BINDER_GET_NODE_INFO_FOR_REF", BINDER_GET_NODE_INFO_FOR_REF),
        ("BINDER_FREEZE", BINDER_FREEZE),
        ("BINDER_GET_FROZEN_INFO", BINDER_GET_FROZEN_INFO),
        ("BINDER_ENABLE_ONEWAY_SPAM_DETECTION", BINDER_ENABLE_ONEWAY_SPAM_DETECTION),
        ("BINDER_GET_EXTENDED_ERROR", BINDER_GET_EXTENDED_ERROR),
    ];
    for (name, request) in ioctls {
        p.ioctl_at(name, request, 0)?;
        p.ioctl_at(name, request, p.arena().guard())?;
    }
    Ok(())
}

fn read_write(s: &Stage) -> Outcome {
    let p = client(s)?;
    let fd = p.fd() as u64;
    let buffer = p.arena().place(&[0; 64]);
    let calls = [
        ("read", libc::SYS_read, [fd, buffer, 64, 0, 0, 0]),
        ("write", libc::SYS_write, [fd, buffer, 64, 0, 0, 0]),
        ("fsync", libc::SYS_fsync, [fd, 0, 0, 0, 0, 0]),
    ];
    for (name, number, arguments) in calls {
        let result = p.call(number, arguments)?;
        let result = if result < 0 {
            crate::describe::errno_name(-result as i32)
        } else {
            result.to_string()
        };
        p.log(format!("{name} = {result}"));
    }
    Ok(())
}

fn other_process(s: &Stage) -> Outcome {
    let m = manager(s)?;
    let p = client(s)?;
    let thief = s.process()?;
    let pidfd = thief.call(libc::SYS_pidfd_open, [p.pid().into(), 0, 0, 0, 0, 0])?;
    let fd = thief.call(libc::SYS_pidfd_getfd, [pidfd as u64, p.fd() as u64, 0, 0, 0, 0])?;
    if fd < 0 {
        return Err(Stop("cannot take the descriptor".to_owned()));
    }
    thief.adopt_fd(fd as i32);
    thief.log("takes the open of P2");
    thief.map(MAP_LEN)?;
    let (_, version) = thief.ioctl("BINDER_VERSION", BINDER_VERSION, BinderVersion::default())?;
    thief.log(format!("  version {}", version.protocol_version));
    thief.send(&Tx::to(0, 1).one_way().data(b"thief"))?;
    m.read()?;
    thief.send(&Tx::to(0, 1).data(b"thief"))?;
    m.read()?;
    Ok(())
}
