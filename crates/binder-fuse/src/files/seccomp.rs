//! Seccomp filters of receivers, where they cannot be suspended.

use std::io;

/// Fails if a thread has a filter that may end it for a call that we make in it: more filters than
/// this thread, which may have inherited those of a container too, and `known`, which allow them.
pub(super) fn check_filters(tid: u32, known: u32) -> io::Result<()> {
    let filters_of = |task: &str| {
        std::fs::read_to_string(format!("/proc/{task}/status")).map(|status| filters(&status))
    };
    if filters_of(&tid.to_string())? <= filters_of("thread-self")? + known {
        return Ok(());
    }
    Err(io::Error::other(
        "it has a seccomp filter, which only a daemon with CAP_SYS_ADMIN and without a filter of \
         its own can suspend",
    ))
}

/// Before Linux 5.9 the number is unknown: at least one.
fn filters(status: &str) -> u32 {
    let field = |name: &str| {
        let value = status.lines().find_map(|line| line.strip_prefix(name))?;
        value.trim().parse().ok()
    };
    field("Seccomp_filters:").or(field("Seccomp:")).unwrap_or(0).min(u32::MAX / 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filters_are_counted() {
        assert_eq!(filters("NoNewPrivs:\t1\nSeccomp:\t2\nSeccomp_filters:\t3\n"), 3);
        assert_eq!(filters("Seccomp:\t0\nSeccomp_filters:\t0\n"), 0);
        assert!(filters("Seccomp:\t2\n") > 0);
        assert_eq!(filters(""), 0, "a kernel without seccomp");
    }
}
