//! The seeds: one well-formed input of each kind, as the start of mutations.

use binder_uapi::*;
use zerocopy::IntoBytes;

use crate::host::INPUT;

fn encode(commands: &[Command]) -> Vec<u8> {
    let mut bytes = Vec::new();
    commands.iter().for_each(|command| command.write_to(&mut bytes));
    bytes
}

/// A step of the target `commands`.
fn step(what: u8, who: u8, commands: &[Command]) -> Vec<u8> {
    let bytes = encode(commands);
    [&[what, who, (bytes.len() / 4) as u8][..], &bytes].concat()
}

fn call(handle: u32, flags: u32, data_size: u64) -> Command {
    let data = BinderTransactionData {
        target: handle.into(),
        code: 1,
        flags,
        data_size,
        buffer: INPUT,
        ..Default::default()
    };
    Command::Transaction { data, buffers_size: None }
}

fn every_command() -> Vec<Command> {
    let node = BinderPtrCookie { ptr: 0x100, cookie: 0x200 };
    let notice = BinderHandleCookie { handle: 0, cookie: 5 };
    let data = BinderTransactionData::default();
    vec![
        Command::EnterLooper,
        Command::RegisterLooper,
        Command::ExitLooper,
        Command::IncRefs(0),
        Command::Acquire(0),
        Command::Release(0),
        Command::DecRefs(0),
        Command::IncRefsDone(node),
        Command::AcquireDone(node),
        Command::FreeBuffer(0x7000_0000_0000),
        Command::RequestDeathNotification(notice),
        Command::ClearDeathNotification(notice),
        Command::DeadBinderDone(5),
        Command::RequestFreezeNotification(notice),
        Command::ClearFreezeNotification(notice),
        Command::FreezeNotificationDone(5),
        call(0, 0, 8),
        call(0, TF_ONE_WAY, 8),
        Command::Reply { data, buffers_size: None },
        Command::Reply { data, buffers_size: Some(16) },
        Command::Transaction { data, buffers_size: Some(16) },
    ]
}

fn for_commands() -> Vec<(&'static str, Vec<u8>)> {
    let manager_reads = step(0, 0, &[Command::EnterLooper]);
    let answer = Command::Reply { data: BinderTransactionData::default(), buffers_size: None };
    let notice = BinderHandleCookie { handle: 0, cookie: 7 };
    let (request, clear) =
        (Command::RequestDeathNotification(notice), Command::ClearDeathNotification(notice));
    let freeze = Command::RequestFreezeNotification(notice);
    let roundtrip = [
        step(0, 1, &[call(0, 0, 16)]),
        manager_reads.clone(),
        step(0, 0, &[answer, Command::FreeBuffer(0x7000_0000_0000)]),
        step(0, 1, &[]),
    ];
    let oneways =
        [step(0, 1, &[call(0, 1, 8), call(0, 1, 8), call(0, 1, 8)]), manager_reads.clone()];
    let parked = [step(0x10, 0, &[Command::EnterLooper]), step(0x10, 1, &[call(0, 0, 8)])];
    let death = [step(0, 1, &[Command::Acquire(0), request]), vec![10, 0], step(0, 1, &[clear])];
    let frozen =
        [step(0, 1, &[Command::Acquire(0), freeze]), vec![0x8b, 8], step(0, 1, &[call(0, 1, 8)])];
    let leaving = [step(0, 1, &[call(0, 0, 8)]), manager_reads, vec![9, 0], step(0, 1, &[])];
    let all: Vec<u8> = every_command().iter().flat_map(|one| step(0, 1, &[*one])).collect();
    vec![
        ("roundtrip", roundtrip.concat()),
        ("oneways", oneways.concat()),
        ("parked", parked.concat()),
        ("death", death.concat()),
        ("frozen", frozen.concat()),
        ("leaving", leaving.concat()),
        ("every", all),
    ]
}

fn object(ty: u32, value: u64) -> Vec<u8> {
    FlatBinderObject { ty, flags: 0, binder: value, cookie: 9 }.as_bytes().to_vec()
}

