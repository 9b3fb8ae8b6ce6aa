//! `headroom reserve` and `headroom binder attach`: run a command with a library of ours, which the
//! dynamic loader loads before its own ones.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::FileExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, bail, ensure};
use control::lease::LEASE_SOCKET_NAME;

use crate::arguments::{Globals, Preloaded};
use crate::helpers::{client, output, programs};

/// Names the libraries that the loader loads first.
pub const VARIABLE: &str = "LD_PRELOAD";
/// The library that replaces the C library's ioctl.
pub const RINGS: &str = "libbinder_ring_preload.so";
/// The library that replaces the C library's malloc.
const MALLOC: &str = "libtmalloc_preload.so";
/// Length of the part of the ELF header that is read.
const HEADER: usize = 20;
/// Type of the program header that contains the loader's path.
const PT_INTERP: u64 = 3;
/// `EI_CLASS` of files for 32 bits.
const CLASS_32: u8 = 1;
/// `EI_DATA`.
const LITTLE_ENDIAN: u64 = 1;
/// Starts of the file names that the GNU C library's loader has on Linux's architectures.
const GLIBC_LOADERS: [&str; 3] = ["ld-linux", "ld64.so.", "ld.so."];

/// Runs `headroom reserve`: the memory of the command is reserved before it is used. Returns only
/// on failure, as [`Library::run`].
pub fn reserve(globals: &Globals, options: &Preloaded) -> anyhow::Result<ExitCode> {
    let library = Library::find(MALLOC, options.library.as_deref())?;
    let socket = globals.oomd_socket.with_file_name(LEASE_SOCKET_NAME);
    ensure!(socket.exists(), client::not_running("headroom-oomd", &socket));
    let socket = std::path::absolute(&socket).unwrap_or(socket);
    let variable = ("HEADROOM_LEASE_SOCKET", socket.as_os_str());
    library.run(&options.command, "memory cannot be reserved for it", &[variable])
}

/// Runs `headroom binder attach`: calls of the command are carried by shared memory. Returns only
/// on failure, as [`Library::run`].
pub fn attach(options: &Preloaded) -> anyhow::Result<ExitCode> {
    let library = Library::find(RINGS, options.library.as_deref())?;
    library.run(&options.command, "its calls would all be requests", &[])
}

/// A library.
pub struct Library(PathBuf);

