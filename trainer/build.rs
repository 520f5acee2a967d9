//! Compiles the shim over libtorch and says where libtorch lies: to this crate's own tests, and to packages that use it
//! (through `links`).

use std::path::{Path, PathBuf};

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed=shim");
    println!("cargo:rerun-if-env-changed=LIBTORCH_INCLUDE");
    // set by torch-sys, whose `links` is `tch`
    let lib = std::env::var("DEP_TCH_LIBTORCH_LIB").expect("torch-sys says where libtorch is");
    compile_shim(Path::new(&lib));
    // the folder behind the link outlives this clone
    let behind_link = std::fs::canonicalize(&lib).map_or_else(|_| lib.clone(), |p| p.display().to_string());
    // target/release/x, then target/debug/deps/test-…, then a target folder that is elsewhere
    for path in ["$ORIGIN/../../.libtorch/lib", "$ORIGIN/../../../.libtorch/lib", &lib, &behind_link] {
        println!("cargo:rustc-link-arg=-Wl,-rpath,{path}");
    }
    println!("cargo:libtorch_lib={lib}");
}

fn compile_shim(lib: &Path) {
    let include = std::env::var_os("LIBTORCH_INCLUDE")
        .map_or_else(|| lib.parent().unwrap_or(lib).to_path_buf(), PathBuf::from)
        .join("include");
    cc::Build::new()
        .cpp(true)
        .std("c++17")
        .pic(true)
        .warnings(false)
        // calls into libtorch: nothing here is worth optimising
        .opt_level(0)
        .define("_GLIBCXX_USE_CXX11_ABI", "1")
        // without it libtorch's header of its gloo group is empty
        .define("USE_C10D_GLOO", None)
        .includes([include.join("torch/csrc/api/include"), include])
        .include("shim/gloo_stubs")
        .file("shim/shim.cpp")
        .file("shim/collective.cpp")
        .compile("dressage_shim");
}
