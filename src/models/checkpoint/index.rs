//! The index of a sharded checkpoint: which tensor is in which file.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Component, Path};

use serde::Deserialize;
use serde::de::{self, Deserializer, MapAccess, Visitor};

use super::error::{CheckpointError, shortened};

/// The tensors that an index puts into each file, by the file's name, which is a plain one without a
/// path.
pub(super) fn read_index(
    text: &[u8],
    file: &Path,
) -> Result<BTreeMap<String, Vec<String>>, CheckpointError> {
    #[derive(Deserialize)]
    struct Root {
        weight_map: WeightMap,
    }
    let root: Root = serde_json::from_slice(text).map_err(|error| CheckpointError::Index {
        file: file.to_path_buf(),
        reason: error.to_string(),
    })?;
    let mut shards: BTreeMap<_, Vec<String>> = BTreeMap::new();
    for (tensor, shard) in root.weight_map.0 {
        if !is_plain_file_name(&shard) {
            return Err(CheckpointError::ShardPath {
                file: file.to_path_buf(),
                tensor: shortened(&tensor),
                shard: shortened(&shard),
            });
        }
        shards.entry(shard).or_default().push(tensor);
    }
    if shards.is_empty() {
        return Err(CheckpointError::Index {
            file: file.to_path_buf(),
            reason: "`weight_map` is empty".to_owned(),
        });
    }
    Ok(shards)
}

/// Whether joining `name` to a folder gives a file directly in that folder, on any system.
fn is_plain_file_name(name: &str) -> bool {
    let mut components = Path::new(name).components();
    matches!(components.next(), Some(Component::Normal(only)) if only == name)
        && components.next().is_none()
        && !name.contains(['/', '\\', ':', '\0'])
}

/// A map from tensor to file in which no tensor occurs twice.
struct WeightMap(BTreeMap<String, String>);

impl<'de> Deserialize<'de> for WeightMap {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Entries;
        impl<'de> Visitor<'de> for Entries {
            type Value = WeightMap;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object from tensor names to file names")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<WeightMap, A::Error> {
                let mut entries = BTreeMap::new();
                while let Some((tensor, shard)) = map.next_entry::<String, String>()? {
                    if entries.contains_key(&tensor) {
                        return Err(de::Error::custom(format!(
                            "tensor `{}` occurs twice in `weight_map`",
                            shortened(&tensor)
                        )));
                    }
                    entries.insert(tensor, shard);
                }
                Ok(WeightMap(entries))
            }
        }
        deserializer.deserialize_map(Entries)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<BTreeMap<String, Vec<String>>, CheckpointError> {
        read_index(text.as_bytes(), Path::new("index.json"))
    }

    #[test]
    fn groups_tensors_by_file() {
        let index = read(
            r#"{"metadata": {"total_size": 3}, "weight_map": {"a": "1.st", "c": "2.st", "b": "1.st"}}"#,
        )
        .unwrap();
        let shards: Vec<_> = index.into_iter().collect();
        assert_eq!(
            shards,
            [
                ("1.st".to_owned(), vec!["a".to_owned(), "b".to_owned()]),
                ("2.st".to_owned(), vec!["c".to_owned()])
            ]
        );
    }

    #[test]
    fn refuses_names_that_leave_the_folder() {
        for shard in
            ["../x", "/etc/passwd", "a/b", "a\\\\b", "..", ".", "", "C:x", "a/", "./a", "a\\u0000"]
        {
            let error = read(&format!(r#"{{"weight_map": {{"w": "{shard}"}}}}"#)).unwrap_err();
            assert!(
                matches!(&error, CheckpointError::ShardPath { tensor, .. } if tensor == "w"),
                "{shard}: {error}"
            );
        }
    }

    #[test]
    fn refuses_what_is_no_index() {
        for (text, part) in [
            ("", "EOF"),
            ("[]", "invalid"),
            ("{}", "weight_map"),
            (r#"{"weight_map": {}}"#, "empty"),
            (r#"{"weight_map": {"a": 1}}"#, "expected a string"),
            (r#"{"weight_map": {"a": "x", "a": "y"}}"#, "`a` occurs twice"),
            (r#"{"weight_map": {"a": "x"}} trailing"#, "trailing"),
        ] {
            let error = read(text).unwrap_err().to_string();
            assert!(error.starts_with("index.json: ") && error.contains(part), "{text}: {error}");
        }
    }
}
