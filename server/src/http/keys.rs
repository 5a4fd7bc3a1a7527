//! Keys that clients prove themselves with.

use std::path::Path;

/// The keys of those who may ask; without one, everybody may.
#[derive(Clone, Default, derive_more::Debug)]
#[debug("ApiKeys({})", _0.len())]
pub struct ApiKeys(Vec<blake3::Hash>);

impl ApiKeys {
    /// Reads a file with a key in each line; empty lines and those that begin with `#` are none.
    ///
    /// # Errors
    /// When the file can't be read, or has no key.
    pub fn read(file: &Path) -> std::io::Result<Self> {
        let text = std::fs::read_to_string(file)?;
        let keys = text.lines().map(str::trim).filter(|line| !line.is_empty());
        let keys = Self::new(keys.filter(|line| !line.starts_with('#')));
        match keys.0.is_empty() {
            true => Err(std::io::Error::other("it has no key; without it everybody may ask")),
            false => Ok(keys),
        }
    }

    /// Accepts each of `keys` as a bearer token.
    pub fn new<'k>(keys: impl IntoIterator<Item = &'k str>) -> Self {
        Self(keys.into_iter().map(|key| blake3::hash(key.as_bytes())).collect())
    }

    /// Whether only those with a key may ask.
    pub(crate) fn are_asked_for(&self) -> bool {
        !self.0.is_empty()
    }

    /// Whether a request with this `Authorization` may go on. The time that it takes depends on the
    /// length of what came, and not on what the keys are: digests are compared, each with all of them
    /// and to their ends.
    pub(crate) fn admit(&self, authorization: Option<&[u8]>) -> bool {
        if !self.are_asked_for() {
            return true;
        }
        let given = authorization.unwrap_or_default();
        let scheme_fits = given.len() > 7 && given[..7].eq_ignore_ascii_case(b"bearer ");
        // One space or more stand behind the scheme.
        let spaces = given.iter().skip(7).take_while(|byte| **byte == b' ').count();
        let given = blake3::hash(if scheme_fits { &given[7 + spaces..] } else { b"" });
        is_among(&self.0, &given) & scheme_fits
    }
}

/// Whether something is in a list; each is compared, whichever is equal.
fn is_among<T: PartialEq>(list: &[T], wanted: &T) -> bool {
    list.iter().fold(false, |found, one| found | (one == wanted))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What can be compared, and how often it was.
    struct Counted<'a>(u32, &'a std::cell::Cell<u32>);

    impl PartialEq for Counted<'_> {
        fn eq(&self, other: &Self) -> bool {
            self.1.set(self.1.get() + 1);
            self.0 == other.0
        }
    }

    #[test]
    fn every_key_is_compared_whichever_is_right() {
        let count = std::cell::Cell::new(0);
        let list = [3, 4, 3, 5].map(|number| Counted(number, &count));
        for (wanted, is_there) in [(3, true), (4, true), (5, true), (6, false)] {
            count.set(0);
            assert_eq!(is_among(&list, &Counted(wanted, &count)), is_there);
            assert_eq!(count.get(), 4, "{wanted}");
        }
    }

    #[test]
    fn one_of_the_keys_admits_and_nothing_else_does() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("keys");
        std::fs::write(&file, "# of the team\nfirst\n\n  second \n").unwrap();
        let keys = ApiKeys::read(&file).unwrap();
        for (given, admits) in [
            ("Bearer first", true),
            ("bearer second", true),
            ("BEARER   second", true),
            ("Bearer\tsecond", false),
            ("Bearer   ", false),
            ("Bearer third", false),
            ("Bearer ", false),
            ("Bearer first ", false),
            ("first", false),
            ("Bearer # of the team", false),
            ("", false),
        ] {
            assert_eq!(keys.admit(Some(given.as_bytes())), admits, "{given}");
        }
        assert!(!keys.admit(None) && ApiKeys::default().admit(None));
        assert!(!format!("{keys:?}").contains("first"));
        std::fs::write(&file, "# none\n").unwrap();
        assert!(ApiKeys::read(&file).is_err());
    }
}
