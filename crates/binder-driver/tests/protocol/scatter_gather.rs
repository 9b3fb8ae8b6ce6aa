//! `BINDER_TYPE_PTR` objects and their fix-ups.

use binder_driver::{Caller, Errno};
use binder_uapi::*;
use zerocopy::IntoBytes;

use crate::common::*;

const CHILD: u32 = BINDER_BUFFER_FLAG_HAS_PARENT;

fn pointer(address: u64, length: u64, flags: u32, parent: u64, offset: u64) -> BinderBufferObject {
    let ty = BINDER_TYPE_PTR;
    BinderBufferObject { ty, flags, buffer: address, length, parent, parent_offset: offset }
}

/// Address (0 = a mapped one), length, flags, parent, offset in the parent.
type Pointer = (u64, u64, u32, u64, u64);

/// A parcel of pointer objects, with extra space for all of them.
fn gathered(objects: &[BinderBufferObject]) -> Parcel {
    let parcel = objects.iter().fold(Parcel::default(), |parcel, object| parcel.object(object));
    let size = objects.iter().map(|object| object.length.next_multiple_of(8)).sum();
    Parcel { buffers_size: Some(size), ..parcel }
}

fn received(world: &World, caller: Caller, at: &BinderTransactionData) -> Vec<BinderBufferObject> {
    use zerocopy::FromBytes;
    let bytes = world.data(caller, at);
    bytes.chunks(40).map(|c| BinderBufferObject::read_from_bytes(c).unwrap()).collect()
}

#[test]
fn buffers_are_copied_and_pointers_to_them_fixed_up() {
    let (mut world, manager, [client]) = World::with_manager();
    let parent = world.place(client, &[0x11; 24]);
    let child = world.place(client, b"child");
    let objects = [pointer(parent, 24, 0, 0, 0), pointer(child, 5, CHILD, 0, 16)];
    let call = world.call(client, 0, &gathered(&objects));
    world.write(client, &[call]);
    let request = world.read(manager).parcel();
    let seen = received(&world, manager, &request);
    assert_eq!(world.mapped(manager, seen[1].buffer, 5), b"child");
    let parent = world.mapped(manager, seen[0].buffer, 24);
    assert_eq!(parent[..16], [0x11; 16]);
    assert_eq!(parent[16..], *seen[1].buffer.as_bytes());
}

#[test]
fn broken_buffers_fail_the_call() {
    let far = (1 << 40, 8);
    let cases: [(&str, Errno, Vec<Pointer>); 8] = [
        ("a parent that comes later", Errno::EINVAL, vec![(0, 16, CHILD, 1, 0), (0, 16, 0, 0, 0)]),
        ("a parent that is itself", Errno::EINVAL, vec![(0, 16, CHILD, 0, 0)]),
        ("a slot outside the parent", Errno::EINVAL, vec![(0, 16, 0, 0, 0), (0, 8, CHILD, 0, 9)]),
        ("a parent without room", Errno::EINVAL, vec![(0, 4, 0, 0, 0), (0, 8, CHILD, 0, 0)]),
        ("a huge slot", Errno::EINVAL, vec![(0, 16, 0, 0, 0), (0, 8, CHILD, 0, u64::MAX - 3)]),
        (
            "an earlier slot of the same parent",
            Errno::EINVAL,
            vec![(0, 16, 0, 0, 0), (0, 8, CHILD, 0, 8), (0, 8, CHILD, 0, 0)],
        ),
        (
            "a parent that is no ancestor of the last",
            Errno::EINVAL,
            vec![(0, 16, 0, 0, 0), (0, 16, 0, 0, 0), (0, 8, CHILD, 0, 0)],
        ),
        ("an address that is not there", Errno::EINVAL, vec![(far.0, far.1, 0, 0, 0)]),
    ];
    for (what, errno, objects) in cases {
        let (mut world, manager, [client]) = World::with_manager();
        let source = world.place(client, &[0; 64]);
        let objects: Vec<_> = objects
            .into_iter()
            .map(|(at, len, flags, parent, offset)| {
                pointer(if at == 0 { source } else { at }, len, flags, parent, offset)
            })
            .collect();
        let call = world.call(client, 0, &gathered(&objects));
        assert_eq!(world.run(client, &[call]).work_returns(), [Return::FailedReply], "{what}");
        let error = world.driver.extended_error(client).unwrap();
        assert_eq!(error.param, -errno.code(), "{what}");
        assert_eq!(world.read(manager).result, Err(Errno::EAGAIN), "{what}");
    }
}

#[test]
fn buffers_larger_than_announced_fail_the_call() {
    for (announced, length) in [(8, 16), (0, 8), (8, u64::MAX), (12, 8)] {
        let (mut world, _, [client]) = World::with_manager();
        let source = world.place(client, &[0; 64]);
        let parcel = gathered(&[pointer(source, 0, 0, 0, 0)]);
        let mut parcel = Parcel { buffers_size: Some(announced), ..parcel };
        parcel.data[16..24].copy_from_slice(length.as_bytes());
        let call = world.call(client, 0, &parcel);
        assert_eq!(world.run(client, &[call]).work_returns(), [Return::FailedReply], "{announced}");
    }
}
