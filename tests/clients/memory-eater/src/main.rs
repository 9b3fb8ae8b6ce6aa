//! `memory-eater UID MIB`: becomes user UID (no account needed), touches MIB MiB page by page, says
//! so, and waits to be killed. It dies with the process that started it.

use rustix::process::{Gid, Signal, Uid, set_parent_process_death_signal};
use rustix::thread::{set_thread_gid, set_thread_groups, set_thread_uid};

const MIB: usize = 1 << 20;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [uid, mib] = arguments.as_slice() else { return Err("usage: memory-eater UID MIB".into()) };
    let (uid, mib): (u32, usize) = (uid.parse()?, mib.parse()?);
    // There is one thread, so what holds for it holds for the process.
    set_thread_groups(&[])?;
    set_thread_gid(Gid::from_raw(uid))?;
    set_thread_uid(Uid::from_raw(uid))?;
    // After the change of user, which forgets it.
    set_parent_process_death_signal(Some(Signal::KILL))?;
    let mut eaten = Vec::with_capacity(mib);
    for _ in 0..mib {
        // Not zero: zeroed memory is not touched before it is used.
        eaten.push(vec![1_u8; MIB]);
    }
    println!("{} has {mib} MiB", std::process::id());
    loop {
        std::thread::park();
    }
}
