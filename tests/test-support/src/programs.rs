//! Programs that tests start.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// The memory hog; `src/bin/memory-hog/main.rs` has its commands.
pub fn memory_hog() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| built("test-support", "memory-hog"))
}

/// A shared library that the package of the running test depends on: cargo builds it beside the
/// test.
pub fn library(name: &str) -> PathBuf {
    let own = std::env::current_exe().expect("the path of this program");
    let library = own.with_file_name(name);
    assert!(library.exists(), "{} is missing", library.display());
    library
}

/// A program of a package of the workspace, beside the running one. It is built if it is missing:
/// `cargo test -p` builds only the programs of the tested package.
pub fn built(package: &str, name: &str) -> PathBuf {
    let own = std::env::current_exe().expect("the path of this program");
    let mut folder = own.parent().expect("a program is in a folder");
    if folder.ends_with("deps") {
        folder = folder.parent().expect("cargo's deps are in a folder");
    }
    let program = folder.join(name);
    if !program.exists() {
        let profile = match folder.file_name().and_then(|name| name.to_str()) {
            Some("debug") | None => "dev",
            Some(profile) => profile,
        };
        let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or("cargo".into()));
        cargo.args(["build", "--quiet", "--locked", "--package", package, "--bin", name]);
        cargo.args(["--profile", profile]).current_dir(env!("CARGO_MANIFEST_DIR"));
        cargo.arg("--target-dir").arg(folder.parent().expect("a profile's folder is in another"));
        let done = cargo.status();
        assert!(
            done.as_ref().is_ok_and(|status| status.success()) && program.exists(),
            "{} is not built ({done:?}): cargo build --package {package} --bin {name}",
            program.display()
        );
    }
    program
}
