//! What is below the source of a kernel: PTX, machine code, and what a disassembler makes of it.

use super::image::KernelImage;
use super::kernel_cache::KernelCache;
use super::library::library_dirs;
use crate::compiler::CodeFile;
use std::fs::OpenOptions;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};

/// NVIDIA's disassemblers with what they are told, the plainer one first: its instructions alone, beside
/// the lines of their source where the code has them.
const TOOLS: [(&str, &[&str]); 2] = [("nvdisasm", &["-c", "-g"]), ("cuobjdump", &["-sass"])];
/// Where a toolkit has its programs, if nothing else says so.
const USUAL: &str = "/usr/local/cuda/bin";

/// The files of a kernel. PTX is compiled anew: a cache has the machine code alone.
pub(super) fn code_files(kernel: &KernelImage, kernels: &KernelCache) -> Vec<CodeFile> {
    let file = |extension, contents| CodeFile { extension, contents };
    vec![
        file("ptx", kernels.ptx(&kernel.recipe)),
        file("cubin", Ok(kernel.code.cubin.clone())),
        file("sass", disassembled(&kernel.code.cubin, &folders())),
    ]
}

/// Where disassemblers are looked for: beside the libraries that are named, as packages of them lie, on
/// the path, and where a toolkit is usually installed.
fn folders() -> Vec<PathBuf> {
    let beside = library_dirs(&[]).into_iter().flat_map(|dir| {
        let bin = dir.parent().map(|parent| parent.join("bin"));
        [Some(dir), bin].into_iter().flatten()
    });
    let path = std::env::var_os("PATH").unwrap_or_default();
    beside.chain(std::env::split_paths(&path)).chain([USUAL.into()]).collect()
}

/// The disassembly of machine code, by the first tool that is in one of the folders and does it.
fn disassembled(cubin: &[u8], folders: &[PathBuf]) -> Result<Vec<u8>, String> {
    let there = TOOLS.iter().flat_map(|(tool, options)| {
        let tools = folders.iter().map(move |folder| folder.join(tool));
        tools.filter(|tool| tool.is_file()).map(move |tool| (tool, *options))
    });
    let mut failed = None;
    for (tool, options) in there {
        match run(&tool, options, cubin) {
            Ok(text) => return Ok(text),
            Err(reason) => {
                failed.get_or_insert(format!("{} failed: {reason}", tool.display()));
            }
        }
    }
    Err(failed.unwrap_or_else(|| {
        "neither nvdisasm nor cuobjdump was found; NVIDIA's toolkit has them, and so have the packages \
         nvidia-cuda-nvdisasm and nvidia-cuda-cuobjdump: put one on the PATH"
            .to_owned()
    }))
}

/// A file for a tool, which goes with this value.
struct Passed(PathBuf);

impl Drop for Passed {
    fn drop(&mut self) {
        // What can't be removed is left to whoever empties the folder.
        let _ = std::fs::remove_file(&self.0);
    }
}

#[expect(clippy::disallowed_methods, reason = "a disassembler ends with what it reads")]
fn run(tool: &Path, options: &[&str], cubin: &[u8]) -> Result<Vec<u8>, String> {
    static PASSED: AtomicU64 = AtomicU64::new(0);
    let number = PASSED.fetch_add(1, Ordering::Relaxed);
    let name = format!("piecewise-{}-{number}.cubin", std::process::id());
    let path = std::env::temp_dir().join(name);
    let unwritten = |error| format!("can't write {}: {error}", path.display());
    let mut file =
        OpenOptions::new().write(true).create_new(true).open(&path).map_err(unwritten)?;
    let passed = Passed(path.clone());
    file.write_all(cubin).map_err(unwritten)?;
    let mut command = Command::new(tool);
    let made = command.args(options).arg(&passed.0).stdin(Stdio::null()).output();
    let made = made.map_err(|error| error.to_string())?;
    match made.status.success() {
        true => Ok(made.stdout),
        false => Err(String::from_utf8_lossy(&made.stderr).trim().to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    /// A program in a folder of its own.
    fn tool(name: &str, script: &str) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(name);
        std::fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        folder
    }

    #[test]
    fn a_disassembler_is_given_the_code_and_the_next_one_where_it_fails() {
        let broken = tool("nvdisasm", "echo \"it is not for sm_90\" >&2; exit 3");
        let shows = tool("cuobjdump", "echo \"$1:\"; cat \"$2\"");
        let folders = [&broken, &shows].map(|folder| folder.path().to_path_buf());
        assert_eq!(disassembled(b"code", &folders).unwrap(), b"-sass:\ncode");
        let error = disassembled(b"code", &folders[..1]).unwrap_err();
        assert!(error.ends_with("nvdisasm failed: it is not for sm_90"), "{error}");
        let error = disassembled(b"code", &[]).unwrap_err();
        assert!(error.contains("neither nvdisasm nor cuobjdump was found"), "{error}");
    }
}
