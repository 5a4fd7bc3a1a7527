//! Names of models at the hub.

use std::fmt;

/// The most characters of a name.
const LONGEST: usize = 200;

/// A model of the hub, `owner/name`, at a branch, tag or commit: `owner/name@revision`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct RepoName {
    pub(super) owner: String,
    pub(super) name: String,
    pub(super) revision: String,
}

impl RepoName {
    /// What a text names; `None` where it is no name.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let (repo, revision) = text.split_once('@').unwrap_or((text, "main"));
        let (owner, name) = repo.split_once('/')?;
        let is_part = |part: &str| {
            let is_of_it = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
            part.chars().next().is_some_and(|c| c.is_ascii_alphanumeric())
                && part.chars().all(is_of_it)
                && !part.contains("..")
                && !part.contains("--")
        };
        let is_revision = revision.split('/').all(|part| {
            !part.is_empty()
                && !part.starts_with('.')
                && part.chars().all(|c| c.is_ascii_alphanumeric() || "._-".contains(c))
        });
        let is_name = text.len() <= LONGEST && is_part(owner) && is_part(name) && is_revision;
        let owned = str::to_owned;
        is_name.then(|| Self { owner: owned(owner), name: owned(name), revision: owned(revision) })
    }

    /// Its folder in the hub's cache.
    pub(super) fn folder(&self) -> String {
        format!("models--{}--{}", self.owner, self.name)
    }

    /// Whether the revision is a commit, which never changes.
    pub(super) fn commit(&self) -> Option<&str> {
        let is_commit =
            self.revision.len() == 40 && self.revision.chars().all(|c| c.is_ascii_hexdigit());
        is_commit.then_some(&self.revision)
    }
}

impl fmt::Display for RepoName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.owner, self.name)?;
        match self.revision.as_str() {
            "main" => Ok(()),
            revision => write!(f, "@{revision}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_told_from_paths() {
        for name in ["Qwen/Qwen3-0.6B", "a/b", "org/model@refs/pr/4", "org/model@v1.0"] {
            assert_eq!(RepoName::parse(name).unwrap().to_string(), name);
        }
        let commit = format!("a/b@{}", "0a".repeat(20));
        assert!(RepoName::parse(&commit).unwrap().commit().is_some());
        assert_eq!(RepoName::parse("a/b").unwrap().folder(), "models--a--b");
        let long = format!("a/{}", "b".repeat(300));
        for path in [
            "model", "/a/b", "./a", "../a", "a/b/c", "a/..", "a/b@", "a/b@../c", "a/b@.", "a b/c",
            "a--b/c", "", &long,
        ] {
            assert_eq!(RepoName::parse(path), None, "{path}");
        }
    }
}
