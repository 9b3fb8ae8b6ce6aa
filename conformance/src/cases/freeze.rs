//! Freezing processes.

use binder_uapi::*;

use super::*;

cases! {
    "freeze.unknown_pid", unknown_pid, "a process that has no open";
    "freeze.sync_call", sync_call, "a sync call to a frozen process";
    "freeze.one_way_call", one_way_call, "a one-way call to a frozen process";
    "freeze.thaw", thaw, "what came meanwhile is there afterwards";
    "freeze.in_flight", in_flight, "a call in hand keeps a process from being frozen";
    "freeze.in_flight_timeout", in_flight_timeout, "with a timeout the driver waits for it";
    "freeze.waits_until_done", waits_until_done, "and goes on when it is answered";
    "freeze.frozen_process_calls", frozen_calls, "a frozen process may call";
    "freeze.reply_to_frozen", reply_to_frozen, "a process that waits for a reply is frozen";
    "freeze.twice", twice, "freezing the frozen, thawing the thawed";
    "freeze.info_resets", info_resets, "what the info counts begins anew with a freeze";
    "freeze.odd_enable", odd_enable, "enable may be any number";
    "freeze.update_txn", update_txn, "TF_UPDATE_TXN replaces a queued call of a frozen process";
    "freeze.two_opens", two_opens, "all opens of a process are frozen";
    "freeze.itself", itself, "a process freezes itself";
    "freeze.reads", reads, "a frozen process reads";
    "freeze.dies", dies, "a frozen process dies";
}

/// A manager that `p` has frozen.
fn frozen(s: &Stage) -> Result<(Peer, Peer), Stop> {
    let (m, p) = pair(s)?;
    p.freeze(&m, 1, 0)?;
    Ok((m, p))
}

fn unknown_pid(s: &Stage) -> Outcome {
    let p = client(s)?;
    let unrelated = s.process()?;
    p.freeze(&unrelated, 1, 0)?;
    p.freeze(&unrelated, 0, 0)?;
    p.frozen_info(&unrelated)
}

fn sync_call(s: &Stage) -> Outcome {
    let (m, p) = frozen(s)?;
    p.frozen_info(&m)?;
    p.send(&Tx::to(0, 1).data(b"call"))?;
    p.extended_error()?;
    p.frozen_info(&m)
}

fn one_way_call(s: &Stage) -> Outcome {
    let (m, p) = frozen(s)?;
    p.send(&Tx::to(0, 1).one_way().data(b"call"))?;
    p.extended_error()?;
    p.frozen_info(&m)
}

fn thaw(s: &Stage) -> Outcome {
    let (m, p) = frozen(s)?;
    p.send(&Tx::to(0, 1).one_way().data(b"one"))?;
    p.send(&Tx::to(0, 2).one_way().data(b"two"))?;
    p.send(&Tx::to(0, 3).data(b"sync"))?;
    p.freeze(&m, 0, 0)?;
    p.frozen_info(&m)?;
    let data = m.receive()?;
    m.free(&data)?;
    m.receive()?;
    p.send(&Tx::to(0, 4).data(b"sync again"))?;
    m.receive()?;
    Ok(())
}

fn in_flight(s: &Stage) -> Outcome {
    let (m, p) = pair(s)?;
    call_in_progress(&m, &p)?;
    let q = client(s)?;
    q.freeze(&m, 1, 0)?;
    q.frozen_info(&m)?;
    m.reply(&Tx::new())?;
    q.freeze(&m, 1, 0)?;
    q.frozen_info(&m)
}

fn in_flight_timeout(s: &Stage) -> Outcome {
    let (m, p) = pair(s)?;
    call_in_progress(&m, &p)?;
    let q = client(s)?;
    q.freeze(&m, 1, 50)?;
    s.note("it is not frozen then");
    let r = client(s)?;
    r.send(&Tx::to(0, 2).data(b"call"))?;
    q.frozen_info(&m)
}

fn waits_until_done(s: &Stage) -> Outcome {
    let (m, p) = pair(s)?;
    call_in_progress(&m, &p)?;
    let q = client(s)?;
    q.start_freeze(&m, 3000)?;
    let r = client(s)?;
    s.note("meanwhile nobody may begin a new call");
    r.send(&Tx::to(0, 2).data(b"call"))?;
    m.reply(&Tx::new())?;
    q.finish_freeze()?;
    q.frozen_info(&m)
}

