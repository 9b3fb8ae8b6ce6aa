//! Compiles BPF programs with clang, for the build scripts of crates with BPF programs. Needs clang
//! 11 or later and the kernel's user headers; uses llvm-strip, if present, to remove the debug
//! sections (BTF stays).

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Compiles `bpf/NAME.bpf.c` to `$OUT_DIR/NAME.bpf.o`; panics with the remedy if that fails.
pub fn compile(name: &str) {
    println!("cargo:rerun-if-changed=bpf");
    println!("cargo:rerun-if-env-changed=CLANG");
    println!("cargo:rerun-if-env-changed=LLVM_STRIP");
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let Some(clang) = find_tool("CLANG", "clang") else {
        panic!(
            "\n\nHeadroom needs clang to compile its BPF programs, and there is none in PATH.\n\
             Install it (Debian, Ubuntu: `apt install clang llvm libelf-dev zlib1g-dev`; Fedora: \
             `dnf install clang llvm elfutils-libelf-devel zlib-devel`) or set CLANG to its path.\n"
        );
    };
    let output = out.join(format!("{name}.bpf.o"));
    compile_with(&clang, &PathBuf::from(format!("bpf/{name}.bpf.c")), &output);
    if let Some(strip) = find_tool("LLVM_STRIP", "llvm-strip") {
        // Stripping only reduces the size, so a failure is not an error.
        let _ = Command::new(strip).arg("-g").arg(output).status();
    }
}

/// The program in the environment variable, or the first of `name`, `name-21` ... `name-11` that
/// runs.
fn find_tool(variable: &str, name: &str) -> Option<String> {
    if let Ok(tool) = env::var(variable) {
        return Some(tool);
    }
    std::iter::once(name.to_owned())
        .chain((11..=21).rev().map(|version| format!("{name}-{version}")))
        .find(|tool| Command::new(tool).arg("--version").output().is_ok_and(|o| o.status.success()))
}

fn compile_with(clang: &str, source: &Path, output: &Path) {
    let include = env::var("DEP_BPF_INCLUDE").expect("libbpf-sys exports its include path");
    let arch = env::var("CARGO_CFG_TARGET_ARCH").expect("cargo sets the target architecture");
    let result = Command::new(clang)
        .args(["-target", "bpf", "-mcpu=v3", "-O2", "-g", "-std=gnu11", "-Wall", "-Werror"])
        .args(["-Wno-compare-distinct-pointer-types", "-I", &include])
        // Debian keeps <asm/types.h> in the multiarch directory, or in that of a cross compiler,
        // which are not searched for the bpf target.
        .args(["-idirafter", &format!("/usr/include/{arch}-linux-gnu")])
        .args(["-idirafter", &format!("/usr/{arch}-linux-gnu/include")])
        .arg("-c")
        .arg(source)
        .arg("-o")
        .arg(output)
        .output();
    let failure = match result {
        Ok(output) if output.status.success() => return,
        Ok(output) => String::from_utf8_lossy(&output.stderr).into_owned(),
        Err(error) => error.to_string(),
    };
    let hint = if failure.contains("asm/types.h") || failure.contains("linux/bpf.h") {
        "\nThe kernel's user headers are missing: `apt install linux-libc-dev` (Debian, Ubuntu) or \
         `dnf install kernel-headers` (Fedora)."
    } else {
        ""
    };
    panic!("\n\n{clang} could not compile {}:\n{failure}{hint}\n", source.display());
}
