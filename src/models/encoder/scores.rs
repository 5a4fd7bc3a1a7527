//! What becomes of a cross-encoder's logit.

use super::super::config::fields::Fields;
use super::super::config::{ConfigError, parse_json, read};
use std::path::Path;

/// What sentence-transformers makes of a cross-encoder's logit before it is a score.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum ScoreActivation {
    /// The logit as it is, of any size; higher is better.
    Identity,
    /// A number from 0 to 1; so it is of a folder that says nothing.
    #[default]
    Sigmoid,
}

impl ScoreActivation {
    /// Reads `config.json` of `folder`: `sentence_transformers.activation_fn`, or by its older name
    /// `sbert_ce_default_activation_function`.
    ///
    /// # Errors
    /// A [`ConfigError`] that names the file and the field.
    pub fn load(folder: &Path) -> Result<Self, ConfigError> {
        let file = folder.join("config.json");
        let value = parse_json(&read(&file)?, &file)?;
        let root = Fields::root(&file, &value)?;
        let newer = root.child("sentence_transformers")?;
        let (fields, key) = match &newer {
            Some(fields) if fields.is_present("activation_fn") => (fields, "activation_fn"),
            _ => (&root, "sbert_ce_default_activation_function"),
        };
        match fields.string(key)?.map(|name| name.rsplit('.').next().unwrap_or(name)) {
            None | Some("Sigmoid") => Ok(Self::Sigmoid),
            Some("Identity") => Ok(Self::Identity),
            Some(_) => Err(fields.unsupported(key, "Sigmoid and Identity are")),
        }
    }

    /// The score of a logit.
    pub fn of(self, logit: f32) -> f32 {
        match self {
            Self::Identity => logit,
            Self::Sigmoid => 1.0 / (1.0 + (-logit).exp()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_folder_says_what_becomes_of_a_logit() {
        let folder = tempfile::tempdir().unwrap();
        let of = |config: serde_json::Value| {
            std::fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
            ScoreActivation::load(folder.path()).map_err(|error| error.to_string())
        };
        assert_eq!(of(serde_json::json!({})), Ok(ScoreActivation::Sigmoid));
        let older = |name: &str| serde_json::json!({"sbert_ce_default_activation_function": name});
        let newer =
            |name: &str| serde_json::json!({"sentence_transformers": {"activation_fn": name}});
        let identity = "torch.nn.modules.linear.Identity";
        assert_eq!(of(older(identity)), Ok(ScoreActivation::Identity));
        assert_eq!(of(newer(identity)), Ok(ScoreActivation::Identity));
        assert_eq!(of(newer("torch.nn.modules.activation.Sigmoid")), Ok(ScoreActivation::Sigmoid));
        let error = of(newer("torch.nn.modules.activation.Tanh")).unwrap_err();
        assert!(error.contains("activation_fn"), "{error}");
        assert_eq!(ScoreActivation::Sigmoid.of(0.0), 0.5);
        assert_eq!(ScoreActivation::Identity.of(-3.5), -3.5);
    }
}
