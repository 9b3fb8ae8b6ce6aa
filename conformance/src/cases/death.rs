//! Death notifications.

use binder_uapi::*;

use super::*;

cases! {
    "death.told", reported, "the death of a node's owner is told once";
    "death.cleared_before", cleared_before,
        "a withdrawn notification is acknowledged and never comes";
    "death.cleared_after_told", cleared_after,
        "withdrawn after it was told: acknowledged at once, or after DONE";
    "death.cleared_after_done", cleared_after_done, "withdrawn after DONE";
    "death.cleared_untold", cleared_untold,
        "withdrawn when the node is dead and nothing was read yet";
    "death.late", late, "asked for a node that is dead already";
    "death.twice", twice, "asked twice for one handle";
    "death.wrong_clear", wrong_clear,
        "withdrawn with another cookie, twice, or where nothing was asked";
    "death.unknown_handle", unknown_handle, "a handle that nobody gave";
    "death.weak_handle", weak_handle, "a weak reference is enough";
    "death.handle_0", handle_0, "the death of the manager";
    "death.done_unknown", done_unknown, "DONE for what was never told";
    "death.done_twice", done_twice, "DONE twice";
    "death.many_nodes", many_nodes, "several nodes of one dead process";
    "death.two_watchers", two_watchers, "two processes watch one node";
    "death.handle_let_go", let_go, "the handle is let go while the notification is asked for";
    "death.asked_again", requested_again, "asked again after it was withdrawn";
    "death.who_reads", who_reads,
        "a thread that is no looper gets the acknowledgement, the process the death";
    "death.unmapped_watcher", unmapped_watcher, "a watcher without a mapping";
    "death.watcher_dies", watcher_dies, "the watcher dies first";
    "death.of_unlinked_node", after_nodes_gone,
        "the owner lets go of nothing: a node without strong references dies too";
    "death.small_read", small_read, "a read with room for half of the notification";
}

const COOKIE: u64 = 0xc00c1e;

fn request(handle: u32, cookie: u64) -> Command {
    Command::RequestDeathNotification(BinderHandleCookie { handle, cookie })
}

fn withdraw(handle: u32, cookie: u64) -> Command {
    Command::ClearDeathNotification(BinderHandleCookie { handle, cookie })
}

/// A manager that holds a reference to a node of a client.
fn watched(s: &Stage) -> Result<(Peer, Peer, u32), Stop> {
    let (m, p) = pair(s)?;
    let handle = introduce(s, &p, &m, NODE)?;
    Ok((m, p, handle))
}

/// Kills `p` and waits until `m` can be notified.
fn die(p: &Peer, m: &Peer) -> Outcome {
    p.die()?;
    m.let_time_pass();
    Ok(())
}

fn reported(s: &Stage) -> Outcome {
    let (m, p, handle) = watched(s)?;
    m.write(&[request(handle, COOKIE)])?;
    m.read()?;
    die(&p, &m)?;
    m.read()?;
    m.read()?;
    m.write(&[Command::DeadBinderDone(COOKIE)])?;
    m.read()?;
    m.send(&Tx::to(handle, 1).one_way())?;
    m.write(&[Command::Release(handle)])?;
    m.drain()
}

fn cleared_before(s: &Stage) -> Outcome {
    let (m, p, handle) = watched(s)?;
    m.write(&[request(handle, COOKIE)])?;
    m.exchange(&[withdraw(handle, COOKIE)], 256)?;
    die(&p, &m)?;
    m.drain()
}

fn cleared_after(s: &Stage) -> Outcome {
    let (m, p, handle) = watched(s)?;
    m.write(&[request(handle, COOKIE)])?;
    die(&p, &m)?;
    m.read()?;
    m.exchange(&[withdraw(handle, COOKIE)], 256)?;
    m.exchange(&[Command::DeadBinderDone(COOKIE)], 256)?;
    m.drain()
}

fn cleared_after_done(s: &Stage) -> Outcome {
    let (m, p, handle) = watched(s)?;
    m.write(&[request(handle, COOKIE)])?;
    die(&p, &m)?;
    m.read()?;
    m.write(&[Command::DeadBinderDone(COOKIE)])?;
    m.exchange(&[withdraw(handle, COOKIE)], 256)?;
    m.drain()
}

fn cleared_untold(s: &Stage) -> Outcome {
    let (m, p, handle) = watched(s)?;
    m.write(&[request(handle, COOKIE)])?;
    die(&p, &m)?;
    m.write(&[withdraw(handle, COOKIE)])?;
    m.read()?;
    m.exchange(&[Command::DeadBinderDone(COOKIE)], 256)?;
    m.drain()
}

fn late(s: &Stage) -> Outcome {
    let (m, p, handle) = watched(s)?;
    die(&p, &m)?;
    m.exchange(&[request(handle, COOKIE)], 256)?;
    m.write(&[Command::DeadBinderDone(COOKIE)])?;
    m.exchange(&[withdraw(handle, COOKIE)], 256)?;
    m.drain()
}

fn twice(s: &Stage) -> Outcome {
    let (m, p, handle) = watched(s)?;
    m.write(&[request(handle, COOKIE)])?;
    m.write(&[request(handle, COOKIE)])?;
    m.write(&[request(handle, COOKIE + 1)])?;
    m.read()?;
    die(&p, &m)?;
    m.drain()
}

