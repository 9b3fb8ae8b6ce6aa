//! Preloads the library of rings into the programs of a session.
//!
//! The GNU C library's loader replaces `$LIB` by a folder's name, another one in programs for 32
//! bits. Other loaders do not, so they find no library, and say nothing.

use std::ffi::OsString;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use anyhow::Context;

use crate::commands::preload;

/// In the session's /dev: a folder for each value of `$LIB`.
const FOLDER: &str = "/dev/headroom/rings";
/// Its runtime refuses to start a program that preloads another library, unless this is set.
const SANITIZER_VARIABLE: &str = "ASAN_OPTIONS";
const SANITIZER_OPTION: &str = "verify_asan_link_order=0";
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

/// Values of `$LIB` for this machine's programs: of Debian, and of other distributions.
struct Folders {
    of_64_bit: &'static [&'static str],
    of_32_bit: &'static [&'static str],
    /// `e_machine` of 32-bit programs.
    machine_32: u16,
}

#[cfg(not(target_arch = "aarch64"))]
const FOLDERS: Folders = Folders {
    of_64_bit: &["lib/x86_64-linux-gnu", "lib64"],
    of_32_bit: &["lib/i386-linux-gnu", "lib32"],
    machine_32: libc::EM_386,
};
#[cfg(target_arch = "aarch64")]
const FOLDERS: Folders = Folders {
    of_64_bit: &["lib/aarch64-linux-gnu", "lib64"],
    of_32_bit: &["lib/arm-linux-gnueabihf", "lib/arm-linux-gnueabi", "lib32"],
    machine_32: libc::EM_ARM,
};

/// Which programs have `lib` as `$LIB`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lib {
    /// On Arch Linux, where 32-bit programs have `lib32`.
    Of64Bit,
    /// On Fedora, where 64-bit programs have `lib64`.
    Of32Bit,
}

impl Lib {
    fn of_this_machine() -> Self {
        let resolved = |path| Path::new(path).canonicalize().ok();
        let are_two = resolved("/lib64") != resolved("/lib");
        if are_two && Path::new("/lib64/libc.so.6").exists() {
            Self::Of32Bit
        } else {
            Self::Of64Bit
        }
    }
}

/// Makes the folders in the session's /dev.
pub fn build(library: &Path) -> anyhow::Result<()> {
    build_in(Path::new(FOLDER), library, Lib::of_this_machine())
        .with_context(|| format!("cannot make the links in {FOLDER}"))
}

fn build_in(root: &Path, library: &Path, lib: Lib) -> std::io::Result<()> {
    let file = |folder: &str| {
        let folder = root.join(folder);
        std::fs::create_dir_all(&folder).map(|()| folder.join(preload::RINGS))
    };
    for folder in FOLDERS.of_64_bit {
        symlink(library, file(folder)?)?;
    }
    let empty = empty_library(FOLDERS.machine_32);
    for folder in FOLDERS.of_32_bit {
        std::fs::write(file(folder)?, &empty)?;
    }
    match lib {
        Lib::Of64Bit => symlink(library, file("lib")?),
        Lib::Of32Bit => std::fs::write(file("lib")?, &empty),
    }
}

/// Sets the variables by which the command's programs load the library.
pub fn preload_in(command: &mut Command) {
    let library = format!("{FOLDER}/$LIB/{}", preload::RINGS);
    command.env(preload::VARIABLE, preload::before_others(library.as_ref()));
    let mut options = OsString::from(SANITIZER_OPTION);
    if let Some(already) = std::env::var_os(SANITIZER_VARIABLE) {
        options.push(":");
        options.push(already);
    }
    command.env(SANITIZER_VARIABLE, options);
}

/// A library without contents for 32-bit programs of `machine` (`e_machine`), which are
/// little-endian: their loader prints an error if it cannot load what is preloaded.
fn empty_library(machine: u16) -> Vec<u8> {
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
    use super::*;

    #[test]
    fn each_value_of_lib_has_a_library() {
        for lib in [Lib::Of64Bit, Lib::Of32Bit] {
            let root = tempfile::tempdir().unwrap();
            build_in(root.path(), Path::new("/the/library.so"), lib).unwrap();
            let is_link = |folder: &str| {
                let file = root.path().join(folder).join("libbinder_ring_preload.so");
                std::fs::symlink_metadata(file).unwrap().is_symlink()
            };
            assert!(FOLDERS.of_64_bit.iter().all(|folder| is_link(folder)));
            assert!(!FOLDERS.of_32_bit.iter().any(|folder| is_link(folder)));
            assert_eq!(is_link("lib"), lib == Lib::Of64Bit);
        }
    }

    /// A loader for 32-bit programs of another machine, by an emulator.
    #[test]
    fn a_loader_loads_the_empty_library_without_a_message() {
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
        let preload = |library: &Path| {
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
