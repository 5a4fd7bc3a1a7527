//! The key that entries of a cache are checked with. It is in a file or in the environment, so that
//! settings can be shown.

use super::error::NoCache;
use crate::config::CacheConfig;
use piecewise_cache::parse_key;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

/// The environment variable that holds the key where no file is configured.
pub const CHECKSUM_KEY_VARIABLE: &str = "PIECEWISE_CACHE_CHECKSUM_KEY";

/// A key and what an editor leaves around it.
const LARGEST_FILE: u64 = 128;

/// The key of a configuration, if there is to be one.
pub(super) fn checksum_key(config: &CacheConfig) -> Result<Option<[u8; 32]>, NoCache> {
    let variable = std::env::var_os(CHECKSUM_KEY_VARIABLE).filter(|value| !value.is_empty());
    key_of(config.checksum_key_file.as_deref(), variable)
}

fn key_of(file: Option<&Path>, variable: Option<OsString>) -> Result<Option<[u8; 32]>, NoCache> {
    let (place, text) = match (file, variable) {
        (Some(file), _) => (file.display().to_string(), read(file)),
        (None, Some(value)) => {
            let text = value.into_string().map_err(|_| "it is not UTF-8".to_owned());
            (CHECKSUM_KEY_VARIABLE.to_owned(), text)
        }
        (None, None) => return Ok(None),
    };
    let key = text.and_then(|text| {
        let wanted = "it is not 64 hexadecimal digits, as `openssl rand -hex 32` writes them";
        parse_key(&text.trim().to_ascii_lowercase()).ok_or_else(|| wanted.to_owned())
    });
    key.map(Some).map_err(|reason| NoCache::ChecksumKey { place, reason })
}

fn read(file: &Path) -> Result<String, String> {
    let mut text = String::new();
    let read = File::open(file).and_then(|file| file.take(LARGEST_FILE).read_to_string(&mut text));
    match read {
        Ok(_) => Ok(text),
        Err(error) if error.kind() == io::ErrorKind::InvalidData => Err("it is not UTF-8".into()),
        Err(error) => Err(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    const DIGITS: &str = "00ff00ff00ff00ff00ff00ff00ff00ff00ff00ff00ff00ff00ff00ff00ff00ff";

    fn key() -> Option<[u8; 32]> {
        Some(std::array::from_fn(|i| if i % 2 == 0 { 0 } else { 255 }))
    }

    fn file(text: &[u8]) -> tempfile::NamedTempFile {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(text).unwrap();
        file
    }

    #[test]
    fn a_key_is_read_from_the_file_else_from_the_environment() {
        let other = Some(OsString::from("11".repeat(32)));
        let in_file = file(format!("{}\n", DIGITS.to_uppercase()).as_bytes());
        assert_eq!(key_of(Some(in_file.path()), other.clone()), Ok(key()));
        assert_eq!(key_of(None, other), Ok(Some([0x11; 32])));
        assert_eq!(key_of(None, None), Ok(None));
    }

    #[test]
    fn what_is_no_key_is_named_and_not_shown() {
        let long = DIGITS.repeat(4);
        let short = &DIGITS[1..];
        let texts = [b"".as_slice(), short.as_bytes(), long.as_bytes(), b"\xff\xfe", b"gg"];
        for text in texts {
            let file = file(text);
            let error = key_of(Some(file.path()), None).unwrap_err().to_string();
            assert!(error.contains(file.path().to_str().unwrap()), "{error}");
            assert!(!error.contains("00ff"), "{error}");
        }
        let error = key_of(None, Some(OsString::from(short))).unwrap_err().to_string();
        assert!(error.contains(CHECKSUM_KEY_VARIABLE) && !error.contains("00ff"), "{error}");
        let folder = tempfile::tempdir().unwrap();
        let nowhere = key_of(Some(&folder.path().join("none")), None).unwrap_err().to_string();
        assert!(nowhere.contains("No such file"), "{nowhere}");
    }
}
