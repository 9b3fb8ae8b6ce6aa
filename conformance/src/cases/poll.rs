//! Polling.

use binder_uapi::*;

use super::*;

cases! {
    "poll.nothing", nothing, "nothing is there";
    "poll.first", first, "the very first call of a thread is a poll";
    "poll.ready", ready, "a call is there, until it is read";
    "poll.own_work", own_work, "work of this thread alone: a completion, a reply";
    "poll.other_threads_work", others_work, "work of another thread does not make this one ready";
    "poll.wakes", wakes, "a poll that waits is woken by a call";
    "poll.wakes_for_reply", wakes_for_reply, "a poll that waits is woken by a reply";
    "poll.wakes_for_death", wakes_for_death, "a poll that waits is woken by a death";
    "poll.while_waiting", while_waiting, "a thread that waits for its reply is not ready for calls";
    "poll.in_transaction", in_transaction,
        "a thread with a call to answer is not ready for another";
    "poll.deferred_completion", deferred, "the completion of a sync call alone makes nobody ready";
    "poll.after_exit", after_exit, "after BINDER_THREAD_EXIT";
    "poll.blocking_read_beside", read_beside, "one thread polls, another reads";
}

fn nothing(s: &Stage) -> Outcome {
    let p = client(s)?;
    p.read()?;
    p.poll(0)?;
    p.poll(10)
}

fn first(s: &Stage) -> Outcome {
    let p = client(s)?;
    let t = p.new_thread()?;
    t.poll(0)?;
    t.read()?;
    t.poll(0)
}

fn ready(s: &Stage) -> Outcome {
    let (m, p) = pair(s)?;
    m.write(&[Command::EnterLooper])?;
    p.send(&Tx::to(0, 1).one_way())?;
    m.poll(0)?;
    m.poll(0)?;
    m.read()?;
    m.poll(0)
}

fn own_work(s: &Stage) -> Outcome {
    let (m, p) = pair(s)?;
    p.post(&Tx::to(0, 1).one_way())?;
    p.poll(0)?;
    p.read()?;
    p.poll(0)?;
    p.post(&Tx::to(0, 1))?;
    p.poll(0)?;
    m.read()?;
    m.read()?;
    m.write(&[Tx::new().reply(m.arena())])?;
    p.poll(0)?;
    p.read()?;
    p.poll(0)
}

fn others_work(s: &Stage) -> Outcome {
    let (_m, p) = pair(s)?;
    let t = p.new_thread()?;
    t.write(&[Command::EnterLooper])?;
    p.post(&Tx::to(0, 1).one_way())?;
    t.poll(0)?;
    p.poll(0)
}

fn wakes(s: &Stage) -> Outcome {
    let (m, p) = pair(s)?;
    m.write(&[Command::EnterLooper])?;
    let at = m.start_poll()?;
    p.send(&Tx::to(0, 1).one_way())?;
    m.finish_poll(at)?;
    m.read()?;
    m.poll(0)
}

fn wakes_for_reply(s: &Stage) -> Outcome {
    let (m, p) = pair(s)?;
    p.post(&Tx::to(0, 1))?;
    let at = p.start_poll()?;
    m.receive()?;
    m.reply(&Tx::new())?;
    p.finish_poll(at)?;
    p.read()?;
    Ok(())
}

fn wakes_for_death(s: &Stage) -> Outcome {
    let (m, p) = pair(s)?;
    let notification = BinderHandleCookie { handle: 0, cookie: 1 };
    p.write(&[
        Command::EnterLooper,
        Command::Acquire(0),
        Command::RequestDeathNotification(notification),
    ])?;
    let at = p.start_poll()?;
    m.die()?;
    p.finish_poll(at)?;
    p.read()?;
    Ok(())
}

fn while_waiting(s: &Stage) -> Outcome {
    let (m, p) = pair(s)?;
    let handle = introduce(s, &p, &m, NODE)?;
    p.post(&Tx::to(0, 1))?;
    let t = m.new_thread()?;
    t.send(&Tx::to(handle, 2).one_way())?;
    p.poll(0)?;
    let u = p.new_thread()?;
    u.write(&[Command::EnterLooper])?;
    u.poll(0)
}

fn in_transaction(s: &Stage) -> Outcome {
    let (m, p) = pair(s)?;
    call_in_progress(&m, &p)?;
    let q = client(s)?;
    q.post(&Tx::to(0, 2))?;
    m.poll(0)?;
    m.write(&[Tx::new().reply(m.arena())])?;
    m.poll(0)?;
    m.read()?;
    m.poll(0)?;
    m.read()?;
    Ok(())
}

fn deferred(s: &Stage) -> Outcome {
    let (_m, p) = pair(s)?;
    p.post(&Tx::to(0, 1))?;
    p.poll(0)?;
    p.read()?;
    Ok(())
}

fn after_exit(s: &Stage) -> Outcome {
    let (m, p) = pair(s)?;
    m.thread_exit()?;
    m.poll(0)?;
    p.send(&Tx::to(0, 1).one_way())?;
    m.poll(0)?;
    m.thread_exit()?;
    m.poll(0)?;
    m.read()?;
    m.read()?;
    Ok(())
}

fn read_beside(s: &Stage) -> Outcome {
    let m = blocking_manager(s)?;
    m.write(&[Command::EnterLooper])?;
    let t = m.new_thread()?;
    t.write(&[Command::EnterLooper])?;
    t.start(&[], 256)?;
    t.blocks()?;
    let p = client(s)?;
    p.send(&Tx::to(0, 1).one_way())?;
    t.finish()?;
    m.poll(0)
}
