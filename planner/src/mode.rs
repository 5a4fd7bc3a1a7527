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
    /// Decode batches are launched; pieces for mixed ones.
    NoneAndPiecewise,
    /// Decode batches are launched; whole steps for mixed ones.
    NoneAndFull,
    /// Pieces for decode batches; mixed ones are launched.
    PiecewiseAndNone,
    /// Pieces for decode batches, whole steps for mixed ones.
    PiecewiseAndFull,
}

impl GraphMode {
    /// The modes in the order in which messages list them: every pair of a way for decode batches and one
    /// for mixed ones.
    pub const ALL: [Self; 9] = [
        Self::None,
        Self::Piecewise,
        Self::Full,
        Self::FullDecodeOnly,
        Self::FullAndPiecewise,
        Self::NoneAndPiecewise,
        Self::NoneAndFull,
        Self::PiecewiseAndNone,
        Self::PiecewiseAndFull,
    ];

    /// How a batch runs in which every sequence brings the same number of tokens.
    pub const fn decode(self) -> StepMode {
        match self {
            Self::None | Self::NoneAndPiecewise | Self::NoneAndFull => StepMode::None,
            Self::Piecewise | Self::PiecewiseAndNone | Self::PiecewiseAndFull => {
                StepMode::Piecewise
            }
            Self::Full | Self::FullDecodeOnly | Self::FullAndPiecewise => StepMode::Full,
        }
    }

    /// How a batch runs whose sequences bring different numbers of tokens.
    pub const fn mixed(self) -> StepMode {
        match self {
            Self::None | Self::FullDecodeOnly | Self::PiecewiseAndNone => StepMode::None,
            Self::Piecewise | Self::FullAndPiecewise | Self::NoneAndPiecewise => {
                StepMode::Piecewise
            }
            Self::Full | Self::NoneAndFull | Self::PiecewiseAndFull => StepMode::Full,
        }
    }

    /// The mode in which decode batches run in one way and mixed ones in another.
    pub fn of(decode: StepMode, mixed: StepMode) -> Self {
        let is_both = |mode: &Self| mode.decode() == decode && mode.mixed() == mixed;
        // Every pair has a mode, which a test holds.
        Self::ALL.into_iter().find(is_both).unwrap_or(Self::None)
    }

    /// Whether steps of some kind run so.
    pub fn has(self, step: StepMode) -> bool {
        self.decode() == step || self.mixed() == step
    }

    /// Whether decode batches have graphs of whole steps, and so sizes of their own.
    pub fn has_decode_graphs(self) -> bool {
        self.decode() == StepMode::Full
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
        let all = [
            Self::Full,
            Self::FullAndPiecewise,
            Self::FullDecodeOnly,
            Self::PiecewiseAndFull,
            Self::Piecewise,
            Self::NoneAndFull,
            Self::NoneAndPiecewise,
            Self::PiecewiseAndNone,
            Self::None,
        ];
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
        Self::of(every_step, every_step)
    }
}

impl std::str::FromStr for GraphMode {
    type Err = String;

    /// Reads a name in any case: vLLM writes `FULL_AND_PIECEWISE`. A mode that has a shorter name is read
    /// as a pair, too: `full_and_none`.
    fn from_str(text: &str) -> Result<Self, String> {
        let pair = |mode: &Self| format!("{}_and_{}", mode.decode().name(), mode.mixed().name());
        let is_called = |mode: &Self| {
            mode.name().eq_ignore_ascii_case(text) || pair(mode).eq_ignore_ascii_case(text)
        };
        Self::ALL.into_iter().find(is_called).ok_or_else(|| {
            let names = Self::ALL.map(Self::name).join(", ");
            format!("unknown graph mode `{text}`; one of {names}")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use GraphMode::{
        Full, FullAndPiecewise, FullDecodeOnly, None, NoneAndFull, NoneAndPiecewise, Piecewise,
        PiecewiseAndFull, PiecewiseAndNone,
    };

    const WAYS: [StepMode; 3] = [StepMode::None, StepMode::Piecewise, StepMode::Full];

    #[test]
    fn what_a_mode_needs_is_what_its_steps_are() {
        for (mode, [decode, mixed], [full, splitting, token_graphs]) in [
            (None, [StepMode::None; 2], [false; 3]),
            (Piecewise, [StepMode::Piecewise; 2], [false, true, true]),
            (Full, [StepMode::Full; 2], [true, false, true]),
            (FullDecodeOnly, [StepMode::Full, StepMode::None], [true, false, false]),
            (FullAndPiecewise, [StepMode::Full, StepMode::Piecewise], [true; 3]),
            (NoneAndPiecewise, [StepMode::None, StepMode::Piecewise], [false, true, true]),
            (NoneAndFull, [StepMode::None, StepMode::Full], [false, false, true]),
            (PiecewiseAndNone, [StepMode::Piecewise, StepMode::None], [false, true, false]),
            (PiecewiseAndFull, [StepMode::Piecewise, StepMode::Full], [false, true, true]),
        ] {
            assert_eq!([mode.decode(), mode.mixed()], [decode, mixed], "{mode:?}");
            let needs = [mode.has_decode_graphs(), mode.needs_splitting(), mode.has_token_graphs()];
            assert_eq!(needs, [full, splitting, token_graphs], "{mode:?}");
            for step in WAYS {
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
        for (decode, mixed) in WAYS.into_iter().flat_map(|step| WAYS.map(|mixed| (step, mixed))) {
            let mode = GraphMode::of(decode, mixed);
            assert_eq!((mode.decode(), mode.mixed()), (decode, mixed));
            assert_eq!(format!("{}_and_{}", decode.name(), mixed.name()).parse(), Ok(mode));
        }
    }
}