impl Library {
    /// The library at `path`, or the installed one with this name.
    pub fn find(name: &str, path: Option<&Path>) -> anyhow::Result<Self> {
        match path {
            Some(path) => path
                .canonicalize()
                .with_context(|| format!("cannot find the library {}", path.display())),
            None => find_installed(name),
        }
        .map(Self)
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Runs the command in place of this program; returns only on failure. The exit code is 127 if
    /// there is no such program, 126 if it cannot be executed. `lost`: what a program that does not
    /// load the library goes without.
    fn run(
        &self,
        command: &[OsString],
        lost: &str,
        variables: &[(&str, &OsStr)],
    ) -> anyhow::Result<ExitCode> {
        let (program, arguments) =
            command.split_first().context("no command was given; see --help")?;
        self.ensure_loadable(program, lost)?;
        let error = Command::new(program)
            .args(arguments)
            .env(VARIABLE, self.preload()?)
            .envs(variables.iter().copied())
            .exec();
        output::warn(format_args!("cannot run {}: {error}", program.display()));
        Ok(ExitCode::from(programs::exit_code_of_failed_exec(&error)))
    }

    /// Refuses a program without a loader, or with a loader that cannot load the library and would
    /// only warn.
    fn ensure_loadable(&self, program: &OsStr, lost: &str) -> anyhow::Result<()> {
        let Self(library) = self;
        let Some(file) = program_file(program, std::env::var_os("PATH").as_deref()) else {
            return Ok(());
        };
        let (Some(of_program), Some(of_library)) = (ElfKind::of(&file), ElfKind::of(library))
        else {
            return Ok(());
        };
        ensure!(
            of_program == of_library,
            "{} is a {}-bit program for another machine than {}: {lost}",
            file.display(),
            of_program.bits(),
            library.display()
        );
        // An executable that cannot be read may be a dynamic one.
        let Ok(loader) = loader_of(&file) else { return Ok(()) };
        let Some(loader) = loader else {
            bail!("{} is a static program, which loads no library: {lost}", file.display());
        };
        ensure!(
            is_of_glibc(&loader),
            "{} uses another C library (its loader is {}) than {}: {lost}",
            file.display(),
            loader.display(),
            library.display()
        );
        Ok(())
    }

    /// The value of `LD_PRELOAD`.
    fn preload(&self) -> anyhow::Result<OsString> {
        let name = self.0.as_os_str();
        if name.as_encoded_bytes().iter().any(|b| matches!(b, b' ' | b':')) {
            bail!("{}: the loader takes no path with a space or a colon", self.0.display());
        }
        Ok(before_others(name))
    }
}

/// The value of `LD_PRELOAD` that loads this library, then those that are preloaded already.
pub fn before_others(library: &OsStr) -> OsString {
    let mut value = library.to_owned();
    if let Some(already) = std::env::var_os(VARIABLE).filter(|already| !already.is_empty()) {
        value.push(":");
        value.push(already);
    }
    value
}

/// Beside this program (in a build folder), or where packages install it.
fn find_installed(name: &str) -> anyhow::Result<PathBuf> {
    let program = std::env::current_exe().context("cannot find the path of this program")?;
    let folder = program.parent().unwrap_or(Path::new("/"));
    let places = [folder.join(name), folder.join("../lib/headroom").join(name)];
    for place in &places {
        if let Ok(found) = place.canonicalize() {
            return Ok(found);
        }
    }
    bail!(
        "{name} is neither in {} nor in {}; name it with --library",
        folder.display(),
        places[1].parent().unwrap_or(folder).display()
    )
}

/// Class and machine of an ELF file: for which machine it was built.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ElfKind {
    /// `EI_CLASS`: 1 for 32 bits, 2 for 64.
    class: u8,
    /// `e_machine`, in the file's byte order.
    machine: [u8; 2],
}

impl ElfKind {
    /// `None`: the file cannot be read, or is no ELF file.
    fn of(path: &Path) -> Option<Self> {
        let mut header = [0; HEADER];
        File::open(path).ok()?.read_exact(&mut header).ok()?;
        Self::parse(&header)
    }

    fn parse(header: &[u8; HEADER]) -> Option<Self> {
        let machine = [header[18], header[19]];
        header.starts_with(b"\x7fELF").then_some(Self { class: header[4], machine })
    }

    /// 32 or 64.
    fn bits(self) -> u8 {
        if self.class == CLASS_32 { 32 } else { 64 }
    }
}

/// Places in an ELF file: of the program headers' offset, size and count in the file's header, and
/// of the offset and size of a segment in its program header.
struct Layout {
    word: usize,
    table: u64,
    entry_size: u64,
    count: u64,
    offset: u64,
    size: u64,
}

const LAYOUT_32: Layout =
    Layout { word: 4, table: 28, entry_size: 42, count: 44, offset: 4, size: 16 };
const LAYOUT_64: Layout =
    Layout { word: 8, table: 32, entry_size: 54, count: 56, offset: 8, size: 32 };

/// The loader that a little-endian program names; `None`: the program is static.
fn loader_of(program: &Path) -> io::Result<Option<PathBuf>> {
    let file = File::open(program)?;
    let number = |at: u64, len: usize| -> io::Result<u64> {
        let mut bytes = [0; 8];
        file.read_exact_at(&mut bytes[..len], at)?;
        Ok(u64::from_le_bytes(bytes))
    };
    if number(5, 1)? != LITTLE_ENDIAN {
        return Err(io::ErrorKind::Unsupported.into());
    }
    let layout = if number(4, 1)? == u64::from(CLASS_32) { LAYOUT_32 } else { LAYOUT_64 };
    let table = number(layout.table, layout.word)?;
    let entry_size = number(layout.entry_size, 2)?;
    for index in 0..number(layout.count, 2)? {
        let entry = table.saturating_add(index * entry_size);
        if number(entry, 4)? != PT_INTERP {
            continue;
        }
        let offset = number(entry.saturating_add(layout.offset), layout.word)?;
        let size = number(entry.saturating_add(layout.size), layout.word)?;
        let mut path = vec![0; size.min(libc::PATH_MAX as u64) as usize];
        file.read_exact_at(&mut path, offset)?;
        path.truncate(path.iter().position(|&byte| byte == 0).unwrap_or(path.len()));
        return Ok(Some(OsString::from_vec(path).into()));
    }
    Ok(None)
}

