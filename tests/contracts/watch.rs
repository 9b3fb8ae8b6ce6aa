//! The contract of [`Watch`]. Every test program that has an implementation includes this file.

#![allow(dead_code, reason = "a watch of a test fulfils a part")]

use memory_ledger::{AccountId, ProcessId};
use memory_watch::{
    Correction, NotifierError, Precision, ProcessSample, SlotLimit, UnarmedKills, Usage, Watch,
};

/// A limit that no process reaches.
const UNREACHED: SlotLimit = SlotLimit { soft_pages: 1 << 39, hard_pages: 1 << 40 };

/// Limits of an account that has none yet.
pub fn check_limits(watch: &mut dyn Watch, account: AccountId) {
    assert_eq!(watch.usage(account), None);
    let refused = [
        watch.arm(account, None),
        watch.set_unarmed_kills(account, UnarmedKills::Forbidden),
        watch.set_precision(account, Precision::Exact),
        watch.correct(account, Correction::default()),
        watch.take_latch(account).map(drop),
    ];
    for result in refused {
        let error = result.expect_err("there is no limit");
        assert!(matches!(error, NotifierError::NoSuchLimit(of) if of == account), "{error}");
    }
    watch.release_latch(account);
    watch.clear_limit(account).expect("nothing to clear is no error");
    for (soft_pages, hard_pages) in [(0, 0), (1, 0), (2, 1)] {
        let bad = SlotLimit { soft_pages, hard_pages };
        let error = watch.set_limit(account, bad).expect_err("a bad limit");
        assert!(matches!(error, NotifierError::BadLimit { .. }), "{error}");
        assert_eq!(watch.usage(account), None, "{bad:?}");
    }
    for limit in [UNREACHED, SlotLimit { soft_pages: 1, hard_pages: 1 << 40 }] {
        watch.set_limit(account, limit).unwrap();
        let usage = watch.usage(account).expect("it has a limit");
        let Usage { latched, hard_crossings, kills, dying_pages, .. } = usage;
        assert_eq!((latched, hard_crossings, kills, dying_pages), (false, 0, 0, 0));
    }
    assert!(watch.take_latch(account).unwrap());
    watch.clear_limit(account).unwrap();
    assert_eq!(watch.usage(account), None);
    watch.set_limit(account, UNREACHED).unwrap();
    assert!(!watch.usage(account).unwrap().latched, "the latch ends with its account");
    watch.clear_limit(account).unwrap();
}

/// The latch of an account with a limit above its usage, and one of its processes.
pub fn check_latch(watch: &mut dyn Watch, account: AccountId, member: ProcessId) {
    let usage = |watch: &dyn Watch| watch.usage(account).expect("it has a limit");
    watch.arm(account, Some(member)).unwrap();
    watch.arm(account, None).unwrap();
    watch.set_unarmed_kills(account, UnarmedKills::Forbidden).unwrap();
    watch.set_precision(account, Precision::Exact).unwrap();
    for _ in 0..2 {
        assert!(!usage(watch).latched);
        assert!(watch.take_latch(account).unwrap());
        assert!(usage(watch).latched);
        assert!(!watch.take_latch(account).unwrap(), "a victim is dying already");
        watch.count_dying(account, member).unwrap();
        let Usage { latched, pages, dying_pages, .. } = usage(watch);
        assert!(latched && (1..=pages).contains(&dying_pages), "{dying_pages} of {pages}");
        watch.release_latch(account);
        assert_eq!(usage(watch).dying_pages, 0, "dying until the latch is released");
    }
    watch.drain(&mut |_| ());
    watch.drain(&mut |event| panic!("nothing has happened since: {event:?}"));
    watch.reconcile().unwrap();
    assert!(!usage(watch).latched);
}

/// The list of processes, which contains `member`; returns its sample.
pub fn check_list(watch: &mut dyn Watch, member: ProcessId) -> ProcessSample {
    let gone = ProcessSample { tgid: u32::MAX, ..ProcessSample::default() };
    let mut listed = vec![gone];
    watch.processes(&mut listed).unwrap();
    assert!(listed.is_sorted_by(|one, next| one.tgid < next.tgid), "{listed:?}");
    assert!(!listed.contains(&gone), "the list is replaced");
    assert_eq!(watch.charged(&gone).unwrap(), None);
    *listed.iter().find(|sample| sample.id() == member).expect("it is listed")
}

/// The charge of one process of an account.
pub fn check_charge(watch: &mut dyn Watch, account: AccountId, member: ProcessId) {
    let sample = check_list(watch, member);
    let charged = watch.charged(&sample).unwrap().expect("it has not exited");
    assert_eq!(charged.account, account);
    let (start_number, mm_id) = (sample.start_number + 1, sample.mm_id + 1);
    let reused = ProcessSample { start_number, mm_id, ..sample };
    assert_eq!(watch.charged(&reused).unwrap(), None, "another process has its pid");
}
