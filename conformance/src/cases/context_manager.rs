//! The context manager (handle 0).

use binder_uapi::ioctl::*;
use binder_uapi::*;

use super::*;

cases! {
    "manager.set", set, "the first one gets it; everybody else is busy";
    "manager.null", set_null, "BINDER_SET_CONTEXT_MGR does not look at its argument";
    "manager.ext", ext, "the manager's node has the pointer and cookie that it gave";
    "manager.plain_after_ext", plain_after_ext, "both ioctls mean the same place";
    "manager.second_open", second_open, "a second open of the same process is somebody else";
    "manager.after_death", after_death, "the place is free when the manager's open is gone";
    "manager.other_uid", other_uid, "once a uid had the place no other uid gets it";
    "manager.refs_without", refs_without, "references to handle 0 where nobody is the manager";
    "manager.call_without", call_without, "calls to handle 0 where nobody is the manager";
    "manager.call_to_itself", call_to_itself, "the manager cannot call handle 0";
    "manager.references_itself", references_itself, "the manager cannot reference handle 0";
    "manager.sends_its_node", sends_its_node,
        "the manager's node in a transaction is handle 0 elsewhere, or a new one";
    "manager.handle_0_passed", handle_0_passed,
        "handle 0 as an object comes home as the node, and goes abroad";
    "manager.stale_handle_0", stale_handle_0,
        "handle 0 of a dead manager, after another one took the place";
    "manager.security_context", security_context,
        "a manager that wants the security context of its callers";
}

fn set(s: &Stage) -> Outcome {
    let p = client(s)?;
    p.manage()?;
    p.manage()?;
    let q = client(s)?;
    q.manage()?;
    q.manage_as(local(0, 0)).map(drop)
}

fn set_null(s: &Stage) -> Outcome {
    let p = client(s)?;
    p.ioctl_at("BINDER_SET_CONTEXT_MGR", BINDER_SET_CONTEXT_MGR, 0)?;
    let q = client(s)?;
    q.manage().map(drop)
}

fn ext(s: &Stage) -> Outcome {
    let m = client(s)?;
    m.manage_as(FlatBinderObject { flags: FLAT_BINDER_FLAG_ACCEPTS_FDS, ..local(0x5000, 0x5001) })?;
    let p = client(s)?;
    p.send(&Tx::to(0, 9).data(b"hello"))?;
    let data = m.receive()?;
    m.reply(&Tx::new())?;
    m.free(&data)?;
    p.read()?;
    let q = client(s)?;
    s.note("the type of the object is not looked at");
    q.manage_as(FlatBinderObject { ty: 0, ..local(1, 2) }).map(drop)
}

fn plain_after_ext(s: &Stage) -> Outcome {
    let m = client(s)?;
    m.manage_as(local(0x5000, 0x5001))?;
    m.manage()?;
    m.manage_as(local(0x6000, 0x6001))?;
    m.node_debug_info(0)?;
    Ok(())
}

fn second_open(s: &Stage) -> Outcome {
    let m = manager(s)?;
    let other = m.second_open();
    other.set_up(NONBLOCK, MAP_LEN)?;
    other.manage()?;
    s.note("nor may it call the first one");
    other.send(&Tx::to(0, 3).data(b"self"))?;
    other.extended_error()?;
    m.drain()
}

/// Kills the manager and waits for the death notification of handle 0 in `p`.
fn wait_for_end(p: &Peer, m: &Peer) -> Outcome {
    let notification = BinderHandleCookie { handle: 0, cookie: 0xdead };
    p.write(&[Command::Acquire(0), Command::RequestDeathNotification(notification)])?;
    m.die()?;
    p.read()?;
    p.write(&[Command::DeadBinderDone(0xdead)])?;
    Ok(())
}

fn after_death(s: &Stage) -> Outcome {
    let m = manager(s)?;
    let p = blocking_client(s)?;
    p.manage()?;
    wait_for_end(&p, &m)?;
    p.manage()?;
    let q = client(s)?;
    q.manage().map(drop)
}

