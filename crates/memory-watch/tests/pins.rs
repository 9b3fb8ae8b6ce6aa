//! Accounts that outlive the notifier.

mod support;

use std::path::PathBuf;

use libbpf_rs::{MapCore, MapFlags, MapHandle};
use memory_ledger::{AccountId, Count, GroupId, Uid};
use memory_watch::{Charge, Notifier, SlotLimit, Watch};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};

const UID: u32 = 62890;

fn user(number: u32) -> AccountId {
    AccountId::User(Uid(UID + number))
}

/// A BPF filesystem for one test, unmounted on drop.
struct BpfFilesystem(tempfile::TempDir);

impl BpfFilesystem {
    fn new() -> Option<Self> {
        support::notifier()?;
        let dir = tempfile::tempdir().unwrap();
        match mount("bpf", dir.path(), "bpf", MountFlags::empty(), None) {
            Ok(()) => Some(Self(dir)),
            Err(errno) => {
                test_support::skip(format_args!("cannot mount a BPF filesystem: {errno}"));
                None
            }
        }
    }

    fn root(&self) -> PathBuf {
        self.0.path().join("headroom")
    }

    fn map(&self, name: &str) -> MapHandle {
        let folder = std::fs::read_dir(self.root()).unwrap().next().unwrap().unwrap().path();
        MapHandle::from_pinned_path(folder.join(name)).unwrap()
    }
}

impl Drop for BpfFilesystem {
    fn drop(&mut self) {
        let _ = unmount(self.0.path(), UnmountFlags::DETACH);
    }
}

fn limit(pages: u64) -> SlotLimit {
    SlotLimit { soft_pages: pages / 2, hard_pages: pages }
}

/// Drops a notifier that leaves its accounts behind, like one that was killed.
fn leave(filesystem: &BpfFilesystem, users: &[(u32, u64)]) {
    let mut notifier = Notifier::load_pinned(&filesystem.root()).unwrap();
    for (number, memo) in users {
        notifier.set_limit(user(*number), limit(support::FAR_AWAY)).unwrap();
        notifier.store_memo(user(*number), *memo).unwrap();
    }
    notifier.leave_behind();
}

#[test]
fn users_limits_and_memos_are_inherited() {
    let Some(filesystem) = BpfFilesystem::new() else { return };
    leave(&filesystem, &[(0, 7), (1, 8)]);
    let mut notifier = Notifier::load_pinned(&filesystem.root()).unwrap();
    let found = notifier.inherited();
    let adopted: Vec<_> = found.iter().map(|it| (it.account, it.limit, it.memo)).collect();
    let far = limit(support::FAR_AWAY);
    assert_eq!(adopted, [(user(0), far, 7), (user(1), far, 8)]);
    assert!(notifier.is_attached() && notifier.usage(user(0)).is_some());
    for number in [0, 1] {
        notifier.clear_limit(user(number)).unwrap();
    }
    assert!(!notifier.is_attached());
    drop(notifier);
    assert!(!filesystem.root().exists());
}

#[test]
fn users_of_an_account_share_it_after_a_takeover() {
    let Some(filesystem) = BpfFilesystem::new() else { return };
    let group = AccountId::Group(GroupId::new(0x4321).unwrap());
    let (stays, leaves) = (Uid(UID + 30), Uid(UID + 31));
    let of = |uids: &[Uid]| Charge { uids: uids.to_vec(), count: Count::of(["anon"]) };
    let mut notifier = Notifier::load_pinned(&filesystem.root()).unwrap();
    notifier.charge(group, of(&[stays, leaves])).unwrap();
    notifier.set_limit(group, limit(support::FAR_AWAY)).unwrap();
    notifier.leave_behind();
    drop(notifier);
    let mut hogs = [stays, leaves].map(support::Hog::start);
    for hog in &mut hogs {
        hog.execute("touch 1000");
        hog.execute("shmem 1000");
    }
    let mut notifier = Notifier::load_pinned(&filesystem.root()).unwrap();
    let found: Vec<AccountId> = notifier.inherited().iter().map(|it| it.account).collect();
    assert_eq!(found, [group]);
    let pages = |notifier: &Notifier| notifier.usage(group).unwrap().pages;
    assert!((2000..3900).contains(&pages(&notifier)), "{} pages", pages(&notifier));
    // The next daemon sets its configuration; a user has left meanwhile, and has a limit of its
    // own.
    notifier.set_limit(leaves.into(), limit(support::FAR_AWAY)).unwrap();
    notifier.charge(group, of(&[stays])).unwrap();
    assert!((1000..1950).contains(&pages(&notifier)), "{} pages", pages(&notifier));
    assert!(notifier.usage(leaves.into()).unwrap().pages >= 2000);
}

#[test]
fn accounts_that_make_no_sense_are_replaced_by_fresh_ones() {
    let Some(filesystem) = BpfFilesystem::new() else { return };
    let uid = (UID + 10).to_ne_bytes();
    for wrong_slot in [5000u32, 3] {
        leave(&filesystem, &[(10, 0)]);
        let slots = filesystem.map("slot_of_uid");
        slots.update(&uid, &wrong_slot.to_ne_bytes(), MapFlags::ANY).unwrap();
        drop(slots);
        let notifier = Notifier::load_pinned(&filesystem.root()).unwrap();
        assert_eq!(notifier.inherited(), []);
        assert_eq!(filesystem.map("slot_of_uid").keys().count(), 0, "slot {wrong_slot}");
    }
}

#[test]
fn pins_of_another_version_stay_until_their_limits_are_set_again_and_foreign_files_stay() {
    let Some(filesystem) = BpfFilesystem::new() else { return };
    leave(&filesystem, &[(20, 0)]);
    let folder = std::fs::read_dir(filesystem.root()).unwrap().next().unwrap().unwrap().path();
    let of_another = filesystem.root().join("0123456789abcdef");
    std::fs::rename(&folder, &of_another).unwrap();
    let foreign = filesystem.root().join("foreign");
    std::fs::create_dir(&foreign).unwrap();
    let mut notifier = Notifier::load_pinned(&filesystem.root()).unwrap();
    assert_eq!(notifier.inherited(), []);
    assert!(of_another.exists(), "its program enforces limits");
    notifier.end_limits_of_other_versions();
    assert!(!of_another.exists());
    drop(notifier);
    assert!(foreign.exists() && !folder.exists());
}

#[test]
fn a_folder_of_another_user_is_refused() {
    let Some(filesystem) = BpfFilesystem::new() else { return };
    std::fs::create_dir(filesystem.root()).unwrap();
    std::os::unix::fs::chown(filesystem.root(), Some(UID), None).unwrap();
    let error = Notifier::load_pinned(&filesystem.root()).err().unwrap().to_string();
    assert!(error.contains("others may write to it"), "{error}");
}
