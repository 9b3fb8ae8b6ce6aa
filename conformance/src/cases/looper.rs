//! Threads, and requests for more of them.

use binder_uapi::*;

use super::*;

cases! {
    "looper.enter", enter, "an application's thread enters and leaves the pool";
    "looper.register_unasked", register_unasked, "a thread registers that nobody asked for";
    "looper.enter_and_register", enter_and_register, "a thread does both";
    "looper.spawn", spawn, "the pool is asked for a thread when its last one is busy";
    "looper.spawn_not_of_others", not_of_others, "a thread that is no looper is not asked";
    "looper.spawn_limit", spawn_limit, "never for more than BINDER_SET_MAX_THREADS said";
    "looper.spawn_once", spawn_once, "not again until the thread that was asked for has come";
    "looper.spawn_for_references", spawn_for_references,
        "asked on a read that brings no transaction";
    "looper.spawn_with_nothing", spawn_with_nothing, "asked on a read of nothing";
    "looper.idle_thread", idle_thread, "not while another thread waits";
    "looper.first_read", first_read, "the first ioctl of a new thread is a read";
    "looper.first_read_blocking", first_read_blocking, "and so on a blocking open";
    "looper.not_in_pool_reads", not_in_pool,
        "a thread that never entered gets work of the process, too";
    "looper.wakes_one", wakes_one, "two threads wait, one is woken";
    "looper.waits_before_registering", waits_before, "a thread that waits without having entered";
    "looper.exit_with_call", exit_with_call, "BC_EXIT_LOOPER with a call to answer";
}

fn enter(s: &Stage) -> Outcome {
    let (m, p) = pair(s)?;
    m.write(&[Command::EnterLooper])?;
    m.write(&[Command::EnterLooper])?;
    m.write(&[Command::ExitLooper])?;
    m.write(&[Command::ExitLooper])?;
    p.send(&Tx::to(0, 1).one_way())?;
    m.read()?;
    Ok(())
}

fn register_unasked(s: &Stage) -> Outcome {
    let (m, p) = pair(s)?;
    m.write(&[Command::RegisterLooper])?;
    p.send(&Tx::to(0, 1).one_way())?;
    m.read()?;
    Ok(())
}

fn enter_and_register(s: &Stage) -> Outcome {
    let (m, p) = pair(s)?;
    m.set_max_threads(2)?;
    m.write(&[Command::EnterLooper, Command::RegisterLooper])?;
    p.send(&Tx::to(0, 1).one_way())?;
    m.read()?;
    Ok(())
}

fn pool(s: &Stage, max: u32) -> Result<(Peer, Peer), Stop> {
    let (m, p) = pair(s)?;
    m.set_max_threads(max)?;
    m.write(&[Command::EnterLooper])?;
    Ok((m, p))
}

fn spawn(s: &Stage) -> Outcome {
    let (m, p) = pool(s, 2)?;
    p.send(&Tx::to(0, 1).data(b"call"))?;
    m.read()?;
    let t = m.new_thread()?;
    t.write(&[Command::RegisterLooper])?;
    let q = client(s)?;
    q.send(&Tx::to(0, 2).data(b"call"))?;
    t.read()?;
    Ok(())
}

fn not_of_others(s: &Stage) -> Outcome {
    let (m, p) = pair(s)?;
    m.set_max_threads(2)?;
    p.send(&Tx::to(0, 1).data(b"call"))?;
    m.read()?;
    Ok(())
}

fn spawn_limit(s: &Stage) -> Outcome {
    for max in [0, 1] {
        let m = client(s)?;
        if max == 0 {
            m.manage()?;
        } else {
            s.note("an ordinary process, called through the manager");
        }
        m.set_max_threads(max)?;
        m.write(&[Command::EnterLooper])?;
        if max == 0 {
            let p = client(s)?;
            p.send(&Tx::to(0, 1).data(b"call"))?;
            m.read()?;
            m.reply(&Tx::new())?;
            m.drain()?;
            continue;
        }
        m.send(&Tx::to(0, 1).data(b"x"))?;
        m.read()?;
        let t = m.new_thread()?;
        t.write(&[Command::RegisterLooper])?;
        t.read()?;
        t.read()?;
    }
    Ok(())
}

