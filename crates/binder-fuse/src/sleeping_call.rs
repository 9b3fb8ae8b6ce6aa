//! The first argument of the system call in which a thread sleeps, from `/proc/TID/syscall`.

use std::time::Duration;

/// Contents of the file of a thread that does not sleep.
const RUNNING: &str = "running";
/// A thread that has just sent us its request may not sleep yet: it needs a CPU for some
/// microseconds.
const ATTEMPTS: u32 = 20;
const PAUSE: Duration = Duration::from_micros(200);

/// `None`: the thread sleeps in no call.
pub(crate) fn first_argument(tid: u32) -> Option<u64> {
    parse(&read(tid))
}

/// Of a thread that is about to sleep. `None`: it does not in time, or sleeps in no call.
pub(crate) fn await_first_argument(tid: u32) -> Option<u64> {
    for _ in 0..ATTEMPTS {
        let text = read(tid);
        if text.trim_end() != RUNNING {
            return parse(&text);
        }
        std::thread::sleep(PAUSE);
    }
    None
}

fn read(tid: u32) -> String {
    std::fs::read_to_string(format!("/proc/{tid}/syscall")).unwrap_or_default()
}

/// Reads `number 0xARGUMENT ...`; the number is -1 if the thread is in no call.
fn parse(text: &str) -> Option<u64> {
    let mut fields = text.split_ascii_whitespace();
    fields.next()?.parse::<u64>().ok()?;
    u64::from_str_radix(fields.next()?.strip_prefix("0x")?, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_argument_of_a_call_is_read_while_the_thread_sleeps_in_it() {
        let text = "29 0x11 0xc0306201 0xffffd0c8a2f8 0x0 0x0 0x0 0xffffd0c8a2a0 0xffff9b5e0d1c\n";
        assert_eq!(parse(text), Some(0x11));
        assert_eq!(parse("-1 0xffffd0c8a2a0 0xffff9b5e0d1c\n"), None);
        assert_eq!(parse(RUNNING), None);
    }
}
