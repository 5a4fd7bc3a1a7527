//! The folder of a dump.

use super::DumpError;
use std::path::{Path, PathBuf};

/// A folder whose files are written by relative path, with the folders they are in.
pub(super) struct DumpFolder {
    root: PathBuf,
}

impl DumpFolder {
    pub(super) fn new(root: &Path) -> Result<Self, DumpError> {
        let failed = |source| DumpError::Write { path: root.to_owned(), source };
        std::fs::create_dir_all(root).map_err(failed)?;
        Ok(Self { root: root.to_owned() })
    }

    /// Writes a file, over one of the same name.
    pub(super) fn write(&self, name: &str, contents: &str) -> Result<(), DumpError> {
        let path = self.root.join(name);
        let parent = path.parent().unwrap_or(&self.root);
        std::fs::create_dir_all(parent)
            .and_then(|()| std::fs::write(&path, contents))
            .map_err(|source| DumpError::Write { path, source })
    }
}

/// A name as part of a file's: what is neither letter, digit, dot, dash nor underscore is a dash.
pub(super) fn file_name(name: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    name.chars().map(|c| if plain(c) { c } else { '-' }).collect()
}
