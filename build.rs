//! Tells the linker where libtorch lies, so that the command finds it without `LD_LIBRARY_PATH`.
//!
//! Only a package with binaries can say so: what a library says does not reach them.

use std::path::Path;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    // set by the trainer (`links`), where it is a part of the build
    let Ok(lib) = std::env::var("DEP_DRESSAGE_TRAINER_LIBTORCH_LIB") else { return };
    // the folder behind the link outlives this clone
    let behind_link = std::fs::canonicalize(Path::new(&lib)).map_or_else(|_| lib.clone(), |p| p.display().to_string());
    for path in ["$ORIGIN/../../.libtorch/lib", "$ORIGIN/../../../.libtorch/lib", &lib, &behind_link] {
        println!("cargo:rustc-link-arg=-Wl,-rpath,{path}");
    }
}
