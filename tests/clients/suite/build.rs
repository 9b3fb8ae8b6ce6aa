//! Compiles the AIDL.

fn main() {
    println!("cargo::rerun-if-changed=aidl");
    let names = [
        "Small",
        "Medium",
        "Large",
        "Point",
        "Value",
        "Holder",
        "INamed",
        "ICallback",
        "ISuite",
        "Pair",
        "Tree",
        "Packet",
        "IOneWay",
        "ITasks",
    ];
    let mut builder = rsbinder_aidl::Builder::new();
    for name in names {
        builder = builder.source(format!("aidl/headroom/suite/{name}.aidl"));
    }
    // Version and hash of the last interface (`ITasks`), as a released interface has them.
    builder = builder.version(3).hash("0123abcd");
    if let Err(error) = builder.include_dir("aidl").output("suite.rs").generate() {
        eprintln!("suite: {error:?}");
        std::process::exit(1);
    }
}