/// A call for the target `objects`.
fn parcel(flags: u8, extra: u8, objects: &[Vec<u8>]) -> Vec<u8> {
    let mut input = vec![flags, objects.len() as u8, extra];
    let mut at = 0_u16;
    for object in objects {
        input.extend(at.to_le_bytes());
        at += object.len() as u16;
    }
    input.extend(objects.concat());
    input
}

fn for_objects() -> Vec<(&'static str, Vec<u8>)> {
    let buffer = |flags, parent, parent_offset| {
        let (buffer, length) = (INPUT, 16);
        BinderBufferObject { ty: BINDER_TYPE_PTR, flags, buffer, length, parent, parent_offset }
            .as_bytes()
            .to_vec()
    };
    let array = BinderFdArrayObject {
        ty: BINDER_TYPE_FDA,
        num_fds: 2,
        parent: 0,
        parent_offset: 0,
        ..Default::default()
    };
    vec![
        (
            "binder",
            parcel(0, 0, &[object(BINDER_TYPE_BINDER, 16), object(BINDER_TYPE_WEAK_BINDER, 32)]),
        ),
        (
            "handle",
            parcel(0, 0, &[object(BINDER_TYPE_HANDLE, 0), object(BINDER_TYPE_WEAK_HANDLE, 0)]),
        ),
        ("file", parcel(0, 0, &[object(BINDER_TYPE_FD, 3)])),
        ("oneway", parcel(1, 0, &[object(BINDER_TYPE_BINDER, 16)])),
        ("buffers", parcel(0, 8, &[buffer(0, 0, 0), buffer(BINDER_BUFFER_FLAG_HAS_PARENT, 0, 8)])),
        ("files", parcel(0, 8, &[buffer(0, 0, 0), array.as_bytes().to_vec()])),
    ]
}

