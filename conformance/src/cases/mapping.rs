//! Mapping the device, and its effect on received transactions.

use super::*;

cases! {
    "mapping.twice", twice, "one mapping an open";
    "mapping.writable", writable, "nobody may write to it";
    "mapping.made_writable", made_writable, "nor make it writable later";
    "mapping.shared", shared, "shared or private is the same";
    "mapping.length_0", length_0, "a mapping needs a length";
    "mapping.odd_length", odd_length, "a length that is no multiple of a page is rounded up";
    "mapping.too_long", too_long, "more than 4 MiB may be mapped, and 4 MiB of it serve";
    "mapping.none", none, "without a mapping nothing can be received, but sent";
    "mapping.gone", gone, "after munmap nothing can be received any more";
    "mapping.again", again, "after munmap the device can or cannot be mapped again";
    "mapping.other_open", other_open, "every open has its own mapping";
    "mapping.outlives_close", outlives_close, "what was received stays readable after close";
    "mapping.untouched", untouched, "reading it before anything was received";
}

const READ: i32 = libc::PROT_READ;
const WRITE: i32 = libc::PROT_WRITE;

fn opened(s: &Stage) -> Result<Peer, Stop> {
    let p = s.process()?;
    p.set_up(NONBLOCK, 0)?;
    Ok(p)
}

fn twice(s: &Stage) -> Outcome {
    let p = opened(s)?;
    p.map(8192)?;
    p.map(8192).map(drop)
}

fn writable(s: &Stage) -> Outcome {
    let p = opened(s)?;
    p.map_as(8192, READ | WRITE, libc::MAP_PRIVATE)?;
    p.map_as(8192, READ | WRITE, libc::MAP_SHARED)?;
    s.note("the failure did not use the mapping up");
    p.map(8192).map(drop)
}

fn made_writable(s: &Stage) -> Outcome {
    let p = opened(s)?;
    for flags in [libc::MAP_PRIVATE, libc::MAP_SHARED] {
        let q = p.second_open();
        q.set_up(NONBLOCK, 0)?;
        q.map_as(8192, READ, flags)?;
        let (address, len) = q.mapping()?;
        let result = q.call(libc::SYS_mprotect, [address, len, (READ | WRITE) as u64, 0, 0, 0])?;
        q.log(match result {
            0 => "mprotect writable = ok".to_owned(),
            error => format!("mprotect writable = {}", crate::describe::errno_name(-error as i32)),
        });
    }
    Ok(())
}

fn receives(m: &Peer, p: &Peer, data: &[u8]) -> Outcome {
    p.send(&Tx::to(0, 1).one_way().data(data))?;
    let got = m.read()?;
    if let Ok(data) = got.incoming() {
        m.free(&data)?;
    } else {
        p.extended_error()?;
    }
    Ok(())
}

fn shared(s: &Stage) -> Outcome {
    let m = opened(s)?;
    m.map_as(8192, READ, libc::MAP_SHARED)?;
    m.manage()?;
    let p = client(s)?;
    receives(&m, &p, b"shared")
}

fn length_0(s: &Stage) -> Outcome {
    let p = opened(s)?;
    p.map(0)?;
    p.map(4096).map(drop)
}

fn odd_length(s: &Stage) -> Outcome {
    let m = opened(s)?;
    m.map(5000)?;
    m.manage()?;
    let p = client(s)?;
    s.note("one-way space is half of it");
    receives(&m, &p, &[1; 4096])?;
    receives(&m, &p, &[1; 4097])
}

fn too_long(s: &Stage) -> Outcome {
    let m = opened(s)?;
    m.map(8 << 20)?;
    m.manage()?;
    let p = client(s)?;
    receives(&m, &p, &vec![7; 1 << 20])?;
    receives(&m, &p, &vec![7; 2 << 20])?;
    receives(&m, &p, &vec![7; (2 << 20) + 1])
}

fn none(s: &Stage) -> Outcome {
    let m = opened(s)?;
    m.manage()?;
    let p = client(s)?;
    p.send(&Tx::to(0, 1).one_way())?;
    p.extended_error()?;
    p.send(&Tx::to(0, 1))?;
    p.extended_error()?;
    m.read()?;
    s.note("an unmapped process sends; the reply does not reach it");
    let n = opened(s)?;
    m.map(8192)?;
    n.send(&Tx::to(0, 2).data(b"from nowhere"))?;
    let data = m.receive()?;
    m.reply(&Tx::new().data(b"reply"))?;
    m.extended_error()?;
    m.free(&data)?;
    n.read()?;
    n.extended_error()
}

fn gone(s: &Stage) -> Outcome {
    let (m, p) = pair(s)?;
    receives(&m, &p, b"before")?;
    m.unmap()?;
    p.send(&Tx::to(0, 1).one_way().data(b"after"))?;
    p.extended_error()
}

fn again(s: &Stage) -> Outcome {
    let p = opened(s)?;
    p.map(8192)?;
    p.unmap()?;
    p.map(8192).map(drop)
}

fn other_open(s: &Stage) -> Outcome {
    let (m, p) = pair(s)?;
    let other = p.second_open();
    other.set_up(NONBLOCK, 0)?;
    other.map(8192)?;
    for peer in [&p, &other] {
        let data = call_in_progress(&m, peer)?;
        m.reply(&Tx::new().data(b"to this open"))?;
        m.free(&data)?;
        peer.read()?;
    }
    Ok(())
}

fn outlives_close(s: &Stage) -> Outcome {
    let (m, p) = pair(s)?;
    p.send(&Tx::to(0, 1).one_way().data(b"lasting"))?;
    let data = m.receive()?;
    m.close()?;
    let seen = m.peek(data.buffer, 7);
    m.log(match seen {
        Ok(bytes) => format!("still sees {:?}", String::from_utf8_lossy(&bytes)),
        Err(errno) => format!("sees nothing: {}", crate::describe::errno_name(errno)),
    });
    Ok(())
}

fn untouched(s: &Stage) -> Outcome {
    let p = client(s)?;
    let (address, _) = p.mapping()?;
    let seen = p.peek(address, 8);
    p.log(match seen {
        Ok(bytes) => format!("sees {bytes:?}"),
        Err(errno) => format!("sees nothing: {}", crate::describe::errno_name(errno)),
    });
    Ok(())
}