fn frozen_calls(s: &Stage) -> Outcome {
    let (m, p) = pair(s)?;
    let q = client(s)?;
    q.freeze(&p, 1, 0)?;
    p.send(&Tx::to(0, 1).one_way())?;
    p.send(&Tx::to(0, 2).data(b"call"))?;
    m.drain()
}

fn reply_to_frozen(s: &Stage) -> Outcome {
    let (m, p) = pair(s)?;
    call_in_progress(&m, &p)?;
    let q = client(s)?;
    q.freeze(&p, 1, 0)?;
    q.frozen_info(&p)?;
    m.reply(&Tx::new().data(b"reply"))?;
    p.read()?;
    Ok(())
}

fn twice(s: &Stage) -> Outcome {
    let (m, p) = frozen(s)?;
    p.freeze(&m, 1, 0)?;
    p.freeze(&m, 0, 0)?;
    p.freeze(&m, 0, 0).map(drop)
}

fn info_resets(s: &Stage) -> Outcome {
    let (m, p) = frozen(s)?;
    p.send(&Tx::to(0, 1).data(b"call"))?;
    p.send(&Tx::to(0, 1).one_way())?;
    p.frozen_info(&m)?;
    p.freeze(&m, 0, 0)?;
    p.frozen_info(&m)?;
    p.freeze(&m, 1, 0)?;
    p.frozen_info(&m)
}

fn odd_enable(s: &Stage) -> Outcome {
    let (m, p) = pair(s)?;
    p.freeze(&m, 7, 0)?;
    p.send(&Tx::to(0, 1).data(b"call"))?;
    p.freeze(&m, u32::MAX, 0)?;
    p.freeze(&m, 0, u32::MAX).map(drop)
}

fn update_txn(s: &Stage) -> Outcome {
    let (m, p) = frozen(s)?;
    let update = |code, text: &[u8]| Tx::to(0, code).one_way().flags(TF_UPDATE_TXN).data(text);
    p.send(&Tx::to(0, 9).one_way().data(b"in progress"))?;
    for text in [&b"old"[..], b"newer", b"newest"] {
        p.send(&update(1, text))?;
    }
    p.send(&update(2, b"another code"))?;
    p.send(&Tx::to(0, 1).one_way().data(b"without the flag"))?;
    p.freeze(&m, 0, 0)?;
    for _ in 0..4 {
        let data = m.receive()?;
        m.free(&data)?;
    }
    m.drain()
}

fn two_opens(s: &Stage) -> Outcome {
    let (m, p) = pair(s)?;
    let other = p.second_open();
    other.set_up(NONBLOCK, MAP_LEN)?;
    let one = introduce(s, &p, &m, NODE)?;
    let two = introduce(s, &other, &m, OTHER_NODE)?;
    let q = client(s)?;
    q.freeze(&p, 1, 0)?;
    m.send(&Tx::to(one, 1).data(b"x"))?;
    m.send(&Tx::to(two, 1).one_way())?;
    q.frozen_info(&p)
}

fn itself(s: &Stage) -> Outcome {
    let p = client(s)?;
    p.freeze(&p, 1, 0)?;
    p.read()?;
    p.frozen_info(&p)?;
    p.freeze(&p, 0, 0).map(drop)
}

fn reads(s: &Stage) -> Outcome {
    let (m, p) = pair(s)?;
    p.send(&Tx::to(0, 1).one_way().data(b"before"))?;
    p.freeze(&m, 1, 0)?;
    p.send(&Tx::to(0, 2).one_way().data(b"after"))?;
    let data = m.receive()?;
    m.free(&data)?;
    m.read()?;
    Ok(())
}

fn dies(s: &Stage) -> Outcome {
    let (m, p) = frozen(s)?;
    let notification = BinderHandleCookie { handle: 0, cookie: 1 };
    p.write(&[Command::Acquire(0), Command::RequestDeathNotification(notification)])?;
    m.die()?;
    p.let_time_pass();
    p.drain()?;
    p.freeze(&m, 0, 0)?;
    p.frozen_info(&m)
}
