//! Freeze notifications.

use binder_uapi::*;

use super::*;

cases! {
    "freeze_notification.told", reported, "the current state at once, then every change";
    "freeze_notification.one_outstanding", one_outstanding, "the next one waits for DONE";
    "freeze_notification.withdrawn", withdrawn, "withdrawn, before and after DONE";
    "freeze_notification.twice", twice, "asked twice";
    "freeze_notification.wrong", wrong, "unknown handles, wrong cookies, DONE for nothing";
    "freeze_notification.of_the_dead", of_the_dead, "the owner of the node is dead";
}

const COOKIE: u64 = 0xf00d;

fn request(handle: u32, cookie: u64) -> Command {
    Command::RequestFreezeNotification(BinderHandleCookie { handle, cookie })
}

fn withdraw(handle: u32, cookie: u64) -> Command {
    Command::ClearFreezeNotification(BinderHandleCookie { handle, cookie })
}

fn done(cookie: u64) -> Command {
    Command::FreezeNotificationDone(cookie)
}

fn watched(s: &Stage) -> Result<(Peer, Peer, u32), Stop> {
    let (m, p) = pair(s)?;
    let handle = introduce(s, &p, &m, NODE)?;
    Ok((m, p, handle))
}

fn reported(s: &Stage) -> Outcome {
    let (m, p, handle) = watched(s)?;
    m.exchange(&[request(handle, COOKIE)], 256)?;
    m.write(&[done(COOKIE)])?;
    for enable in [1, 0] {
        m.freeze(&p, enable, 0)?;
        m.read()?;
        m.write(&[done(COOKIE)])?;
    }
    m.drain()
}

fn one_outstanding(s: &Stage) -> Outcome {
    let (m, p, handle) = watched(s)?;
    m.exchange(&[request(handle, COOKIE)], 256)?;
    m.freeze(&p, 1, 0)?;
    m.read()?;
    m.exchange(&[done(COOKIE)], 256)?;
    m.write(&[done(COOKIE)])?;
    s.note("two changes before the next read");
    m.freeze(&p, 0, 0)?;
    m.freeze(&p, 1, 0)?;
    m.read()?;
    m.exchange(&[done(COOKIE)], 256)?;
    m.drain()
}

fn withdrawn(s: &Stage) -> Outcome {
    let (m, p, handle) = watched(s)?;
    m.exchange(&[request(handle, COOKIE)], 256)?;
    m.exchange(&[withdraw(handle, COOKIE)], 256)?;
    m.exchange(&[done(COOKIE)], 256)?;
    m.freeze(&p, 1, 0)?;
    m.drain()?;
    s.note("and asked anew");
    m.exchange(&[request(handle, COOKIE + 1)], 256)?;
    m.write(&[done(COOKIE + 1)])?;
    m.exchange(&[withdraw(handle, COOKIE + 1)], 256)?;
    m.drain()
}

fn twice(s: &Stage) -> Outcome {
    let (m, _p, handle) = watched(s)?;
    m.exchange(&[request(handle, COOKIE)], 256)?;
    m.exchange(&[request(handle, COOKIE)], 256)?;
    m.exchange(&[request(handle, COOKIE + 1)], 256)?;
    m.drain()
}

fn wrong(s: &Stage) -> Outcome {
    let (m, _p, handle) = watched(s)?;
    m.exchange(&[request(UNKNOWN, COOKIE)], 256)?;
    m.exchange(&[withdraw(UNKNOWN, COOKIE)], 256)?;
    m.exchange(&[withdraw(handle, COOKIE)], 256)?;
    m.exchange(&[done(COOKIE)], 256)?;
    m.exchange(&[request(handle, COOKIE)], 256)?;
    m.exchange(&[withdraw(handle, COOKIE + 1)], 256)?;
    m.drain()
}

fn of_the_dead(s: &Stage) -> Outcome {
    let (m, p, handle) = watched(s)?;
    m.exchange(&[request(handle, COOKIE)], 256)?;
    m.write(&[done(COOKIE)])?;
    p.die()?;
    m.let_time_pass();
    m.drain()?;
    m.exchange(&[withdraw(handle, COOKIE)], 256)?;
    m.exchange(&[request(handle, COOKIE + 1)], 256)?;
    m.drain()
}
