//! What a run is held against: another level, the reference evaluator, a file.

use super::tensor_file::TensorFile;
use super::trial_args::TrialArgs;
use anyhow::bail;
use piecewise::assembly::Assembly;
use piecewise::trial::{Feed, Outputs, Trial, TrialLevel};
use piecewise_runtime::words::CompileLevel;
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// What a run is held against.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Against {
    Level(TrialLevel),
    /// A text that is run as this one is.
    Text(PathBuf),
    /// Tensors that another run wrote.
    Tensors(PathBuf),
}

impl FromStr for Against {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "reference" {
            return Ok(Self::Level(TrialLevel::Reference));
        }
        if let Ok(level) = text.parse::<CompileLevel>() {
            return Ok(Self::Level(TrialLevel::Compiled(Some(level))));
        }
        match Path::new(text).extension().and_then(|extension| extension.to_str()) {
            Some("pw") => Ok(Self::Text(text.into())),
            Some("safetensors") => Ok(Self::Tensors(text.into())),
            _ => Err(format!(
                "`{text}` is nothing to compare with; write reference, eager or another level, \
                 FILE.safetensors that `run --out` wrote, or another FILE.pw"
            )),
        }
    }
}

impl std::fmt::Display for Against {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Level(TrialLevel::Reference) => f.write_str("the reference evaluator"),
            Self::Level(TrialLevel::Compiled(level)) => {
                write!(f, "the level {}", level.unwrap_or_default().name())
            }
            Self::Text(file) | Self::Tensors(file) => file.display().fmt(f),
        }
    }
}

impl Against {
    /// What this gives of what `trial` is fed; `other` puts another text together.
    pub(crate) fn outputs(
        &self,
        trial: &Trial,
        feed: &Feed,
        args: &TrialArgs,
        other: &dyn Fn(&Path) -> anyhow::Result<Assembly>,
    ) -> anyhow::Result<Outputs> {
        match self {
            Self::Level(level) => Ok(trial.run(*level, feed)?),
            Self::Text(file) => {
                let trial = Trial::new(other(file)?)?;
                let feed = trial.feed(&args.given(trial.graph())?)?;
                Ok(trial.run(TrialLevel::Compiled(None), &feed)?)
            }
            Self::Tensors(file) => of_file(file),
        }
    }
}

/// What a run wrote.
fn of_file(path: &Path) -> anyhow::Result<Outputs> {
    let file = TensorFile::read(path)?;
    let tensors = file.tensors()?;
    let names = match tensors.has("logits") {
        true => vec!["logits".to_owned()],
        false => tensors.numbers("output").iter().map(|n| format!("output_{n}")).collect(),
    };
    if names.is_empty() {
        bail!("{} has neither `logits` nor `output_0`, as `run --out` writes them", path.display());
    }
    let arrays = names.iter().map(|name| tensors.array(name)).collect::<anyhow::Result<_>>()?;
    Ok(Outputs { names, arrays })
}
