//! `headroom reserve`: runs a command whose memory is reserved before it is used.

use std::ffi::{OsStr, OsString};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, bail, ensure};
use control::lease::LEASE_SOCKET_NAME;

use crate::arguments::{Globals, Reserve};
use crate::helpers::elf::{self, ElfKind};
use crate::helpers::{client, exit_code, output};

/// The library that replaces the C library's malloc.
const LIBRARY: &str = "libtmalloc_preload.so";
const PRELOAD: &str = "LD_PRELOAD";

/// Runs the command in place of this program; returns only on failure. The exit code is 127 if
/// there is no such program, 126 if it cannot be executed.
pub fn reserve(globals: &Globals, options: &Reserve) -> anyhow::Result<ExitCode> {
    let library = match &options.library {
        Some(library) => library
            .canonicalize()
            .with_context(|| format!("cannot find the library {}", library.display()))?,
        None => find_library()?,
    };
    let socket = globals.oomd_socket.with_file_name(LEASE_SOCKET_NAME);
    ensure!(socket.exists(), client::not_running("headroom-oomd", &socket));
    let (program, arguments) =
        options.command.split_first().context("no command was given; see --help")?;
    ensure_loadable(program, &library)?;
    let error = Command::new(program)
        .args(arguments)
        .env(PRELOAD, preload(&library)?)
        .env("HEADROOM_LEASE_SOCKET", std::path::absolute(&socket).unwrap_or(socket))
        .exec();
    output::warn(format_args!("cannot run {}: {error}", program.display()));
    Ok(ExitCode::from(exit_code::of_failed_exec(&error)))
}

/// Refuses a program whose memory would not be reserved: one without a loader, or with a loader
/// that cannot load the library and would only warn.
fn ensure_loadable(program: &OsStr, library: &Path) -> anyhow::Result<()> {
    let Some(file) = elf::program_file(program, std::env::var_os("PATH").as_deref()) else {
        return Ok(());
    };
    let (Some(of_program), Some(of_library)) = (ElfKind::of(&file), ElfKind::of(library)) else {
        return Ok(());
    };
    ensure!(
        of_program == of_library,
        "{} is a {}-bit program for another machine than {}: memory cannot be reserved for it",
        file.display(),
        of_program.bits(),
        library.display()
    );
    // An executable that cannot be read may be a dynamic one.
    let Ok(loader) = elf::loader(&file) else { return Ok(()) };
    let Some(loader) = loader else {
        bail!(
            "{} is a static program, which loads no library: memory cannot be reserved for it",
            file.display()
        );
    };
    ensure!(
        elf::is_of_glibc(&loader),
        "{} uses another C library (its loader is {}) than {}: memory cannot be reserved for it",
        file.display(),
        loader.display(),
        library.display()
    );
    Ok(())
}

/// The value of LD_PRELOAD: this library, then those that are preloaded already.
fn preload(library: &Path) -> anyhow::Result<OsString> {
    let name = library.as_os_str();
    if name.as_encoded_bytes().iter().any(|b| matches!(b, b' ' | b':')) {
        bail!("{}: the loader takes no path with a space or a colon", library.display());
    }
    let mut value = name.to_owned();
    if let Some(already) = std::env::var_os(PRELOAD).filter(|already| !already.is_empty()) {
        value.push(":");
        value.push(already);
    }
    Ok(value)
}

/// Beside this program (in a build folder), or where packages install it.
fn find_library() -> anyhow::Result<PathBuf> {
    let program = std::env::current_exe().context("cannot find the path of this program")?;
    let folder = program.parent().unwrap_or(Path::new("/"));
    let places = [folder.join(LIBRARY), folder.join("../lib/headroom").join(LIBRARY)];
    for place in &places {
        if let Ok(found) = place.canonicalize() {
            return Ok(found);
        }
    }
    bail!(
        "{LIBRARY} is neither in {} nor in {}; name it with --library",
        folder.display(),
        places[1].parent().unwrap_or(folder).display()
    )
}
