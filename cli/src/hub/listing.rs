//! What the hub lists of a model, and which of it is needed.

use super::digest::Digest;
use anyhow::{Context, bail};
use serde_json::Value;
use std::collections::BTreeSet;

/// A file of a model, as the hub lists it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct RemoteFile {
    /// From the model's folder on, with slashes.
    pub(super) path: String,
    pub(super) bytes: Option<u64>,
    /// What its bytes come to.
    pub(super) digest: Option<Digest>,
}

/// A model at a commit.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Listing {
    pub(super) commit: String,
    pub(super) files: Vec<RemoteFile>,
}

impl Listing {
    /// Reads the answer of `/api/models/NAME/revision/REVISION?blobs=true`.
    pub(super) fn read(text: &str) -> anyhow::Result<Self> {
        let answer: Value = serde_json::from_str(text).context("it is no JSON")?;
        let commit = answer["sha"].as_str().unwrap_or_default();
        if commit.len() != 40 || !commit.chars().all(|c| c.is_ascii_hexdigit()) {
            bail!("it names no commit");
        }
        let listed = answer["siblings"].as_array().context("it lists no files")?;
        let file = |entry: &Value| -> anyhow::Result<RemoteFile> {
            let path = entry["rfilename"].as_str().context("a file has no name")?;
            if !is_inside(path) {
                bail!("a file of it would be written elsewhere: {path:?}");
            }
            let lfs = &entry["lfs"];
            let digest = match (lfs["sha256"].as_str(), entry["blobId"].as_str()) {
                (Some(sha), _) => Some(Digest::sha256(sha).context("a digest is none")?),
                (None, Some(sha)) => Some(Digest::git(sha).context("a digest is none")?),
                (None, None) => None,
            };
            let bytes = lfs["size"].as_u64().or_else(|| entry["size"].as_u64());
            Ok(RemoteFile { path: path.to_owned(), bytes, digest })
        };
        let files = listed.iter().map(file).collect::<anyhow::Result<_>>()?;
        Ok(Self { commit: commit.to_owned(), files })
    }

    /// The files that a model is run by: configuration, tokenizer, templates. Weights come once it is known
    /// which there are.
    pub(super) fn small_files(&self) -> impl Iterator<Item = &RemoteFile> {
        self.files.iter().filter(|file| is_small(&file.path))
    }

    /// The files of weights: those of the index where there is one, else the one that there is.
    pub(super) fn weights(&self, index: Option<&str>) -> anyhow::Result<Vec<&RemoteFile>> {
        let is_top = |path: &str| path.ends_with(".safetensors") && !path.contains('/');
        let file = |path: &str| self.files.iter().find(|file| file.path == path);
        if let Some(index) = index {
            let shards = shards_of(index);
            if shards.is_empty() {
                bail!("model.safetensors.index.json names no file of weights");
            }
            let found = shards.iter().map(|shard| {
                file(shard).with_context(|| {
                    format!("the index names {shard}, and the hub has no such file")
                })
            });
            return found.collect();
        }
        if let Some(one) = file("model.safetensors") {
            return Ok(vec![one]);
        }
        let rest = self.files.iter().filter(|file| is_top(&file.path));
        let rest: Vec<_> = rest.filter(|file| !file.path.starts_with("consolidated")).collect();
        match rest.is_empty() {
            true => bail!("it has no weights in safetensors, and others are not read"),
            false => Ok(rest),
        }
    }
}

/// Whether a path stays within its folder.
fn is_inside(path: &str) -> bool {
    let mut parts = path.split('/');
    let is_part = |part: &str| !part.is_empty() && part != "." && part != "..";
    !path.contains(['\\', '\0']) && parts.all(is_part)
}

