//! A file mapped read-only into memory.

use std::fs::File;
use std::io;
use std::path::Path;

use memmap2::Mmap;

/// The bytes of a file, mapped read-only: pages are read from disk when they are first touched, and
/// the kernel may drop them again.
///
/// The file must stay as it is while it is mapped. If another process shortens it, touching a page
/// past the new end ends this process with `SIGBUS`; if another process writes to it, the bytes
/// change under the reader. Replace a checkpoint by renaming a new file over it, never in place.
#[derive(Debug, derive_more::Deref)]
pub struct MappedFile {
    #[deref(forward)]
    map: Mmap,
}

impl MappedFile {
    /// Maps the whole file at `path`.
    ///
    /// # Errors
    /// The error of the operating system if the file cannot be opened or mapped, and
    /// [`io::ErrorKind::InvalidInput`] for anything but a regular file (opening a pipe would block).
    #[allow(unsafe_code, reason = "mapping a file is unsafe because others can change the file")]
    pub fn open(path: &Path) -> io::Result<Self> {
        if !std::fs::metadata(path)?.is_file() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
        }
        let file = File::open(path)?;
        // SAFETY: the mapping is private to this value, read-only, and lives as long as it; that no
        // other process changes the file meanwhile is the documented condition of this type.
        let map = unsafe { Mmap::map(&file)? };
        Ok(Self { map })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn maps_the_bytes_of_a_file() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml");
        let mapped = MappedFile::open(&path).unwrap();
        assert_eq!(&*mapped, std::fs::read(&path).unwrap());
    }

    #[test]
    fn refuses_what_is_no_regular_file() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
        let error = MappedFile::open(folder).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
        let error = MappedFile::open(&folder.join("no such file")).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
    }
}
