//! Compiles the AIDL.

fn main() {
    println!("cargo::rerun-if-changed=aidl");
    let generated = rsbinder_aidl::Builder::new()
        .source("aidl/example/IAdder.aidl")
        .output("adder.rs")
        .generate();
    if let Err(error) = generated {
        eprintln!("adder: {error:?}");
        std::process::exit(1);
    }
}
