//! Runs a command with a library of ours, which the dynamic loader loads before its own ones.

use std::ffi::{OsStr, OsString};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, bail, ensure};

use crate::helpers::elf::{self, ElfKind};
use crate::helpers::{exit_code, output};

/// Names the libraries that the loader loads first.
pub const VARIABLE: &str = "LD_PRELOAD";
/// The library that replaces the C library's ioctl.
pub const RINGS: &str = "libbinder_ring_preload.so";

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
    pub fn run(
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
        Ok(ExitCode::from(exit_code::of_failed_exec(&error)))
    }

    /// Refuses a program without a loader, or with a loader that cannot load the library and would
    /// only warn.
    fn ensure_loadable(&self, program: &OsStr, lost: &str) -> anyhow::Result<()> {
        let Self(library) = self;
        let Some(file) = elf::program_file(program, std::env::var_os("PATH").as_deref()) else {
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
        let Ok(loader) = elf::loader(&file) else { return Ok(()) };
        let Some(loader) = loader else {
            bail!("{} is a static program, which loads no library: {lost}", file.display());
        };
        ensure!(
            elf::is_of_glibc(&loader),
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
