//! How a sequence samples.

/// How the token after a row is chosen.
#[derive(Clone, Copy, PartialEq, Debug, serde::Serialize, serde::Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Sampling {
    /// 0 takes the largest logit.
    pub temperature: f32,
    /// Only so many of the largest logits are drawn from; 0 is off.
    pub top_k: u32,
    /// Only the largest logits whose probabilities add up to this are drawn from; 1 is off, and 0 takes
    /// the largest logit.
    pub top_p: f32,
    /// Only tokens at least so likely, as a share of the likeliest one's probability, are drawn from;
    /// 0 is off.
    pub min_p: f32,
    /// Taken from the logit of every id that was generated; 0 is off.
    pub presence_penalty: f32,
    /// Taken from the logit of an id for each time that it was generated; 0 is off.
    pub frequency_penalty: f32,
    /// What positive logits of ids of the prompt and of generated ones are divided by, and negative
    /// ones multiplied with; 1 is off.
    pub repetition_penalty: f32,
    /// With the position, the key of every draw.
    pub seed: u64,
}

impl Sampling {
    /// The parameters of the same choice by which a kernel takes the largest logit where nothing else can
    /// come. Divided by the temperature, two logits may become one, so that a `top_p` of 0 alone would
    /// leave which of them it is to their order.
    pub fn settled(self) -> Self {
        let temperature = if self.top_p == 0.0 { 0.0 } else { self.temperature };
        Self { temperature, ..self }
    }
}

impl Default for Sampling {
    fn default() -> Self {
        Self {
            temperature: 0.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            repetition_penalty: 1.0,
            seed: 0,
        }
    }
}
