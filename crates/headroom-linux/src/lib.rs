//! Interfaces of Linux that neither `rustix` nor `libc` wraps, or only as plain system calls, and
//! that more than one crate needs.
//!
//! * [`clock`]: clocks in nanoseconds;
//! * [`descriptors`]: the table of file descriptors of this process;
//! * [`folders`]: folders with a mode that does not depend on the umask;
//! * [`kept_fd`]: file descriptors that stay open in the next executed program;
//! * [`mountinfo`]: parses `/proc/<pid>/mountinfo`;
//! * [`pass_rights`]: Unix sockets that refuse file descriptors;
//! * [`pidfd`]: facts about a process that its pidfd shows;
//! * [`sched`]: scheduling policy and priority of a thread, by `sched_setattr(2)`;
//! * [`sealed_memfd`]: memory that is shared with another process, whose length is fixed;
//! * [`timer`]: a timer for an epoll set, by `timerfd_create(2)`.

pub mod clock;
pub mod descriptors;
pub mod folders;
pub mod fuse_device;
pub mod kept_fd;
pub mod mountinfo;
pub mod pass_rights;
pub mod pidfd;
pub mod sched;
pub mod sealed_memfd;
pub mod timer;