fn wrong_clear(s: &Stage) -> Outcome {
    let (m, _p, handle) = watched(s)?;
    m.exchange(&[withdraw(handle, COOKIE)], 256)?;
    m.write(&[request(handle, COOKIE)])?;
    m.exchange(&[withdraw(handle, COOKIE + 1)], 256)?;
    m.exchange(&[withdraw(handle, COOKIE)], 256)?;
    m.exchange(&[withdraw(handle, COOKIE)], 256)?;
    Ok(())
}

fn unknown_handle(s: &Stage) -> Outcome {
    let (_m, p) = pair(s)?;
    for handle in [0, 1, UNKNOWN] {
        p.exchange(&[request(handle, COOKIE)], 256)?;
        p.exchange(&[withdraw(handle, COOKIE)], 256)?;
    }
    Ok(())
}

fn weak_handle(s: &Stage) -> Outcome {
    let (m, p, handle) = watched(s)?;
    m.write(&[Command::IncRefs(handle), Command::Release(handle), request(handle, COOKIE)])?;
    die(&p, &m)?;
    m.drain()
}

fn handle_0(s: &Stage) -> Outcome {
    let (m, p) = pair(s)?;
    p.write(&[Command::Acquire(0), request(0, COOKIE)])?;
    die(&m, &p)?;
    p.read()?;
    p.write(&[Command::DeadBinderDone(COOKIE), Command::Release(0)])?;
    p.drain()
}

fn done_unknown(s: &Stage) -> Outcome {
    let (m, _p, handle) = watched(s)?;
    m.write(&[Command::DeadBinderDone(1)])?;
    m.write(&[request(handle, COOKIE)])?;
    m.write(&[Command::DeadBinderDone(COOKIE)])?;
    m.drain()
}

fn done_twice(s: &Stage) -> Outcome {
    let (m, p, handle) = watched(s)?;
    m.write(&[request(handle, COOKIE)])?;
    die(&p, &m)?;
    m.read()?;
    m.write(&[Command::DeadBinderDone(COOKIE)])?;
    m.write(&[Command::DeadBinderDone(COOKIE)])?;
    m.drain()
}

fn many_nodes(s: &Stage) -> Outcome {
    let (m, p) = pair(s)?;
    let mut cookies = Vec::new();
    for i in 1..=4 {
        let handle = introduce(s, &p, &m, BinderPtrCookie { ptr: 0x1000 * i, cookie: i })?;
        m.write(&[request(handle, i)])?;
    }
    die(&p, &m)?;
    s.note("in which order is the driver's business: sorted here");
    s.quietly(|| {
        loop {
            let got = m.read()?;
            if got.errno != 0 {
                return Ok(());
            }
            for item in got.returns {
                if let Return::DeadBinder(cookie) = item {
                    cookies.push(cookie);
                }
            }
        }
    })?;
    cookies.sort_unstable();
    m.log(format!("hears of {cookies:?}"));
    Ok(())
}

fn two_watchers(s: &Stage) -> Outcome {
    let (m, p, handle) = watched(s)?;
    let q = client(s)?;
    let q_handle = pass_on(s, &m, handle, &q)?;
    m.write(&[request(handle, 1)])?;
    q.write(&[request(q_handle, 2)])?;
    die(&p, &m)?;
    m.read()?;
    q.read()?;
    Ok(())
}

fn let_go(s: &Stage) -> Outcome {
    let (m, p, handle) = watched(s)?;
    m.write(&[request(handle, COOKIE), Command::Release(handle)])?;
    p.drain()?;
    m.exchange(&[withdraw(handle, COOKIE)], 256)?;
    die(&p, &m)?;
    m.drain()
}

fn requested_again(s: &Stage) -> Outcome {
    let (m, p, handle) = watched(s)?;
    m.write(&[request(handle, 1), withdraw(handle, 1), request(handle, 2)])?;
    m.read()?;
    die(&p, &m)?;
    m.drain()
}

fn who_reads(s: &Stage) -> Outcome {
    let (m, p, handle) = watched(s)?;
    let t = m.new_thread()?;
    t.write(&[request(handle, COOKIE), withdraw(handle, COOKIE), request(handle, COOKIE)])?;
    m.read()?;
    t.read()?;
    t.write(&[Command::EnterLooper, withdraw(handle, COOKIE), request(handle, COOKIE)])?;
    m.read()?;
    t.read()?;
    die(&p, &m)?;
    m.read()?;
    t.read()?;
    Ok(())
}

fn unmapped_watcher(s: &Stage) -> Outcome {
    let m = manager(s)?;
    let q = s.process()?;
    q.set_up(NONBLOCK, 0)?;
    q.write(&[Command::Acquire(0), request(0, COOKIE)])?;
    die(&m, &q)?;
    q.drain()
}

fn watcher_dies(s: &Stage) -> Outcome {
    let (m, p, handle) = watched(s)?;
    m.write(&[request(handle, COOKIE)])?;
    die(&m, &p)?;
    p.drain()?;
    p.node_debug_info(0)?;
    Ok(())
}

fn after_nodes_gone(s: &Stage) -> Outcome {
    let (m, p, handle) = watched(s)?;
    m.write(&[Command::IncRefs(handle), Command::Release(handle)])?;
    p.drain()?;
    m.write(&[request(handle, COOKIE)])?;
    p.node_debug_info(0)?;
    die(&p, &m)?;
    m.drain()
}

fn small_read(s: &Stage) -> Outcome {
    let (m, p, handle) = watched(s)?;
    m.write(&[request(handle, COOKIE)])?;
    die(&p, &m)?;
    for room in [8, 15, 16, 20, 512] {
        m.exchange(&[], room)?;
    }
    Ok(())
}
