//! Keys and kinds, and how they are written.

/// The longest kind in bytes.
pub const MAX_KIND_BYTES: usize = 32;

/// A blake3 digest of everything that changes the payload; computed by the caller.
pub type Key = [u8; 32];

/// A key as 64 lower-case hexadecimal digits: the name of its file.
#[derive(Clone, Copy, Debug, derive_more::Display, PartialEq, Eq)]
#[display("{}", blake3::Hash::from_bytes(*self.0).to_hex())]
pub struct KeyHex<'a>(pub &'a Key);

/// The key that 64 lower-case hexadecimal digits write, `None` for any other text.
pub fn parse_key(text: &str) -> Option<Key> {
    let is_written_so = !text.bytes().any(|digit| digit.is_ascii_uppercase());
    blake3::Hash::from_hex(text).ok().filter(|_| is_written_so).map(|hash| *hash.as_bytes())
}

/// Whether `kind` can name a folder of entries: 1 to 32 of `a-z`, `0-9`, `-` and `_`, the first a
/// letter. A kind can't climb out of the cache, hide, or mean another file.
pub fn is_kind(kind: &str) -> bool {
    let rest = |b: u8| matches!(b, b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_');
    kind.len() <= MAX_KIND_BYTES
        && kind.starts_with(|c: char| c.is_ascii_lowercase())
        && kind.bytes().all(rest)
}

pub(crate) fn serialize_key<S: serde::Serializer>(key: &Key, to: S) -> Result<S::Ok, S::Error> {
    to.collect_str(&KeyHex(key))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_read_back_from_its_name_only() {
        let key: Key = std::array::from_fn(|i| (i * 9) as u8);
        let name = KeyHex(&key).to_string();
        assert_eq!(parse_key(&name), Some(key));
        assert_eq!(parse_key(&name.to_uppercase()), None);
        assert_eq!(parse_key(&name[1..]), None);
        assert_eq!(parse_key(&format!("{name}0")), None);
        assert_eq!(parse_key(&name.replacen('0', "g", 1)), None);
    }

    #[test]
    fn a_kind_is_one_plain_folder_name() {
        for kind in ["image", "lowered-piece", "tuning_record", "a", "k2"] {
            assert!(is_kind(kind), "{kind}");
        }
        let long = "a".repeat(MAX_KIND_BYTES + 1);
        for kind in ["", ".", "..", "a/b", "../a", "A", ".tmp", "-a", "a.b", "ä", "a\0", &long] {
            assert!(!is_kind(kind), "{kind}");
        }
    }
}
