//! How steps run, and which graphs are captured for them.

use serde::{Deserialize, Serialize};
use strum::IntoStaticStr;

/// Whether a step replays CUDA graphs (on the CPU, what stands for them), and how many.
#[derive(
    Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize, IntoStaticStr,
)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum StepMode {
    /// Every kernel is launched by itself; nothing is replayed.
    None,
    /// Pieces replayed, split ops launched between them.
    Piecewise,
    /// One replay, split ops included.
    Full,
}

impl StepMode {
    /// Its name in logs and statistics.
    pub fn name(self) -> &'static str {
        self.into()
    }
}

/// Which graphs a model captures, and for which steps.
#[derive(
    Clone,
    Copy,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Debug,
    Default,
    Serialize,
    Deserialize,
    IntoStaticStr,
    schemars::JsonSchema,
)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum GraphMode {
    /// None: every step is launched.
    None,
    /// Pieces, for every step.
    Piecewise,
    /// Whole steps, for every step.
    Full,
    /// Whole steps for decode batches; mixed batches are launched.
    FullDecodeOnly,
    /// Whole steps for decode batches, pieces for mixed ones.
    #[default]
    FullAndPiecewise,
}

impl GraphMode {
    /// The modes in the order in which messages list them.
    pub const ALL: [Self; 5] =
        [Self::None, Self::Piecewise, Self::Full, Self::FullDecodeOnly, Self::FullAndPiecewise];

    /// How a batch runs in which every sequence brings the same number of tokens.
    pub const fn decode(self) -> StepMode {
        match self {
            Self::None => StepMode::None,
            Self::Piecewise => StepMode::Piecewise,
            Self::Full | Self::FullDecodeOnly | Self::FullAndPiecewise => StepMode::Full,
        }
    }

    /// How a batch runs whose sequences bring different numbers of tokens.
    pub const fn mixed(self) -> StepMode {
        match self {
            Self::None | Self::FullDecodeOnly => StepMode::None,
            Self::Piecewise | Self::FullAndPiecewise => StepMode::Piecewise,
            Self::Full => StepMode::Full,
        }
    }

    /// Whether steps of some kind run so.
    pub fn has(self, step: StepMode) -> bool {
        self.decode() == step || self.mixed() == step
    }

    /// Whether any step is captured as one graph, which every op of it must bear.
    pub fn has_full(self) -> bool {
        self.has(StepMode::Full)
    }

    /// Whether it replays pieces, and so does more with a graph that is split.
    pub fn needs_splitting(self) -> bool {
        self.has(StepMode::Piecewise)
    }

    /// Whether mixed batches have graphs, and so token sizes of their own.
    pub fn has_token_graphs(self) -> bool {
        self.mixed() != StepMode::None
    }

    /// It and the modes below it, the highest first: what is tried where the ops can't support it.
    pub fn and_lower(self) -> impl Iterator<Item = Self> {
        let all =
            [Self::Full, Self::FullAndPiecewise, Self::FullDecodeOnly, Self::Piecewise, Self::None];
        let wants_no_more =
            move |of: &Self| of.decode() <= self.decode() && of.mixed() <= self.mixed();
        all.into_iter().filter(wants_no_more)
    }

    /// Its name in configuration and statistics.
    pub fn name(self) -> &'static str {
        self.into()
    }
}

/// The mode in which every step runs so.
impl From<StepMode> for GraphMode {
    fn from(every_step: StepMode) -> Self {
        match every_step {
            StepMode::None => Self::None,
            StepMode::Piecewise => Self::Piecewise,
            StepMode::Full => Self::Full,
        }
    }
}

impl std::str::FromStr for GraphMode {
    type Err = String;

    /// Reads a name in any case: vLLM writes `FULL_AND_PIECEWISE`.
    fn from_str(text: &str) -> Result<Self, String> {
        let is_called = |mode: &Self| mode.name().eq_ignore_ascii_case(text);
        Self::ALL.into_iter().find(is_called).ok_or_else(|| {
            let names = Self::ALL.map(Self::name).join(", ");
            format!("unknown graph mode `{text}`; one of {names}")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use GraphMode::{Full, FullAndPiecewise, FullDecodeOnly, None, Piecewise};

    #[test]
    fn what_a_mode_needs_is_what_its_steps_are() {
        for (mode, [decode, mixed], [full, splitting, token_graphs]) in [
            (None, [StepMode::None; 2], [false; 3]),
            (Piecewise, [StepMode::Piecewise; 2], [false, true, true]),
            (Full, [StepMode::Full; 2], [true, false, true]),
            (FullDecodeOnly, [StepMode::Full, StepMode::None], [true, false, false]),
            (FullAndPiecewise, [StepMode::Full, StepMode::Piecewise], [true; 3]),
        ] {
            assert_eq!([mode.decode(), mode.mixed()], [decode, mixed], "{mode:?}");
            let needs = [mode.has_full(), mode.needs_splitting(), mode.has_token_graphs()];
            assert_eq!(needs, [full, splitting, token_graphs], "{mode:?}");
            for step in [StepMode::None, StepMode::Piecewise, StepMode::Full] {
                assert_eq!(mode.has(step), decode == step || mixed == step, "{mode:?} {step:?}");
            }
        }
    }

    /// Of two modes the lower one runs no step by more than the other does.
    #[test]
    fn the_modes_below_one_are_all_that_want_no_more() {
        for mode in GraphMode::ALL {
            let lower: Vec<_> = mode.and_lower().collect();
            assert_eq!((lower.first(), lower.last()), (Some(&mode), Some(&None)));
            for other in GraphMode::ALL {
                let wants_no_more =
                    other.decode() <= mode.decode() && other.mixed() <= mode.mixed();
                let listed = lower.iter().filter(|&&listed| listed == other).count();
                assert_eq!(listed, usize::from(wants_no_more), "{other:?} below {mode:?}");
            }
            for (i, higher) in lower.iter().enumerate() {
                let above = |later: &GraphMode| later.and_lower().any(|mode| mode == *higher);
                assert!(!lower[i + 1..].iter().any(above), "{higher:?} before those above it");
            }
        }
    }

    #[test]
    fn names_are_read_as_they_are_written() {
        for mode in GraphMode::ALL {
            assert_eq!(mode.name().parse(), Ok(mode));
            assert_eq!(mode.name().to_uppercase().parse(), Ok(mode));
        }
        let error = "eager".parse::<GraphMode>().unwrap_err();
        assert!(GraphMode::ALL.iter().all(|mode| error.contains(mode.name())), "{error}");
        for step in [StepMode::None, StepMode::Piecewise, StepMode::Full] {
            assert_eq!([GraphMode::from(step).decode(), GraphMode::from(step).mixed()], [step; 2]);
        }
    }
}
