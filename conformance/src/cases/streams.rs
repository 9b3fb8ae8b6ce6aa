//! The command stream: which commands are consumed, and which errors stop it.

use binder_uapi::command::*;
use binder_uapi::*;
use zerocopy::IntoBytes;

use super::*;
use crate::peer::encode;

cases! {
    "stream.empty", empty, "nothing to write and nothing to read is fine";
    "stream.unknown_command", unknown_command, "an unknown word stops the stream where it stands";
    "stream.truncated", truncated, "a command that is cut short, at every length";
    "stream.truncated_inside_memory", truncated_inside,
        "the payload lies behind write_size, in good memory";
    "stream.size_larger_than_memory", larger_than_memory,
        "write_size reaches into memory that faults";
    "stream.faulting_write_buffer", faulting_write, "nothing can be read at write_buffer";
    "stream.faulting_read_buffer", faulting_read,
        "nothing can be written at read_buffer, with and without work";
    "stream.faulting_transaction_read", faulting_transaction,
        "a transaction meets a read buffer that faults halfway";
    "stream.consumed_before", consumed_before, "write_consumed says where to start";
    "stream.consumed_beyond", consumed_beyond, "write_consumed and read_consumed beyond the sizes";
    "stream.read_consumed_before", read_consumed_before,
        "returns go behind what read_consumed counts";
    "stream.small_reads", small_reads, "reads with little room and nothing there";
    "stream.small_transaction_reads", small_transaction_reads,
        "a transaction waits until there is room for it";
    "stream.many_commands", many_commands, "several commands in one go";
    "stream.stops_at_failure", stops_at_failure,
        "after a failed call the rest is not taken until it is read";
    "stream.goes_on_after_bad_reference", goes_on, "commands on unknown things are passed over";
    "stream.not_implemented", not_implemented, "BC_ATTEMPT_ACQUIRE and BC_ACQUIRE_RESULT";
    "stream.returns_as_commands", returns_as_commands, "BR_ words in the other direction";
    "stream.garbage", garbage, "sixteen streams of noise";
    "stream.failed_write_skips_read", failed_write_skips_read,
        "what fails in writing is not read after";
    "stream.huge_sizes", huge_sizes, "sizes that wrap around";
}

fn bwr(p: &Peer, stream: &[u8]) -> BinderWriteRead {
    BinderWriteRead {
        write_size: stream.len() as u64,
        write_buffer: p.arena().place(stream),
        ..Default::default()
    }
}

fn run(p: &Peer, what: &str, bwr: BinderWriteRead) -> Outcome {
    p.log(format!("> {what}"));
    p.start_bwr(bwr)?;
    p.finish().map(drop)
}

fn empty(s: &Stage) -> Outcome {
    let p = client(s)?;
    run(&p, "all zeros", BinderWriteRead::default())?;
    let bad = p.arena().guard();
    let nowhere = BinderWriteRead { write_buffer: bad, read_buffer: bad, ..Default::default() };
    run(&p, "no sizes, buffers that fault", nowhere)
}

fn unknown_command(s: &Stage) -> Outcome {
    let p = client(s)?;
    for word in [0u32, 0x6300, 0x4004_6305 + 0x100, 0x630b + 0x10, u32::MAX] {
        p.write_bytes(word.as_bytes())?;
    }
    let mut stream = encode(&[Command::EnterLooper]);
    stream.extend_from_slice(&0x1234_5678u32.to_ne_bytes());
    stream.extend_from_slice(&encode(&[Command::ExitLooper]));
    p.write_bytes(&stream)?;
    Ok(())
}

fn truncated(s: &Stage) -> Outcome {
    let p = client(s)?;
    for len in 1..4 {
        p.write_bytes(&BC_ENTER_LOOPER.as_bytes()[..len])?;
    }
    for word in [BC_FREE_BUFFER, BC_ACQUIRE, BC_TRANSACTION, BC_REQUEST_DEATH_NOTIFICATION] {
        p.write_bytes(word.as_bytes())?;
    }
    Ok(())
}

fn truncated_inside(s: &Stage) -> Outcome {
    let (m, p) = pair(s)?;
    let stream = encode(&[Tx::to(0, 1).one_way().transaction(p.arena())]);
    for size in [4u64, 8, 67] {
        let whole = bwr(&p, &stream);
        let cut = BinderWriteRead { write_size: size, ..whole };
        run(&p, &format!("a BC_TRANSACTION of which {size} bytes are counted"), cut)?;
        p.read()?;
        m.drain()?;
    }
    Ok(())
}

