//! What one user may have.

use binder_driver::*;
use binder_uapi::*;

use crate::common::*;

const MOST_OPENS: usize = 16 << 10;

#[test]
fn a_user_with_too_many_opens_gets_no_more_and_others_do() {
    let (mut world, context) = World::new();
    let opener = |uid| Opener { pid: 1, euid: Uid(uid) };
    let mut opens: Vec<_> =
        (0..MOST_OPENS).map(|_| world.driver.open(context, opener(1000)).unwrap()).collect();
    assert_eq!(world.driver.open(context, opener(1000)), Err(Errno::EMFILE));
    assert!(world.driver.open(context, opener(1001)).is_ok());
    world.driver.release(&mut world.host, opens.pop().unwrap());
    assert!(world.driver.open(context, opener(1000)).is_ok(), "one was closed");
    world.driver.check_invariants().unwrap();
}

#[test]
fn what_a_user_had_is_free_again_when_its_opens_are_gone() {
    let (mut world, manager, [client]) = World::with_manager();
    let call = world.call(client, 0, &Parcel::default().binder(0x100).binder(0x200));
    world.park(client, &[call]);
    let parcel = world.read(manager).parcel();
    let handle = world.objects(manager, &parcel)[0].handle();
    let request = BinderHandleCookie { handle, cookie: 1 };
    world.write(
        manager,
        &[Command::RequestDeathNotification(request), Command::RequestFreezeNotification(request)],
    );
    world.release(client);
    world.release(manager);
    assert!(world.driver.is_empty(), "{:?}", world.driver.snapshot());
}