fn spawn_once(s: &Stage) -> Outcome {
    let (m, p) = pool(s, 3)?;
    for code in 1..=3 {
        p.send(&Tx::to(0, code).one_way())?;
        let data = m.receive()?;
        m.free(&data)?;
    }
    let t = m.new_thread()?;
    t.write(&[Command::RegisterLooper])?;
    p.send(&Tx::to(0, 4).one_way())?;
    t.read()?;
    Ok(())
}

fn spawn_for_references(s: &Stage) -> Outcome {
    let m = manager(s)?;
    let p = client(s)?;
    p.set_max_threads(2)?;
    p.write(&[Command::EnterLooper])?;
    p.post(&Tx::to(0, 1).one_way().object(local(NODE.ptr, NODE.cookie)))?;
    p.read()?;
    m.drain()
}

fn spawn_with_nothing(s: &Stage) -> Outcome {
    let p = client(s)?;
    p.set_max_threads(2)?;
    p.write(&[Command::EnterLooper])?;
    p.read()?;
    let t = p.new_thread()?;
    t.read()?;
    t.write(&[Command::RegisterLooper])?;
    t.read()?;
    Ok(())
}

fn idle_thread(s: &Stage) -> Outcome {
    let m = blocking_manager(s)?;
    m.set_max_threads(2)?;
    m.write(&[Command::EnterLooper])?;
    let t = m.new_thread()?;
    t.write(&[Command::EnterLooper])?;
    t.start(&[], 256)?;
    t.blocks()?;
    let p = client(s)?;
    p.send(&Tx::to(0, 1).one_way())?;
    t.finish()?;
    s.note("and again with the other one waiting");
    t.start(&[], 256)?;
    t.blocks()?;
    m.start(&[], 256)?;
    m.blocks()
}

fn first_read(s: &Stage) -> Outcome {
    let p = client(s)?;
    let t = p.new_thread()?;
    t.read()?;
    t.read()?;
    let u = p.new_thread()?;
    u.exchange(&[Command::EnterLooper], 256)?;
    u.read()?;
    let v = p.new_thread()?;
    v.set_max_threads(0)?;
    v.read()?;
    Ok(())
}

fn first_read_blocking(s: &Stage) -> Outcome {
    let p = blocking_client(s)?;
    let t = p.new_thread()?;
    t.start(&[], 256)?;
    t.blocks()?;
    t.finish()?;
    t.start(&[], 256)?;
    t.blocks()
}

fn not_in_pool(s: &Stage) -> Outcome {
    let (m, p) = pair(s)?;
    p.send(&Tx::to(0, 1).one_way())?;
    let t = m.new_thread()?;
    t.set_max_threads(0)?;
    t.read()?;
    m.read()?;
    Ok(())
}

fn wakes_one(s: &Stage) -> Outcome {
    let m = blocking_manager(s)?;
    let t = m.new_thread()?;
    t.write(&[Command::EnterLooper])?;
    m.write(&[Command::EnterLooper])?;
    m.start(&[], 256)?;
    m.blocks()?;
    t.start(&[], 256)?;
    t.blocks()?;
    let p = client(s)?;
    p.send(&Tx::to(0, 1).data(b"one"))?;
    s.note("who came first or last: one of them");
    t.let_time_pass();
    m.blocks()?;
    t.blocks()?;
    Ok(())
}

fn waits_before(s: &Stage) -> Outcome {
    let m = blocking_manager(s)?;
    m.start(&[], 256)?;
    m.blocks()?;
    let p = client(s)?;
    p.send(&Tx::to(0, 1).one_way())?;
    m.finish()?;
    Ok(())
}

fn exit_with_call(s: &Stage) -> Outcome {
    let (m, p) = pool(s, 0)?;
    call_in_progress(&m, &p)?;
    m.write(&[Command::ExitLooper])?;
    m.reply(&Tx::new().data(b"still"))?;
    p.read()?;
    Ok(())
}