fn larger_than_memory(s: &Stage) -> Outcome {
    let p = client(s)?;
    let stream = encode(&[Command::EnterLooper]);
    let at = p.arena().place_before_guard(&stream);
    let long = BinderWriteRead { write_size: 64, write_buffer: at, ..Default::default() };
    run(&p, "BC_ENTER_LOOPER, then memory that faults", long)?;
    let word = BC_FREE_BUFFER;
    let at = p.arena().place_before_guard(word.as_bytes());
    let long = BinderWriteRead { write_size: 12, write_buffer: at, ..Default::default() };
    run(&p, "BC_FREE_BUFFER, then memory that faults", long)
}

fn faulting_write(s: &Stage) -> Outcome {
    let p = client(s)?;
    let bad = p.arena().guard();
    run(
        &p,
        "4 bytes at unmapped",
        BinderWriteRead { write_size: 4, write_buffer: bad, ..Default::default() },
    )?;
    run(&p, "4 bytes at NULL", BinderWriteRead { write_size: 4, ..Default::default() })?;
    let kernel = 0xffff_8000_0000_0000;
    run(
        &p,
        "4 bytes in the kernel",
        BinderWriteRead { write_size: 4, write_buffer: kernel, ..Default::default() },
    )
}

fn faulting_read(s: &Stage) -> Outcome {
    let (m, p) = pair(s)?;
    let bad = m.arena().guard();
    let read = BinderWriteRead { read_size: 256, read_buffer: bad, ..Default::default() };
    let nowhere = |what: &str, peer: &Peer| {
        peer.log(format!("> {what}"));
        peer.call(libc::SYS_ioctl, {
            let at = peer.arena().place(read.as_bytes());
            [peer.fd() as u64, u64::from(binder_uapi::ioctl::BINDER_WRITE_READ), at, 0, 0, 0]
        })
    };
    let log_result = |result: i64| {
        m.log(match result {
            0 => "= ok".to_owned(),
            error => format!("= {}", crate::describe::errno_name(-error as i32)),
        });
    };
    log_result(nowhere("256 bytes to unmapped, nothing there", &m)?);
    p.send(&Tx::to(0, 1).one_way().data(b"one"))?;
    log_result(nowhere("256 bytes to unmapped, a transaction there", &m)?);
    s.note("what became of it");
    m.drain()?;
    p.drain()
}

fn faulting_transaction(s: &Stage) -> Outcome {
    let (m, p) = pair(s)?;
    p.send(&Tx::to(0, 1).data(b"call"))?;
    let at = m.arena().place_before_guard(&[0; 16]);
    let argument = BinderWriteRead { read_size: 256, read_buffer: at, ..Default::default() };
    let argument = m.arena().place(argument.as_bytes());
    m.log("> 16 bytes of good memory, 256 counted");
    m.ioctl_at("BINDER_WRITE_READ", binder_uapi::ioctl::BINDER_WRITE_READ, argument)?;
    m.drain()?;
    p.drain()
}

fn consumed_before(s: &Stage) -> Outcome {
    let p = client(s)?;
    let mut stream = 0xbadu32.to_ne_bytes().to_vec();
    stream.extend_from_slice(&encode(&[Command::EnterLooper]));
    let start = BinderWriteRead { write_consumed: 4, ..bwr(&p, &stream) };
    run(&p, "4 bytes of noise that are consumed already, BC_ENTER_LOOPER", start)
}

fn consumed_beyond(s: &Stage) -> Outcome {
    let p = client(s)?;
    let stream = encode(&[Command::EnterLooper]);
    let beyond = BinderWriteRead { write_consumed: 8, ..bwr(&p, &stream) };
    run(&p, "write_consumed 8 of 4", beyond)?;
    let beyond = BinderWriteRead { write_consumed: u64::MAX, ..bwr(&p, &stream) };
    run(&p, "write_consumed u64::MAX of 4", beyond)
}

fn read_consumed_before(s: &Stage) -> Outcome {
    let (m, p) = pair(s)?;
    p.send(&Tx::to(0, 1).one_way().data(b"one"))?;
    let mut argument = BinderWriteRead {
        read_size: 256,
        read_consumed: 100,
        read_buffer: m.arena().returns(),
        ..Default::default()
    };
    m.arena().put(m.arena().returns(), &[0xee; 256]);
    let at = m.arena().place(argument.as_bytes());
    m.ioctl_at(
        "BINDER_WRITE_READ with read_consumed 100",
        binder_uapi::ioctl::BINDER_WRITE_READ,
        at,
    )?;
    let after = m.arena().get(at, size_of::<BinderWriteRead>()).unwrap_or_default();
    argument = zerocopy::FromBytes::read_from_bytes(&after).unwrap_or_default();
    m.log(format!("= read {}/{}", argument.read_consumed, argument.read_size));
    let first = m.arena().get(m.arena().returns() + 96, 12).unwrap_or_default();
    m.log(format!("  bytes 96..108 are {first:02x?}"));
    Ok(())
}

fn small_reads(s: &Stage) -> Outcome {
    let p = client(s)?;
    for room in [1usize, 3, 4, 5, 7, 8, 12] {
        p.exchange(&[], room)?;
    }
    Ok(())
}

