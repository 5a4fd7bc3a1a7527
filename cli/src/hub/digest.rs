//! What the bytes of a file come to, as the hub says it.

use ring::digest::{Context, SHA1_FOR_LEGACY_USE_ONLY, SHA256};
use std::fs::File;
use std::io::Read;
use std::path::Path;

/// A digest in hexadecimal digits; the name of a file of the cache, too.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Digest {
    /// Of the bytes: files that are stored apart.
    Sha256(String),
    /// Of git's header and the bytes: small files. It finds what was damaged, and is no seal.
    Git(String),
}

fn hexadecimal(text: &str, digits: usize) -> Option<String> {
    let is_hex = text.len() == digits && text.chars().all(|c| c.is_ascii_hexdigit());
    is_hex.then(|| text.to_ascii_lowercase())
}

impl Digest {
    pub(super) fn sha256(text: &str) -> Option<Self> {
        hexadecimal(text, 64).map(Self::Sha256)
    }

    pub(super) fn git(text: &str) -> Option<Self> {
        hexadecimal(text, 40).map(Self::Git)
    }

    /// What a file of the cache with these bytes is called.
    pub(super) fn name(&self) -> &str {
        let (Self::Sha256(digits) | Self::Git(digits)) = self;
        digits
    }

    /// Whether a file has the bytes.
    pub(super) fn is_of(&self, file: &Path) -> std::io::Result<bool> {
        let mut file = File::open(file)?;
        let mut context = match self {
            Self::Sha256(_) => Context::new(&SHA256),
            Self::Git(_) => {
                let mut context = Context::new(&SHA1_FOR_LEGACY_USE_ONLY);
                context.update(format!("blob {}\0", file.metadata()?.len()).as_bytes());
                context
            }
        };
        Ok(digits_of(&mut file, &mut context)? == self.name())
    }

    /// The digest of a file of which the hub says none.
    pub(super) fn of(file: &Path) -> std::io::Result<Self> {
        digits_of(&mut File::open(file)?, &mut Context::new(&SHA256)).map(Self::Sha256)
    }
}

fn digits_of(file: &mut File, context: &mut Context) -> std::io::Result<String> {
    let mut bytes = vec![0; 1 << 20];
    loop {
        match file.read(&mut bytes)? {
            0 => break,
            count => context.update(&bytes[..count]),
        }
    }
    let digest = context.clone().finish();
    Ok(digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digests_are_those_that_git_and_the_hub_have() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        std::fs::write(&file, "hello\n").unwrap();
        // `git hash-object` and `sha256sum` of the same.
        let git = Digest::git("CE013625030BA8DBA906F756967F9E9CA394464A").unwrap();
        let sha = "5891b5b522d5df086d0ff0b110fbd9d21bb4fc7163af34d08286a2e846f6be03";
        assert!(git.is_of(&file).unwrap());
        assert!(Digest::sha256(sha).unwrap().is_of(&file).unwrap());
        assert_eq!(Digest::of(&file).unwrap().name(), sha);
        std::fs::write(&file, "hallo\n").unwrap();
        assert!(!git.is_of(&file).unwrap());
        assert!(Digest::git(sha).is_none() && Digest::sha256("../../x").is_none());
    }
}
