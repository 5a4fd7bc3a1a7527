//! Keys that clients prove themselves with.

use super::client::Client;
use super::quota::{KeyCounts, KeyLimits, Listed, Owner};
use piecewise_runtime::observe::Metrics;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;

/// The keys of those who may ask; without one, everybody may.
#[derive(Clone, Default, derive_more::Debug)]
#[debug("ApiKeys({})", owners.len())]
pub struct ApiKeys {
    digests: Vec<blake3::Hash>,
    /// Whose the key at the same place is, with what they may take.
    owners: Vec<Arc<Owner>>,
    counts: Option<KeyCounts>,
}

impl ApiKeys {
    /// Reads a file with a key in each line, where empty lines and those that begin with `#` are none; or,
    /// where its name ends with `.toml`, with a table for each key: its `key`, and what it may take.
    ///
    /// # Errors
    /// When the file can't be read, has no key, or one twice, or a table is not in order.
    pub fn read(file: &Path) -> std::io::Result<Self> {
        let text = std::fs::read_to_string(file)?;
        let keys = match file.extension().is_some_and(|extension| extension == "toml") {
            true => Self::of_tables(&text),
            false => Self::of_lines(&text),
        };
        keys.map_err(std::io::Error::other)
    }

    /// As [`Self::read`] of a file that is no TOML; keys are called `key-1` and so on.
    ///
    /// # Errors
    /// When there is no key, or one twice.
    pub fn of_lines(text: &str) -> Result<Self, String> {
        let keys = text.lines().map(str::trim).filter(|line| !line.is_empty());
        let keys = keys.filter(|line| !line.starts_with('#')).enumerate();
        Self::new(keys.map(|(i, key)| (format!("key-{}", i + 1), key, KeyLimits::default())))
    }

    fn of_tables(text: &str) -> Result<Self, String> {
        let tables = toml::from_str::<BTreeMap<String, Listed>>(text);
        let tables = tables.map_err(|error| {
            // What it shows of the text might be a key.
            let at = error.span().map_or(0, |span| span.start);
            let line = text.get(..at).map_or(0, |before| before.matches('\n').count()) + 1;
            format!("line {line}: {}", error.message())
        })?;
        let mut keys = Vec::new();
        for (name, table) in &tables {
            let wrong = |why: &str| format!("[{name}]: {why}");
            if table.key.is_empty() || table.key.trim() != table.key {
                return Err(wrong("`key` must be a text without spaces around it"));
            }
            let limits = table.limits().map_err(|why| wrong(&why))?;
            keys.push((name.clone(), &*table.key, limits));
        }
        Self::new(keys.into_iter())
    }

    /// Accepts each of some keys, by name and limits, as a bearer token.
    fn new<'k>(keys: impl Iterator<Item = (String, &'k str, KeyLimits)>) -> Result<Self, String> {
        let counts = Some(KeyCounts::new().map_err(|error| error.to_string())?);
        let mut all = Self { counts, ..Self::default() };
        for (name, key, limits) in keys {
            let digest = blake3::hash(key.as_bytes());
            if let Some(other) = all.digests.iter().position(|other| *other == digest) {
                let other = all.owners[other].name();
                return Err(format!("{other} and {name} have the same key"));
            }
            all.digests.push(digest);
            all.owners.push(Arc::new(Owner::new(name, limits, all.counts.clone())));
        }
        match all.digests.is_empty() {
            true => Err("it has no key; without it everybody may ask".to_owned()),
            false => Ok(all),
        }
    }

    /// Whether only those with a key may ask.
    pub(crate) fn are_asked_for(&self) -> bool {
        !self.digests.is_empty()
    }

    /// Whether a client may do what operators do: one of theirs, where any key is an operator's.
    pub(crate) fn lets_operate(&self, client: &Client) -> bool {
        client.is_operator() || !self.owners.iter().any(|owner| owner.is_operator())
    }

    /// Shows what is counted of each key beside what is counted of the model.
    pub(crate) fn count(&self, metrics: &Metrics) {
        if let Some(counts) = &self.counts
            && let Err(error) = counts.register(metrics.registry())
        {
            tracing::warn!("requests by key are not counted: {error}");
        }
    }

    /// Who asks with this `Authorization`, from this address; none where nobody may. The time that it
    /// takes depends on the length of what came, and not on what the keys are: digests are compared, each
    /// with all of them and to their ends.
    pub(crate) fn admit(
        &self,
        authorization: Option<&[u8]>,
        address: Option<IpAddr>,
    ) -> Option<Client> {
        if !self.are_asked_for() {
            return Some(Client::at(address));
        }
        let given = authorization.unwrap_or_default();
        let scheme_fits = given.len() > 7 && given[..7].eq_ignore_ascii_case(b"bearer ");
        // One space or more stand behind the scheme.
        let spaces = given.iter().skip(7).take_while(|byte| **byte == b' ').count();
        let given = blake3::hash(if scheme_fits { &given[7 + spaces..] } else { b"" });
        let number = place_of(&self.digests, &given).filter(|_| scheme_fits)?;
        Some(Client::with_key(number, self.owners.get(number)?))
    }
}

