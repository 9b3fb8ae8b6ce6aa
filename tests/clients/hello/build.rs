//! Compiles the AIDL.

fn main() {
    println!("cargo::rerun-if-changed=aidl");
    let generated = rsbinder_aidl::Builder::new()
        .source("aidl/headroom/hello/IHello.aidl")
        .source("aidl/headroom/hello/IHelloListener.aidl")
        .include_dir("aidl")
        .output("hello.rs")
        .generate();
    if let Err(error) = generated {
        eprintln!("hello: {error:?}");
        std::process::exit(1);
    }
}
