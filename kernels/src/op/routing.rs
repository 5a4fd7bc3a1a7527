//! How a router's logits choose experts, and weigh what these give.

/// What a logit of a router becomes before it weighs anything.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RouterScores {
    /// Its share of the softmax over all experts.
    Softmax,
    /// `1 / (1 + exp(-logit))`, each by itself.
    Sigmoid,
}

impl RouterScores {
    /// Its name in the text of a graph.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Softmax => "softmax",
            Self::Sigmoid => "sigmoid",
        }
    }

    pub(crate) fn named(name: &str) -> Option<Self> {
        [Self::Softmax, Self::Sigmoid].into_iter().find(|scores| scores.name() == name)
    }
}

/// Which experts a row goes to, and by what each counts.
///
/// The experts of the `top_k` largest logits are chosen; of equal ones those of the lowest index, and a
/// NaN after all numbers. Each counts by its score.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Routing {
    /// Experts of a row, at least 1.
    pub top_k: u32,
    /// What the logits become.
    pub scores: RouterScores,
    /// Whether the scores of the chosen are divided by their sum, and by 1e-20 more where that is of
    /// sigmoids.
    pub renormalize: bool,
    /// What each score is multiplied by in the end; finite and not 0.
    pub scale: f64,
}

/// What is added to a sum of sigmoids, each of which may be 0.
pub(crate) const LEAST_SUM: f64 = 1e-20;