fn small_transaction_reads(s: &Stage) -> Outcome {
    let (m, p) = pair(s)?;
    p.send(&Tx::to(0, 1).one_way().data(b"waits"))?;
    for room in [4usize, 8, 68, 72, 76, 79, 80] {
        m.exchange(&[], room)?;
    }
    Ok(())
}

fn many_commands(s: &Stage) -> Outcome {
    let (m, p) = pair(s)?;
    let commands = [
        Command::EnterLooper,
        Tx::to(0, 1).one_way().data(b"first").transaction(p.arena()),
        Command::Acquire(0),
        Tx::to(0, 2).one_way().data(b"second").transaction(p.arena()),
        Command::ExitLooper,
    ];
    p.exchange(&commands, 256)?;
    m.drain()?;
    p.drain()
}

fn stops_at_failure(s: &Stage) -> Outcome {
    let (m, p) = pair(s)?;
    let commands = [
        Tx::to(UNKNOWN, 1).transaction(p.arena()),
        Tx::to(0, 2).one_way().data(b"behind").transaction(p.arena()),
    ];
    s.note("writing alone");
    p.write(&commands)?;
    p.write(&commands[1..])?;
    p.read()?;
    m.read()?;
    s.note("with a read in the same go");
    p.exchange(&commands, 256)?;
    m.read()?;
    p.write(&commands[1..])?;
    p.drain()?;
    m.drain()
}

fn goes_on(s: &Stage) -> Outcome {
    let p = client(s)?;
    let nothing = BinderPtrCookie { ptr: 0x9999, cookie: 1 };
    let notification = BinderHandleCookie { handle: UNKNOWN, cookie: 5 };
    p.exchange(
        &[
            Command::IncRefs(UNKNOWN),
            Command::Acquire(UNKNOWN),
            Command::Release(UNKNOWN),
            Command::DecRefs(UNKNOWN),
            Command::IncRefsDone(nothing),
            Command::AcquireDone(nothing),
            Command::FreeBuffer(0x4444),
            Command::RequestDeathNotification(notification),
            Command::ClearDeathNotification(notification),
            Command::DeadBinderDone(9),
            Command::EnterLooper,
        ],
        256,
    )?;
    Ok(())
}

fn not_implemented(s: &Stage) -> Outcome {
    let p = client(s)?;
    p.write(&[Command::AttemptAcquire(BinderPriDesc { priority: 1, desc: 0 })])?;
    p.write(&[Command::AcquireResult(1)])?;
    Ok(())
}

fn returns_as_commands(s: &Stage) -> Outcome {
    let p = client(s)?;
    for item in [Return::Noop, Return::SpawnLooper, Return::TransactionComplete] {
        p.write_bytes(item.word().as_bytes())?;
    }
    Ok(())
}

/// Random bytes that are the same in every run (xorshift).
fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut x = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes = Vec::new();
    while bytes.len() < len {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        bytes.extend_from_slice(&x.to_ne_bytes());
    }
    bytes.truncate(len);
    bytes
}

fn garbage(s: &Stage) -> Outcome {
    let p = client(s)?;
    for seed in 1..=8 {
        p.write_bytes(&noise(seed, 40))?;
    }
    s.note("the word of a command, noise behind it");
    let words =
        [BC_TRANSACTION, BC_REPLY, BC_FREE_BUFFER, BC_TRANSACTION_SG, BC_REPLY_SG, BC_ACQUIRE_DONE];
    for (seed, word) in words.into_iter().enumerate() {
        let mut stream = word.to_ne_bytes().to_vec();
        stream.extend_from_slice(&noise(100 + seed as u64, 96));
        p.start_bytes(&stream, 256)?;
        p.finish()?;
    }
    p.drain()
}

fn failed_write_skips_read(s: &Stage) -> Outcome {
    let (m, p) = pair(s)?;
    p.send(&Tx::to(0, 1).one_way().data(b"there"))?;
    m.start_bytes(&0xdead_beefu32.to_ne_bytes(), 256)?;
    m.finish()?;
    m.read()?;
    Ok(())
}

fn huge_sizes(s: &Stage) -> Outcome {
    let p = client(s)?;
    let stream = encode(&[Command::EnterLooper, Command::ExitLooper]);
    let all = BinderWriteRead { write_size: u64::MAX, ..bwr(&p, &stream) };
    run(&p, "BC_ENTER_LOOPER BC_EXIT_LOOPER, u64::MAX counted", all)?;
    s.note("a read of nothing with room u64::MAX");
    let room = BinderWriteRead {
        read_size: u64::MAX,
        read_buffer: p.arena().returns(),
        ..Default::default()
    };
    let at = p.arena().place(room.as_bytes());
    p.ioctl_at("BINDER_WRITE_READ", binder_uapi::ioctl::BINDER_WRITE_READ, at)
}