fn other_uid(s: &Stage) -> Outcome {
    let m = manager(s)?;
    let p = blocking_client(s)?;
    let q = client(s)?;
    wait_for_end(&p, &m)?;
    q.call(libc::SYS_setresuid, [1000, 1000, 1000, 0, 0, 0])?;
    q.log("is uid 1000 now");
    q.manage()?;
    p.manage().map(drop)
}

fn refs_without(s: &Stage) -> Outcome {
    let p = client(s)?;
    for command in
        [Command::IncRefs(0), Command::Acquire(0), Command::Release(0), Command::DecRefs(0)]
    {
        p.write(&[command])?;
    }
    p.drain()
}

fn call_without(s: &Stage) -> Outcome {
    let p = client(s)?;
    p.send(&Tx::to(0, 1).data(b"call"))?;
    p.extended_error()?;
    p.send(&Tx::to(0, 1).one_way())?;
    p.extended_error()?;
    s.note("even with objects that make no sense");
    p.send(&Tx::to(0, 1).data(b"x").offset(400))?;
    p.drain()
}

fn call_to_itself(s: &Stage) -> Outcome {
    let m = manager(s)?;
    m.send(&Tx::to(0, 1).data(b"call"))?;
    m.extended_error()?;
    m.send(&Tx::to(0, 1).one_way())?;
    m.extended_error()?;
    m.drain()
}

fn references_itself(s: &Stage) -> Outcome {
    let m = manager(s)?;
    for command in
        [Command::IncRefs(0), Command::Acquire(0), Command::Release(0), Command::DecRefs(0)]
    {
        m.write(&[command])?;
    }
    m.drain()
}

fn sends_its_node(s: &Stage) -> Outcome {
    let m = client(s)?;
    m.manage_as(local(0x5000, 0x5001))?;
    let p = client(s)?;
    p.post(&Tx::to(0, 1))?;
    m.receive()?;
    m.reply(&Tx::new().object(local(0x5000, 0x5001)))?;
    p.receive()?;
    s.note("sent again");
    p.post(&Tx::to(0, 1))?;
    m.receive()?;
    m.reply(&Tx::new().object(local(0x5000, 0x5001)))?;
    p.receive()?;
    Ok(())
}

fn handle_0_passed(s: &Stage) -> Outcome {
    let m = client(s)?;
    m.manage_as(local(0x5000, 0x5001))?;
    let p = client(s)?;
    let q = client(s)?;
    p.write(&[Command::Acquire(0)])?;
    let node = introduce(s, &q, &m, NODE)?;
    let handle = pass_on(s, &m, node, &p)?;
    s.note("to the manager");
    p.send(&Tx::to(0, 1).one_way().object(crate::transaction::remote(0)))?;
    m.receive()?;
    s.note("to a third process");
    p.send(&Tx::to(handle, 1).one_way().object(crate::transaction::remote(0)))?;
    q.receive()?;
    Ok(())
}

fn stale_handle_0(s: &Stage) -> Outcome {
    let m = manager(s)?;
    let p = blocking_client(s)?;
    wait_for_end(&p, &m)?;
    let q = client(s)?;
    q.manage()?;
    s.note("a call with handle 0 means the place, whatever the reference says");
    p.post(&Tx::to(0, 4).one_way().data(b"new"))?;
    q.read()?;
    s.note("taking a reference to it");
    p.write(&[Command::Acquire(0)])?;
    q.read()?;
    Ok(())
}

fn security_context(s: &Stage) -> Outcome {
    let m = client(s)?;
    let object =
        FlatBinderObject { flags: FLAT_BINDER_FLAG_TXN_SECURITY_CTX, ..local(0x5000, 0x5001) };
    m.manage_as(object)?;
    let p = client(s)?;
    p.send(&Tx::to(0, 1).one_way().data(b"who"))?;
    p.extended_error()?;
    m.read()?;
    Ok(())
}
