//! Compiles the attacks: they are in C, because they are about processes that share memory, tracers
//! and namespaces.

use std::path::Path;
use std::process::Command;

fn main() {
    let out = std::env::var("OUT_DIR").expect("cargo sets OUT_DIR");
    println!("cargo::rerun-if-changed=programs");
    for entry in std::fs::read_dir("programs").expect("programs/").flatten() {
        let source = entry.path();
        if source.extension().is_none_or(|extension| extension != "c") {
            continue;
        }
        let program = Path::new(&out).join(source.file_stem().expect("a name"));
        let mut cc = Command::new("cc");
        cc.args(["-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", "-pthread", "-o"]);
        let done = cc.arg(&program).arg(&source).status().expect("cc is not installed");
        assert!(done.success(), "cannot compile {}", source.display());
    }
}