/// Whether this is the loader of the GNU C library.
fn is_of_glibc(loader: &Path) -> bool {
    let name = loader.file_name().unwrap_or_default().as_encoded_bytes();
    GLIBC_LOADERS.iter().any(|start| name.starts_with(start.as_bytes()))
}

/// The file that `execvp` would execute; `None`: there is none.
fn program_file(program: &OsStr, path: Option<&OsStr>) -> Option<PathBuf> {
    if program.as_encoded_bytes().contains(&b'/') {
        return Some(program.into());
    }
    std::env::split_paths(path?).map(|folder| folder.join(program)).find(|file| file.is_file())
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn header(class: u8, machine: u8) -> [u8; HEADER] {
        let mut header = [0; HEADER];
        header[..4].copy_from_slice(b"\x7fELF");
        (header[4], header[18]) = (class, machine);
        header
    }

    #[test]
    fn files_for_other_machines_differ() {
        let native = ElfKind::parse(&header(2, 62)).unwrap();
        assert_eq!(native.bits(), 64);
        assert_eq!(ElfKind::parse(&header(1, 3)).map(ElfKind::bits), Some(32));
        assert_ne!(ElfKind::parse(&header(2, 183)), Some(native));
        assert_eq!(ElfKind::parse(b"#!/bin/sh\nexec true\n"), None);
    }

    #[test]
    fn the_loader_is_read_from_files_of_both_classes() {
        let path = b"/lib/ld-musl.so.1\0";
        for (class, layout) in [(1, LAYOUT_32), (2, LAYOUT_64)] {
            for (kind, expected) in [(3, Some("/lib/ld-musl.so.1")), (1, None)] {
                let mut bytes = vec![0; 256];
                let mut put = |at: u64, value: u64, len: usize| {
                    bytes[at as usize..][..len].copy_from_slice(&value.to_le_bytes()[..len]);
                };
                put(4, class, 1);
                put(5, LITTLE_ENDIAN, 1);
                put(layout.table, 64, layout.word);
                put(layout.entry_size, 56, 2);
                put(layout.count, 2, 2);
                put(64, 6, 4);
                put(64 + 56, kind, 4);
                put(64 + 56 + layout.offset, 200, layout.word);
                put(64 + 56 + layout.size, path.len() as u64, layout.word);
                bytes[200..][..path.len()].copy_from_slice(path);
                let mut file = tempfile::NamedTempFile::new().unwrap();
                file.write_all(&bytes).unwrap();
                assert_eq!(loader_of(file.path()).unwrap(), expected.map(PathBuf::from), "{class}");
            }
        }
        assert!(loader_of(Path::new("/proc/self/comm")).is_err());
    }

    #[test]
    fn only_the_loaders_of_the_gnu_c_library_are_its() {
        let (gnu, others) = (
            ["/lib64/ld-linux-x86-64.so.2", "/lib/ld-linux-armhf.so.3", "/lib/ld64.so.1"],
            ["/lib/ld-musl-x86_64.so.1", "/system/bin/linker64", "/lib/ld64-uClibc.so.0"],
        );
        for (loader, expected) in
            gnu.map(|name| (name, true)).into_iter().chain(others.map(|name| (name, false)))
        {
            assert_eq!(is_of_glibc(Path::new(loader)), expected, "{loader}");
        }
    }

    #[test]
    fn a_program_is_searched_in_the_path_unless_it_names_a_folder() {
        let path = Some(OsStr::new("/nonexistent:/bin"));
        assert_eq!(program_file(OsStr::new("sh"), path), Some("/bin/sh".into()));
        assert_eq!(program_file(OsStr::new("./sh"), path), Some("./sh".into()));
        assert_eq!(program_file(OsStr::new("no-such-program"), path), None);
    }
}
