//! Calls of a 32-bit process: a 64-bit process can make its system calls.

use std::os::fd::{AsFd, AsRawFd};

use binder_client::Client;
use binder_uapi::{BinderTransactionData, BinderWriteRead, Command, Return, ReturnReader};
use zerocopy::{FromBytes, Immutable, IntoBytes};

use crate::common::{Daemon, cannot_mount, open};

const BINDER_WRITE_READ: u32 = 0xc030_6201;
const BINDER_VERSION: u32 = 0xc004_6209;
/// BINDER_WRITE_READ of protocol 7.
const BINDER_WRITE_READ_32: u32 = 0xc018_6201;

/// A page below 4 GiB, for the arguments.
struct LowPage(*mut u8);

impl LowPage {
    fn new() -> Self {
        use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};
        let flags = MapFlags::PRIVATE | MapFlags::from_bits_retain(libc::MAP_32BIT as u32);
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping.
        let page = unsafe { mmap_anonymous(std::ptr::null_mut(), 4096, protection, flags) };
        Self(page.unwrap().cast())
    }

    /// The 32-bit `ioctl`; `None`: the kernel has no such calls.
    fn ioctl<T: FromBytes + IntoBytes + Immutable>(
        &self,
        client: &Client,
        request: u32,
        argument: &mut T,
    ) -> Option<i32> {
        let mut result: i32 = 54; // ioctl
        // SAFETY: the argument is smaller than the page; the call reads and writes it there, and
        // rbx is restored.
        unsafe {
            self.0.copy_from(argument.as_bytes().as_ptr(), size_of::<T>());
            std::arch::asm!(
                "xchg rbx, {fd}", "int 0x80", "xchg rbx, {fd}",
                fd = inout(reg) client.as_fd().as_raw_fd() as u64 => _,
                inout("eax") result,
                in("ecx") request,
                in("edx") self.0 as u32,
                out("r8") _, out("r9") _, out("r10") _, out("r11") _,
            );
            let after = std::slice::from_raw_parts(self.0, size_of::<T>());
            *argument = T::read_from_bytes(after).unwrap();
        }
        (result != -libc::ENOSYS).then_some(result)
    }
}

/// Makes a call and returns the reply's data.
fn call(page: &LowPage, client: &Client, data: &[u8]) -> Vec<u8> {
    let transaction = BinderTransactionData {
        code: 1,
        data_size: data.len() as u64,
        buffer: data.as_ptr() as u64,
        ..BinderTransactionData::default()
    };
    let mut commands = Vec::new();
    Command::Transaction { data: transaction, buffers_size: None }.write_to(&mut commands);
    let mut returns = [0_u8; 512];
    let mut bwr = BinderWriteRead {
        write_size: commands.len() as u64,
        write_buffer: commands.as_ptr() as u64,
        read_size: returns.len() as u64,
        read_buffer: returns.as_mut_ptr() as u64,
        ..BinderWriteRead::default()
    };
    loop {
        bwr.read_consumed = 0;
        assert_eq!(page.ioctl(client, BINDER_WRITE_READ, &mut bwr), Some(0));
        assert_eq!(bwr.write_consumed, bwr.write_size);
        let read = std::hint::black_box(&returns[..bwr.read_consumed as usize]);
        for item in ReturnReader::new(read) {
            match item.unwrap() {
                Return::Noop | Return::TransactionComplete => {}
                Return::Reply(reply) => {
                    // SAFETY: the driver's buffer, which is ours until it is freed.
                    let data = unsafe {
                        std::slice::from_raw_parts(
                            reply.buffer as *const u8,
                            reply.data_size as usize,
                        )
                    };
                    return data.to_vec();
                }
                other => panic!("{other:?}"),
            }
        }
    }
}

#[test]
fn a_32_bit_process_makes_calls_and_protocol_7_is_refused() {
    if cannot_mount() {
        return;
    }
    let daemon = Daemon::start();
    let _service = daemon.client("echo");
    let (page, client) = (LowPage::new(), open(daemon.binder()));
    let mut version = 0_i32;
    let Some(result) = page.ioctl(&client, BINDER_VERSION, &mut version) else {
        return test_support::skip("the kernel has no 32-bit system calls");
    };
    assert_eq!((result, version), (0, 8));
    assert_eq!(call(&page, &client, b"thirty-two"), b"thirty-two");
    let refused = page.ioctl(&client, BINDER_WRITE_READ_32, &mut [0_u8; 24]);
    assert_eq!(refused, Some(-libc::EINVAL));
}
