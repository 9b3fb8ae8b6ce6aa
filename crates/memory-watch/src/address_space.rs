//! Finds processes that share their memory, where no BPF program reports it.

use std::cmp::Ordering;
use std::collections::HashMap;

use crate::watch::ProcessSample;

/// `KCMP_VM` of the kernel: compares two processes' address spaces.
const KCMP_VM: i32 = 1;

/// Sets `mm_id` of processes that share an address space, to the pid of the first of them.
///
/// `stacks` has the start of the stack of each sample. Processes that share their memory share that
/// as well, and each executed program has another one, so few processes have to be compared. Each
/// is searched among the known ones by bisection: the kernel orders address spaces. If that order
/// changes meanwhile, a process is missed until the next scan.
pub fn name_shared(samples: &mut [ProcessSample], stacks: &[u64]) {
    let mut by_stack: HashMap<u64, Vec<usize>> = HashMap::new();
    for at in (0..samples.len()).filter(|at| stacks[*at] != 0) {
        by_stack.entry(stacks[at]).or_default().push(at);
    }
    for places in by_stack.into_values().filter(|places| places.len() > 1) {
        // Sorted in the kernel's order.
        let mut known: Vec<usize> = Vec::with_capacity(places.len());
        for at in places {
            let pid = samples[at].tgid;
            let mut comparable = true;
            let found = known.binary_search_by(|other| {
                let order = compare(samples[*other].tgid, pid);
                comparable &= order.is_some();
                order.unwrap_or(Ordering::Less)
            });
            match found {
                Ok(first) if comparable => {
                    let first = known[first];
                    let id = u64::from(samples[first].tgid);
                    (samples[first].mm_id, samples[at].mm_id) = (id, id);
                }
                Err(place) if comparable => known.insert(place, at),
                _ => {}
            }
        }
    }
}

/// The kernel's order of the address spaces of two processes; `None`: it does not report it.
fn compare(a: u32, b: u32) -> Option<Ordering> {
    // SAFETY: kcmp takes numbers, and no memory of ours.
    match unsafe { libc::syscall(libc::SYS_kcmp, a, b, KCMP_VM, 0, 0) } {
        0 => Some(Ordering::Equal),
        1 => Some(Ordering::Less),
        2 => Some(Ordering::Greater),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(pid: u32) -> ProcessSample {
        ProcessSample { tgid: pid, ..ProcessSample::default() }
    }

    /// A process that shares our memory, until it is killed.
    fn sharer() -> i32 {
        extern "C" fn wait(_: *mut libc::c_void) -> i32 {
            loop {
                // SAFETY: pause takes nothing and touches no memory.
                unsafe { libc::pause() };
            }
        }
        let stack = vec![0u128; 4096].leak();
        let top = stack.as_mut_ptr_range().end.cast();
        let flags = libc::CLONE_VM | libc::SIGCHLD;
        // SAFETY: the child runs on a stack of its own, which is never freed, and only waits.
        let pid = unsafe { libc::clone(wait, top, flags, std::ptr::null_mut()) };
        assert!(pid > 0, "{}", std::io::Error::last_os_error());
        pid
    }

    #[test]
    fn processes_that_share_memory_have_the_name_of_the_first() {
        let sharers = [sharer(), sharer()];
        let mut other = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let pids = [sharers[0] as u32, sharers[1] as u32, other.id(), std::process::id()];
        let mut samples = pids.map(sample);
        // As if all of them had executed the same program.
        name_shared(&mut samples, &[7, 7, 7, 7]);
        let first = u64::from(pids[0]);
        assert_eq!(samples.each_ref().map(|sample| sample.mm_id), [first, first, 0, first]);
        let mut samples = pids.map(sample);
        name_shared(&mut samples, &[7, 8, 7, 0]);
        assert_eq!(samples.each_ref().map(|sample| sample.mm_id), [0; 4]);
        other.kill().unwrap();
        other.wait().unwrap();
        for pid in sharers {
            // SAFETY: these are children of ours, not waited for yet.
            unsafe {
                libc::kill(pid, libc::SIGKILL);
                libc::waitpid(pid, std::ptr::null_mut(), 0);
            }
        }
    }

    #[test]
    fn an_exited_process_shares_memory_with_none() {
        let mut samples = [sample(u32::MAX / 2), sample(std::process::id())];
        name_shared(&mut samples, &[7, 7]);
        assert_eq!(samples.each_ref().map(|sample| sample.mm_id), [0, 0]);
    }
}
