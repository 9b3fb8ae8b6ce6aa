//! The library stays loaded after `dlclose`: its rings exist, and a thread may wait in it.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
