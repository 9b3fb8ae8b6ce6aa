//! Real user namespaces. Those made by root, and by another user, need root.

use std::io::{BufRead, BufReader};
use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use owners::{Owner, Uid, reader};

/// A process in a user namespace that `uid` created; killed on drop.
struct Contained(Child);

impl Contained {
    /// `None`: the user may not create a user namespace on this machine.
    fn start(uid: Uid) -> Option<Self> {
        if !test_support::privileged() {
            return None;
        }
        let mut command = Command::new("sh");
        command.args(["-c", "echo ready; exec sleep 60"]).stdout(Stdio::piped());
        // SAFETY: between fork and exec only system calls are made.
        unsafe {
            command.pre_exec(move || {
                if (uid != Uid::ROOT && libc::setresuid(uid.0, uid.0, uid.0) != 0)
                    || libc::unshare(libc::CLONE_NEWUSER) != 0
                {
                    return Err(std::io::Error::last_os_error());
                }
                Ok(())
            });
        }
        let mut child = match command.spawn() {
            Ok(child) => child,
            Err(error) => {
                test_support::skip(format_args!("no user namespaces here: {error}"));
                return None;
            }
        };
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n");
        Some(Self(child))
    }

    fn owner(&self, uid: Uid) -> Owner {
        let levels = reader::namespaces(Path::new("/proc"), self.0.id()).unwrap();
        assert_eq!(levels.len(), 1);
        Owner::of(uid, &levels)
    }
}

impl Drop for Contained {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_process_in_our_own_namespace_is_in_none_below_it() {
    assert_eq!(reader::namespaces(Path::new("/proc"), std::process::id()).unwrap(), []);
}

#[test]
fn a_process_that_is_gone_has_no_namespaces() {
    let error = reader::namespaces(Path::new("/proc"), u32::MAX / 2).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::ESRCH));
}

#[test]
fn a_users_namespace_belongs_to_that_user() {
    let user = Uid(61_900);
    let Some(contained) = Contained::start(user) else { return };
    assert_eq!(contained.owner(Uid(100_000)), Owner::User(user));
}

#[test]
fn a_namespace_that_root_created_is_an_owner_of_its_own() {
    let start = || Contained::start(Uid::ROOT);
    let (Some(one), Some(other)) = (start(), start()) else { return };
    let owner = one.owner(Uid::ROOT);
    assert!(matches!(owner, Owner::Namespace(_)), "{owner:?}");
    assert_ne!(owner, other.owner(Uid::ROOT));
}

#[test]
fn the_peer_of_a_socket_is_known_by_its_uid_and_pid() {
    let (ours, _theirs) = UnixStream::pair().unwrap();
    // SAFETY: a system call without arguments.
    let uid = Uid(unsafe { libc::geteuid() });
    let owner = reader::peer_owner(ours.as_fd(), std::process::id(), uid).unwrap();
    assert_eq!(owner, Owner::User(uid));
}

#[test]
fn a_peer_that_has_ended_has_no_owner() {
    let dir = std::env::temp_dir().join(format!("owners-{}", std::process::id()));
    let listener = UnixListener::bind(&dir).unwrap();
    let mut command = Command::new("true");
    let path = dir.clone();
    // SAFETY: the child allocates nothing that another thread could have locked: connecting copies
    // the path to the stack; the descriptor stays open until the child's end.
    unsafe {
        command.pre_exec(move || {
            std::mem::forget(UnixStream::connect(&path)?);
            Ok(())
        });
    }
    let mut child = command.spawn().unwrap();
    let (socket, _) = listener.accept().unwrap();
    std::fs::remove_file(&dir).unwrap();
    child.wait().unwrap();
    let error = reader::peer_owner(socket.as_fd(), child.id(), Uid(0)).unwrap_err();
    let gone = error.raw_os_error() == Some(libc::ESRCH)
        || error.kind() == std::io::ErrorKind::NotFound
        || error.raw_os_error() == Some(libc::EINVAL);
    assert!(gone, "{error}");
}
