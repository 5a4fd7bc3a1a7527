//! A folder held open: its files are named relative to it and no link below it is followed, so that
//! nothing planted in a cache directory leads outside.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::fs::{self, AtFlags, FileType, Mode, OFlags, Stat, Timespec, Timestamps};
use rustix::io::Errno;

/// Whose folders are used and whom created ones are for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ownership {
    pub(crate) is_checked: bool,
    pub(crate) is_private: bool,
}

impl Ownership {
    /// Why what belongs to `owner` and has this mode is not trusted.
    pub(crate) fn refusal(self, owner: u32, mode: u32) -> Option<String> {
        if !self.is_checked {
            None
        } else if owner != 0 && owner != rustix::process::geteuid().as_raw() {
            Some(format!("it belongs to user {owner}"))
        } else if Mode::from_raw_mode(mode).contains(Mode::WOTH) {
            Some("every user can write to it".to_owned())
        } else {
            None
        }
    }
}

#[derive(Debug)]
pub(crate) struct Folder {
    fd: OwnedFd,
    path: PathBuf,
    ownership: Ownership,
}

/// What a folder says of one of its names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FileFacts {
    pub(crate) is_file: bool,
    pub(crate) bytes: u64,
    pub(crate) modified: SystemTime,
}

/// A name opened for reading.
#[derive(Debug)]
pub(crate) enum Opened {
    File(File, FileFacts),
    NotAFile,
}

const FOLDER_FLAGS: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

impl Folder {
    /// Opens the folder that the user named; a link in this path is the user's own.
    ///
    /// # Errors
    /// The operating system's, and `PermissionDenied` for a folder that `ownership` refuses.
    pub(crate) fn open(path: &Path, create: bool, ownership: Ownership) -> io::Result<Self> {
        if create {
            create_folders(path, ownership)?;
        }
        let flags = FOLDER_FLAGS.difference(OFlags::NOFOLLOW);
        let fd = fs::open(path, flags, Mode::empty())?;
        Self::trusted(fd, path.to_owned(), ownership)
    }