fn is_small(path: &str) -> bool {
    let is_text = |name: &str| {
        [".json", ".jinja"].iter().any(|end| name.ends_with(end)) || name == "merges.txt"
    };
    match path.split_once('/') {
        None => is_text(path),
        // Poolings and dense layers of sentence encoders; templates beside the first.
        Some(("additional_chat_templates", name)) => name.ends_with(".jinja"),
        Some((folder, "config.json" | "model.safetensors")) => {
            folder.split_once('_').is_some_and(|(number, _)| number.parse::<u8>().is_ok())
        }
        Some(_) => false,
    }
}

/// The files that an index names; those that would be elsewhere are none.
pub(super) fn shards_of(index: &str) -> BTreeSet<String> {
    let index: Value = serde_json::from_str(index).unwrap_or_default();
    let map = index["weight_map"].as_object();
    let files = map.into_iter().flat_map(|map| map.values()).filter_map(Value::as_str);
    files.filter(|file| is_inside(file)).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn listing(paths: &[&str]) -> Listing {
        let files = paths.iter().map(|path| json!({"rfilename": path, "size": 3}));
        let answer = json!({"sha": "a".repeat(40), "siblings": files.collect::<Vec<_>>()});
        Listing::read(&answer.to_string()).unwrap()
    }

    #[test]
    fn what_is_needed_is_small_files_and_one_set_of_weights() {
        let all = listing(&[
            ".gitattributes",
            "README.md",
            "config.json",
            "generation_config.json",
            "tokenizer.json",
            "merges.txt",
            "chat_template.jinja",
            "additional_chat_templates/tools.jinja",
            "1_Pooling/config.json",
            "onnx/config.json",
            "original/params.json",
            "model.safetensors",
            "consolidated.safetensors",
            "pytorch_model.bin",
            "picture.png",
        ]);
        let small: Vec<_> = all.small_files().map(|file| file.path.as_str()).collect();
        let expected = [
            "config.json",
            "generation_config.json",
            "tokenizer.json",
            "merges.txt",
            "chat_template.jinja",
            "additional_chat_templates/tools.jinja",
            "1_Pooling/config.json",
        ];
        assert_eq!(small, expected);
        let weights = |listing: &Listing, index: Option<&str>| {
            let found = listing.weights(index).map_err(|error| error.to_string())?;
            Ok::<_, String>(
                found.iter().map(|file| file.path.clone()).collect::<Vec<_>>().join(" "),
            )
        };
        assert_eq!(weights(&all, None).unwrap(), "model.safetensors");
        let index = "{\"weight_map\": {\"x\": \"b.safetensors\", \"y\": \"a.safetensors\", \"z\": \"../c\"}}";
        let parts = listing(&["a.safetensors", "b.safetensors", "c.safetensors"]);
        assert_eq!(weights(&parts, Some(index)).unwrap(), "a.safetensors b.safetensors");
        let short = weights(&listing(&["a.safetensors"]), Some(index)).unwrap_err();
        assert!(short.contains("the index names b.safetensors"), "{short}");
        assert!(
            weights(&listing(&["pytorch_model.bin"]), None).unwrap_err().contains("no weights")
        );
        assert!(weights(&parts, Some("{}")).unwrap_err().contains("names no file"));
    }

    #[test]
    fn a_listing_that_lies_is_refused() {
        let commit = "a".repeat(40);
        for (answer, said) in [
            (json!("x"), "names no commit"),
            (json!({"sha": "main", "siblings": []}), "names no commit"),
            (json!({"sha": commit}), "lists no files"),
            (json!({"sha": commit, "siblings": [{"rfilename": "../x"}]}), "written elsewhere"),
            (json!({"sha": commit, "siblings": [{"rfilename": "/etc/x"}]}), "written elsewhere"),
            (json!({"sha": commit, "siblings": [{"rfilename": "a\\b"}]}), "written elsewhere"),
            (
                json!({"sha": commit, "siblings": [{"rfilename": "a", "blobId": "../../x"}]}),
                "digest is none",
            ),
        ] {
            let error = Listing::read(&answer.to_string()).unwrap_err().to_string();
            assert!(error.contains(said), "{answer}: {error}");
        }
        assert!(Listing::read("<html>").is_err());
    }
}
