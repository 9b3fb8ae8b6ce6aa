//! Gives the shared library the name that programs are linked to: its number changes when an
//! interface of `tmalloc.h` does.

fn main() {
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libtmalloc.so.0");
    println!("cargo::rerun-if-changed=build.rs");
}
