//! The files of a dump.

use super::error::DumpError;
use std::path::Path;

/// Writes a file of the folder `root` by its relative path, with the folders that it is in, over one of
/// the same name.
pub(super) fn write(root: &Path, name: &str, contents: impl AsRef<[u8]>) -> Result<(), DumpError> {
    let path = root.join(name);
    let parent = path.parent().unwrap_or(root);
    std::fs::create_dir_all(parent)
        .and_then(|()| std::fs::write(&path, contents.as_ref()))
        .map_err(|source| DumpError::Write { path, source })
}

/// A name as part of a file's: what is neither letter, digit, dot, dash nor underscore is a dash.
pub(super) fn file_name(name: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    name.chars().map(|c| if plain(c) { c } else { '-' }).collect()
}
