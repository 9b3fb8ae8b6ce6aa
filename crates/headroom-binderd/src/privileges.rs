//! What keeps the daemon prompt when memory and CPU are short, and what is lost without it.

/// Real-time priority of the event loop: before all ordinary tasks, behind every other real-time one.
const FIFO_PRIORITY: i32 = 1;

/// Takes what there is; returns what is lost, a sentence each.
pub fn take() -> Vec<String> {
    let prompt = daemon::be_prompt(FIFO_PRIORITY).map_err(|errno| {
        format!("no real-time priority ({errno}): on a busy machine calls wait for a time slice")
    });
    let locked = daemon::lock_memory().map_err(|errno| {
        format!("cannot lock the daemon's memory ({errno}): under heavy swapping calls may be late")
    });
    let spared = daemon::be_spared_by_the_kernel().map_err(|error| {
        format!(
            "cannot lower oom_score_adj ({error}): the kernel's own OOM killer may choose the daemon, and with it all \
             calls"
        )
    });
    [prompt, locked, spared].into_iter().filter_map(Result::err).collect()
}
