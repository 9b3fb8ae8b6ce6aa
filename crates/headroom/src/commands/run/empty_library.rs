//! A library without contents, for 32-bit programs: their loader prints an error if it cannot load
//! what is preloaded.

/// Sizes of the parts of a 32-bit ELF file, from elf(5).
const HEADER: u32 = 52;
const PROGRAM_HEADER: u32 = 32;
const SYMBOL: u32 = 16;
/// Not executable: the file system may forbid execution.
const READ_WRITE: u32 = libc::PF_R | libc::PF_W;
/// The largest page of any supported machine.
const ALIGNMENT: u32 = 0x1_0000;
/// The version of ARM's ABI that all 32-bit ARM distributions have; no flags on other machines.
const EF_ARM_EABI5: u32 = 0x0500_0000;

/// The ELF file for `machine` (`e_machine`), which is little-endian.
pub fn empty_library(machine: u16) -> Vec<u8> {
    // The segments: all of the file, its dynamic section, and a stack that is not executable.
    const SEGMENTS: u32 = 3;
    const DYNAMIC: u32 = HEADER + SEGMENTS * PROGRAM_HEADER;
    const DYNAMIC_LEN: u32 = 6 * 8;
    const HASH: u32 = DYNAMIC + DYNAMIC_LEN;
    const HASH_LEN: u32 = 4 * 4;
    const SYMBOLS: u32 = HASH + HASH_LEN;
    const STRINGS: u32 = SYMBOLS + SYMBOL;
    const END: u32 = STRINGS + 1;

    let mut file = Vec::with_capacity(END as usize);
    // ELFCLASS32, ELFDATA2LSB, EV_CURRENT, ELFOSABI_NONE.
    file.extend_from_slice(b"\x7fELF\x01\x01\x01\0\0\0\0\0\0\0\0\0");
    let shorts = |file: &mut Vec<u8>, values: &[u16]| {
        values.iter().for_each(|value| file.extend_from_slice(&value.to_le_bytes()));
    };
    let words = |file: &mut Vec<u8>, values: &[u32]| {
        values.iter().for_each(|value| file.extend_from_slice(&value.to_le_bytes()));
    };
    // After these: version, entry, program headers, section headers, flags.
    shorts(&mut file, &[libc::ET_DYN, machine]);
    let flags = if machine == libc::EM_ARM { EF_ARM_EABI5 } else { 0 };
    words(&mut file, &[1, 0, HEADER, 0, flags]);
    shorts(&mut file, &[HEADER as u16, PROGRAM_HEADER as u16, SEGMENTS as u16, 40, 0, 0]);
    // Type, offset, addresses, lengths, flags, alignment.
    let segments: [[u32; 8]; SEGMENTS as usize] = [
        [libc::PT_LOAD, 0, 0, 0, END, END, READ_WRITE, ALIGNMENT],
        [libc::PT_DYNAMIC, DYNAMIC, DYNAMIC, DYNAMIC, DYNAMIC_LEN, DYNAMIC_LEN, READ_WRITE, 4],
        [libc::PT_GNU_STACK, 0, 0, 0, 0, 0, READ_WRITE, 16],
    ];
    words(&mut file, segments.as_flattened());
    // DT_HASH, DT_STRTAB, DT_SYMTAB, DT_STRSZ, DT_SYMENT, DT_NULL.
    words(&mut file, &[4, HASH, 5, STRINGS, 6, SYMBOLS, 10, 1, 11, SYMBOL, 0, 0]);
    // One bucket and one chain, without symbols but the first one, which is never one.
    words(&mut file, &[1, 1, 0, 0]);
    file.resize(END as usize, 0);
    file
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    /// A loader for 32-bit programs of another machine, by an emulator.
    #[test]
    fn a_loader_loads_it_without_a_message() {
        let folder = tempfile::tempdir().unwrap();
        let (source, program, library) = (
            folder.path().join("main.c"),
            folder.path().join("main"),
            folder.path().join("library.so"),
        );
        std::fs::write(&source, "int main(void) { return 0; }").unwrap();
        std::fs::write(&library, empty_library(libc::EM_ARM)).unwrap();
        let mut built = Command::new("arm-linux-gnueabihf-gcc");
        built.arg("-o").arg(&program).arg(&source);
        match built.status() {
            Ok(status) => assert!(status.success()),
            Err(error) => {
                return test_support::skip(format_args!("arm-linux-gnueabihf-gcc: {error}"));
            }
        }
        let preload = |library: &std::path::Path| {
            let mut command = Command::new("qemu-arm");
            command.args(["-L", "/usr/arm-linux-gnueabihf", "-E"]);
            command.arg(format!("LD_PRELOAD={}", library.display())).arg(&program);
            let ended = command.output().expect("qemu-arm (package qemu-user)");
            assert!(ended.status.success(), "{ended:?}");
            String::from_utf8(ended.stderr).unwrap()
        };
        assert_eq!(preload(&library), "");
        assert!(preload(folder.path()).contains("cannot be preloaded"));
    }
}
