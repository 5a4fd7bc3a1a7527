//! A digest of a crate's sources, for its build script: a compiled piece is a function of them.

use std::path::{Path, PathBuf};

/// Writes the digest of `src` of the crate that is built where its `env!("PIECEWISE_SOURCE_DIGEST")`
/// finds it.
///
/// # Errors
/// When a source can't be read.
#[allow(clippy::print_stdout, reason = "a build script talks to cargo this way")]
pub fn emit() -> std::io::Result<()> {
    println!("cargo::rerun-if-changed=src");
    let mut files = Vec::new();
    collect(Path::new("src"), &mut files)?;
    files.sort();
    let mut hasher = blake3::Hasher::new();
    for file in files {
        let name = file.to_string_lossy().replace('\\', "/");
        // Line ends may differ from checkout to checkout.
        let text = std::fs::read_to_string(&file)?.replace('\r', "");
        for part in [&name, &text] {
            hasher.update(&(part.len() as u64).to_le_bytes());
            hasher.update(part.as_bytes());
        }
    }
    let digest = hasher.finalize().to_hex();
    println!("cargo::rustc-env=PIECEWISE_SOURCE_DIGEST={}", &digest[..16]);
    Ok(())
}

/// The source files under `dir`, tests left out.
fn collect(dir: &Path, files: &mut Vec<PathBuf>) -> std::io::Result<()> {
    for entry in std::fs::read_dir(dir)? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let is_test = name.starts_with("test") || name.ends_with("_tests.rs");
        if is_test || name == "snapshots" {
            continue;
        }
        if path.is_dir() {
            collect(&path, files)?;
        } else if [".rs", ".cu", ".cuh", ".h"].iter().any(|end| name.ends_with(end)) {
            files.push(path);
        }
    }
    Ok(())
}