fn for_device() -> Vec<(&'static str, Vec<u8>)> {
    let socket = |packets: &[&str]| {
        let packets: Vec<_> = packets.iter().map(|packet| packet.as_bytes()).collect();
        [&[1][..], &packets.join(&0xff_u8)].concat()
    };
    vec![
        ("names", b"\0\x00binder\0\x01new\0\x02binder\0other\0\x03other\0".to_vec()),
        ("status", socket(&[r#".{"request":"status"}"#])),
        (
            "pieces",
            socket(&[r#"+{"request":"#, r#"."ls"}"#, r#".{"request":"reclaim","pages":3}"#]),
        ),
        ("trace", socket(&[r#".{"request":"trace","from":7,"filter":{"code":1,"failed":true}}"#])),
        ("reply", socket(&[r#".{"reply":"reclaimed","pages":1,"idle_pages":2}"#])),
    ]
}

/// Requests of the opcodes that are served; the body is long enough for each.
fn for_requests() -> Vec<(&'static str, Vec<u8>)> {
    let request = |opcode: u32, body: &[u8]| {
        let len = 40 + body.len() as u32;
        let mut bytes = [len, opcode].map(u32::to_le_bytes).concat();
        // unique, node, uid, gid, pid, padding
        bytes.extend([7_u64, 1].map(u64::to_le_bytes).concat());
        bytes.extend([1000_u32, 1000, 42, 0].map(u32::to_le_bytes).concat());
        bytes.extend_from_slice(body);
        bytes
    };
    let body = [1_u8; 104];
    vec![
        ("lookup", request(1, b"binder\0")),
        ("forget", request(2, &body[..8])),
        ("getattr", request(3, &body[..16])),
        ("setattr", request(4, &body[..88])),
        ("unlink", request(10, b"binder\0")),
        ("rename", request(45, &[&body[..16], &b"binder\0other\0"[..]].concat())),
        ("open", request(14, &body[..8])),
        ("read", request(15, &body[..40])),
        ("release", request(18, &body[..24])),
        ("flush", request(25, &body[..24])),
        ("init", request(26, &body[..64])),
        ("interrupt", request(36, &body[..8])),
        ("ioctl", request(39, &body[..80])),
        ("poll", request(40, &body[..24])),
        ("batch-forget", request(42, &[&[1, 0, 0, 0, 0, 0, 0, 0][..], &body[..16]].concat())),
    ]
}

fn for_ring() -> Vec<(&'static str, Vec<u8>)> {
    let step = |what: u8, bytes: &[u8]| [&[what, bytes.len() as u8][..], bytes].concat();
    let call = [
        step(3, &[1]),
        step(1, b"commands of a call and its parcel"),
        step(4, &[0, 0, 16]),
        step(5, b"returns of a call"),
        step(6, &[]),
    ];
    let withdrawn = [step(3, &[2]), step(1, b"a call"), step(2, &[]), step(4, &[]), step(6, &[])];
    // The lengths of the parcel and its offsets, and the numbers of files, after the argument.
    let lengths = [7_u8, 9, 10].map(|word| step(0, &[1, word, 0, 255, 255, 255, 255]));
    let hostile = [
        step(3, &[1]),
        step(1, b"a call of a hostile client"),
        lengths.concat(),
        step(0, &[0, 0, 0, 1, 0, 0, 0, 1]),
        step(4, b"where"),
        step(5, &[2, 3, 4]),
        step(0, &[1, 7, 0, 255, 255, 255, 255]),
        step(6, &[]),
    ];
    vec![("call", call.concat()), ("withdrawn", withdrawn.concat()), ("hostile", hostile.concat())]
}

fn for_streams() -> Vec<(&'static str, Vec<u8>)> {
    let mut returns = Vec::new();
    for value in [Return::Noop, Return::DeadBinder(4), Return::Reply(Default::default())] {
        value.write_to(&mut returns);
    }
    vec![("commands", encode(&every_command())), ("returns", returns)]
}

/// Steps on sockets that accept files (`first` is even), and on those that refuse them.
fn for_sockets() -> Vec<(&'static str, Vec<u8>)> {
    use control::lease::{Request, VERSION};
    let step = |what: u8, packet: &[u8]| [&[what, packet.len() as u8][..], packet].concat();
    let serve = || step(6, &[]);
    let status = br#".{"request":"status"}"#;
    let hello = Request::Hello { version: VERSION, spent: 0, unspent: 0, base: 0 }.encode();
    let requests = [step(0, status), step(3, &hello), serve(), serve(), step(5, &[])].concat();
    let parts =
        [step(1, br#"+{"request":"#), serve(), step(1, br#"."status"}"#), serve(), step(7, &[])];
    // With one and three files, and with credentials.
    let files = [
        step(0x18, status),
        step(0x3b, &hello),
        step(3, &hello),
        serve(),
        serve(),
        step(5, &[]),
        step(5, &[]),
    ];
    let unread = [step(0x10, status), step(0x20, b"+"), step(0x13, &hello), step(0x87, &[])];
    let on = |first: u8, steps: Vec<u8>| [&[first][..], &steps].concat();
    vec![
        ("requests", on(0, requests)),
        ("parts", on(1, parts.concat())),
        ("files", on(0, files.concat())),
        ("files-refused", on(1, files.concat())),
        ("unread", on(0, unread.concat())),
    ]
}

/// The states in which the seeds of `commands` leave the driver.
fn for_state() -> Vec<(&'static str, Vec<u8>)> {
    let after = |(name, steps): (_, Vec<u8>)| (name, crate::driver::state_after(&steps));
    for_commands().into_iter().map(after).collect()
}

/// A state of a bus in use, which tests of the daemon read as well.
fn for_server_state() -> Vec<(&'static str, Vec<u8>)> {
    vec![("bus", include_bytes!("../../crates/headroom-binderd/tests/states/3").to_vec())]
}

/// The seeds of a target, by name.
pub fn of(target: &str) -> Vec<(&'static str, Vec<u8>)> {
    match target {
        "commands" => for_commands(),
        "objects" => for_objects(),
        "device" => for_device(),
        "requests" => for_requests(),
        "state" => for_state(),
        "server_state" => for_server_state(),
        "ring" => for_ring(),
        "sockets" => for_sockets(),
        "streams" => for_streams(),
        _ => Vec::new(),
    }
}
