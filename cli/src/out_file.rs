//! Files that a command writes when its work is done: that they can be written is known before it.

use anyhow::{Context, bail};
use safetensors::tensor::TensorView;
use std::fs::{File, OpenOptions};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// A file that could be written when the work began. What it holds stays until it is written, and a file
/// that was not there is gone again where nothing is.
#[derive(Debug)]
pub(crate) struct OutFile {
    path: PathBuf,
    is_made: bool,
}

impl OutFile {
    /// Sees whether the file can be written, and makes it where it is not there.
    ///
    /// # Errors
    /// When it can't be.
    pub(crate) fn claim(path: &Path) -> anyhow::Result<Self> {
        let failed = || format!("can't write {}", path.display());
        let is_made = match File::create_new(path) {
            Ok(_) => true,
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                if path.is_dir() {
                    bail!("can't write {}: it is a folder", path.display());
                }
                // To open a pipe waits for who reads it, and to close it is the end of what it reads.
                if path.is_file() {
                    OpenOptions::new().write(true).open(path).with_context(failed)?;
                }
                false
            }
            Err(error) => return Err(error).with_context(failed),
        };
        Ok(Self { path: path.to_owned(), is_made })
    }

    /// Sees whether a file can be written that something else makes later.
    ///
    /// # Errors
    /// As for [`Self::claim`].
    pub(crate) fn check(path: Option<&PathBuf>) -> anyhow::Result<()> {
        path.map_or(Ok(()), |path| Self::claim(path).map(drop))
    }

    /// Has the file written.
    ///
    /// # Errors
    /// What `write` says, with the file.
    pub(crate) fn write(
        mut self,
        write: impl FnOnce(&Path) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        write(&self.path).with_context(|| format!("can't write {}", self.path.display()))?;
        self.is_made = false;
        Ok(())
    }
}

/// Writes tensors by their names. A file is replaced when all of it is written; what is no file of its
/// own, such as a link, a pipe or `/dev/null`, stays what it is and is written into.
pub(crate) fn write_tensors<'a>(
    path: &Path,
    views: impl IntoIterator<Item = (&'a str, TensorView<'a>)>,
) -> anyhow::Result<()> {
    let is_file = path.symlink_metadata().is_ok_and(|found| found.is_file());
    match is_file {
        true => safetensors::serialize_to_file(views, None, path)?,
        false => std::fs::write(path, safetensors::serialize(views, None)?)?,
    }
    Ok(())
}

impl Drop for OutFile {
    fn drop(&mut self) {
        if self.is_made {
            // Who took it away meanwhile has done this.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(unix)]
    #[test]
    fn what_is_no_file_of_its_own_is_written_into() {
        let folder = tempfile::tempdir().unwrap();
        let [link, at] = ["link", "at"].map(|name| folder.path().join(name));
        std::fs::write(&at, "before").unwrap();
        std::os::unix::fs::symlink(&at, &link).unwrap();
        let bytes = 1f32.to_le_bytes();
        let views = || [("x", TensorView::new(safetensors::Dtype::F32, vec![1], &bytes).unwrap())];
        OutFile::claim(&link).unwrap().write(|path| write_tensors(path, views())).unwrap();
        assert!(link.symlink_metadata().unwrap().is_symlink());
        let written = std::fs::read(&at).unwrap();
        assert!(safetensors::SafeTensors::deserialize(&written).is_ok());
        OutFile::claim(&at).unwrap().write(|path| write_tensors(path, views())).unwrap();
        assert_eq!(std::fs::read(&at).unwrap(), written);
    }

    #[test]
    fn what_was_there_stays_until_something_is_written() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("out");
        drop(OutFile::claim(&path).unwrap());
        assert!(!path.exists(), "nothing was written");
        std::fs::write(&path, "before").unwrap();
        drop(OutFile::claim(&path).unwrap());
        assert_eq!(std::fs::read(&path).unwrap(), b"before");
        OutFile::claim(&path).unwrap().write(|path| Ok(std::fs::write(path, "after")?)).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"after");
        let failed = OutFile::claim(&folder.path().join("new")).unwrap();
        let error = failed.write(|_| anyhow::bail!("full")).unwrap_err();
        assert!(format!("{error:#}").contains("new: full"), "{error:#}");
        assert!(!folder.path().join("new").exists());
        for wrong in [folder.path(), &folder.path().join("no/such"), &path.join("below")] {
            let error = format!("{:#}", OutFile::claim(wrong).unwrap_err());
            assert!(error.contains(&format!("can't write {}", wrong.display())), "{error}");
        }
    }
}
