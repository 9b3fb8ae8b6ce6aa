//! `raw_client.c`, a client that needs nothing but a C library.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

/// A folder with this mode, for programs of other users.
pub fn folder(mode: u32) -> TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    fs::set_permissions(folder.path(), Permissions::from_mode(mode)).expect("its mode");
    folder
}

/// Builds the client in the folder. `None`: the compiler is missing, which is reported.
pub fn build(folder: &Path, compiler: &str, options: &[&str]) -> Option<PathBuf> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/run/raw_client.c");
    let program = folder.join(format!("raw_client-{compiler}{}", options.concat()));
    let mut command = Command::new(compiler);
    command.args(["-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-pthread"]).args(options);
    // Headers of the kernel, for musl-gcc, which has none; behind those of the C library.
    let machine = format!("/usr/include/{}-linux-gnu", std::env::consts::ARCH);
    command.args(["-idirafter", "/usr/include", "-idirafter", &machine]);
    match command.arg(source).arg("-o").arg(&program).output() {
        Ok(built) => {
            let errors = String::from_utf8_lossy(&built.stderr);
            assert!(built.status.success(), "{compiler} {options:?}: {errors}");
            Some(program)
        }
        Err(error) => {
            test_support::skip(format_args!("{compiler}: {error} (package musl-tools)"));
            None
        }
    }
}
