//! Sets the soname of the shared library: its number changes when an interface in `tmalloc.h`
//! changes.

fn main() {
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libtmalloc.so.0");
    println!("cargo::rerun-if-changed=build.rs");
}