    /// A folder in this folder; `None` if it is not there and not to be created.
    pub(crate) fn child(&self, name: &str, create: bool) -> io::Result<Option<Self>> {
        let path = self.path.join(name);
        if create {
            match fs::mkdirat(&self.fd, name, folder_mode(self.ownership)) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(error) => return Err(error.into()),
            }
        }
        match fs::openat(&self.fd, name, FOLDER_FLAGS, Mode::empty()) {
            Ok(fd) => Self::trusted(fd, path, self.ownership).map(Some),
            Err(Errno::NOENT) if !create => Ok(None),
            Err(Errno::NOTDIR | Errno::LOOP) => Err(io::Error::new(
                io::ErrorKind::NotADirectory,
                "it is a file or a link where the cache keeps a folder; remove it",
            )),
            Err(error) => Err(error.into()),
        }
    }

    fn trusted(fd: OwnedFd, path: PathBuf, ownership: Ownership) -> io::Result<Self> {
        let stat = fs::fstat(&fd)?;
        if let Some(reason) = ownership.refusal(stat.st_uid, stat.st_mode) {
            let advice = "trust it as shared (cache.shared, --cache-shared), set a checksum key \
                          (cache.checksum_key_file), or choose another directory";
            let message = format!("{reason}; {advice}");
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, message));
        }
        Ok(Self { fd, path, ownership })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The last part of its path.
    pub(crate) fn name(&self) -> String {
        self.path.file_name().unwrap_or_default().to_string_lossy().into_owned()
    }

    /// Whether the folder was removed since it was opened.
    pub(crate) fn is_gone(&self) -> bool {
        fs::fstat(&self.fd).is_ok_and(|stat| stat.st_nlink == 0)
    }

    /// Opens `name` for reading; `None` if it is not there. Never waits at a pipe.
    pub(crate) fn read(&self, name: &str) -> io::Result<Option<Opened>> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let fd = match fs::openat(&self.fd, name, flags, Mode::empty()) {
            Ok(fd) => fd,
            Err(Errno::NOENT) => return Ok(None),
            Err(Errno::LOOP | Errno::NXIO) => return Ok(Some(Opened::NotAFile)),
            Err(error) => return Err(error.into()),
        };
        let facts = FileFacts::of(&fs::fstat(&fd)?);
        Ok(Some(if facts.is_file { Opened::File(File::from(fd), facts) } else { Opened::NotAFile }))
    }

    /// Creates `name`, which must not be there.
    pub(crate) fn create_new(&self, name: &str) -> io::Result<File> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let fd = fs::openat(&self.fd, name, flags, file_mode(self.ownership))?;
        Ok(File::from(fd))
    }

    /// Opens the file `name` for writing, and creates it where it is not there.
    pub(crate) fn open_or_create(&self, name: &str) -> io::Result<File> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = fs::openat(&self.fd, name, flags, file_mode(self.ownership))?;
        Ok(File::from(fd))
    }

    /// Gives a file another name in this folder, in place of what had it.
    pub(crate) fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        Ok(fs::renameat(&self.fd, from, &self.fd, to)?)
    }

    /// Removes a file, a link or an empty folder; whether it was there.
    pub(crate) fn remove(&self, name: &str) -> io::Result<bool> {
        let removed = match fs::unlinkat(&self.fd, name, AtFlags::empty()) {
            Err(Errno::ISDIR) => fs::unlinkat(&self.fd, name, AtFlags::REMOVEDIR),
            other => other,
        };
        match removed {
            Ok(()) => Ok(true),
            Err(Errno::NOENT) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// What `name` is, a link itself and not what it leads to.
    pub(crate) fn facts(&self, name: &str) -> io::Result<Option<FileFacts>> {
        match fs::statat(&self.fd, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => Ok(Some(FileFacts::of(&stat))),
            Err(Errno::NOENT) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Every name in the folder, sorted.
    pub(crate) fn names(&self) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in fs::Dir::read_from(&self.fd)? {
            let name = entry?.file_name().to_string_lossy().into_owned();
            if name != "." && name != ".." {
                names.push(name);
            }
        }
        names.sort();
        Ok(names)
    }
}

impl FileFacts {
    fn of(stat: &Stat) -> Self {
        let since = Duration::new(
            u64::try_from(stat.st_mtime).unwrap_or(0),
            u32::try_from(stat.st_mtime_nsec).unwrap_or(0).min(999_999_999),
        );
        Self {
            is_file: FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile,
            bytes: u64::try_from(stat.st_size).unwrap_or(0),
            modified: UNIX_EPOCH.checked_add(since).unwrap_or(UNIX_EPOCH),
        }
    }
}

/// Whether a file was removed since it was opened.
pub(crate) fn is_removed(file: &File) -> io::Result<bool> {
    Ok(fs::fstat(file)?.st_nlink == 0)
}

/// Sets the time of last change to now, which takes the right to write and not the ownership.
pub(crate) fn touch(file: &File) -> io::Result<()> {
    let now = Timespec { tv_sec: 0, tv_nsec: fs::UTIME_NOW };
    Ok(fs::futimens(file, &Timestamps { last_access: now, last_modification: now })?)
}

fn create_folders(path: &Path, ownership: Ownership) -> io::Result<()> {
    use std::os::unix::fs::DirBuilderExt;
    let mode = folder_mode(ownership).as_raw_mode();
    std::fs::DirBuilder::new().recursive(true).mode(mode).create(path)
}

fn folder_mode(ownership: Ownership) -> Mode {
    if ownership.is_private { Mode::RWXU } else { Mode::RWXU | Mode::RWXG | Mode::RWXO }
}

fn file_mode(ownership: Ownership) -> Mode {
    let owner = Mode::RUSR | Mode::WUSR;
    if ownership.is_private {
        owner
    } else {
        owner | Mode::RGRP | Mode::WGRP | Mode::ROTH | Mode::WOTH
    }
}
