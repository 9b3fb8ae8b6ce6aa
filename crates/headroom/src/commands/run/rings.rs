//! Preloads the library of rings into the programs of a session.
//!
//! The GNU C library's loader replaces `$LIB` by a folder's name, another one in programs for 32
//! bits. Other loaders do not, so they find no library, and say nothing.

use std::ffi::OsString;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use anyhow::Context;

use super::empty_library::empty_library;
use crate::helpers::preload;

/// In the session's /dev: a folder for each value of `$LIB`.
const FOLDER: &str = "/dev/headroom/rings";
/// Its runtime refuses to start a program that preloads another library, unless this is set.
const SANITIZER_VARIABLE: &str = "ASAN_OPTIONS";
const SANITIZER_OPTION: &str = "verify_asan_link_order=0";

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
}