/// The last place of something in a list; each is compared, whichever is equal.
fn place_of<T: PartialEq>(list: &[T], wanted: &T) -> Option<usize> {
    let place = |found, (place, one): (usize, &T)| if one == wanted { Some(place) } else { found };
    list.iter().enumerate().fold(None, place)
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
        for (wanted, place) in [(3, Some(2)), (4, Some(1)), (5, Some(3)), (6, None)] {
            count.set(0);
            assert_eq!(place_of(&list, &Counted(wanted, &count)), place);
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
            assert_eq!(keys.admit(Some(given.as_bytes()), None).is_some(), admits, "{given}");
        }
        assert!(keys.admit(None, None).is_none());
        assert!(ApiKeys::default().admit(None, None).is_some());
        assert!(!format!("{keys:?}").contains("first"));
        std::fs::write(&file, "# none\n").unwrap();
        assert!(ApiKeys::read(&file).is_err());
    }
    #[test]
    fn a_table_says_what_a_key_may_take() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("keys.toml");
        let read = |text: &str| {
            std::fs::write(&file, text).unwrap();
            ApiKeys::read(&file).map_err(|error| error.to_string())
        };
        let keys = read(
            "[batch]\nkey = 'first'\nmax_requests = 8\nmax_tokens = 4096\n\
             requests_per_minute = 60\ntokens_per_minute = 10_000\npriorities = [5, 9]\nweight = 2\n\
             ['the rest']\nkey = 'second'\n",
        );
        let keys = keys.unwrap();
        let client = |key| keys.admit(Some(format!("Bearer {key}").as_bytes()), None).unwrap();
        let (batch, rest) = (client("first"), client("second"));
        assert_ne!(batch.id(), rest.id());
        assert_eq!((batch.of_engine().weight.get(), rest.of_engine().weight.get()), (2, 1));
        for (client, asked, priority) in [
            (&batch, None, Some(5)),
            (&batch, Some(9), Some(9)),
            (&batch, Some(0), None),
            (&rest, None, Some(0)),
            (&rest, Some(-3), Some(-3)),
        ] {
            assert_eq!(client.priority(asked, true).ok(), priority, "{asked:?}");
        }
        rest.priority(Some(-3), false).unwrap_err();
        assert_eq!(batch.priority(Some(6), false), Ok(6), "the key says so");
        for (text, says) in [
            ("", "no key"),
            ("[a]\nmax_requests = 1\n", "missing field `key`"),
            ("[a]\nkey = ''\n", "without spaces"),
            ("[a]\nkey = ' secret'\n", "without spaces"),
            ("[a]\nkey = 'secret'\nmax_request = 1\n", "line 3: unknown field `max_request`"),
            ("[a]\nkey = 'secret'\nmax_tokens = 0\n", "line 3:"),
            ("[a]\nkey = 'secret'\npriorities = [1, 0]\n", "the lower comes first"),
            ("[a]\nkey = 'secret'\nweight = 1001\n", "at most 1000"),
            ("[a]\nkey = 'secret'\n[b]\nkey = 'secret'\n", "a and b have the same key"),
            ("[a]\nkey = 'secret\n", "line 2:"),
        ] {
            let error = read(text).unwrap_err();
            assert!(error.contains(says) && !error.contains("secret"), "{text}: {error}");
        }
    }
}
