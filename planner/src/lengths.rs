//! Named distributions of prompt and output lengths.

use std::str::FromStr;

use rand::{Rng, RngExt};
use rand_distr::{Distribution, Exp, LogNormal};
use serde::Deserialize;

use crate::error::PlannerError;
use crate::traffic::MAX_STEP_TOKENS;

/// A distribution over lengths in tokens, 1 or more.
#[derive(Debug, derive_more::Display, Clone, Copy, PartialEq, Deserialize)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
pub enum Lengths {
    /// Every length is this one.
    #[display("constant:{_0}")]
    Constant(u32),
    /// Every length of a range alike.
    #[display("uniform:min={min},max={max}")]
    Uniform {
        /// The shortest that is drawn.
        min: u32,
        /// The longest that is drawn.
        max: u32,
    },
    /// Exponential, cut at a maximum.
    #[display("exponential:mean={mean},max={max}")]
    Exponential {
        /// Mean before the cut.
        mean: f64,
        /// Longer draws become this.
        max: u32,
    },
    /// Log-normal, cut at a maximum.
    #[display("lognormal:median={median},sigma={sigma},max={max}")]
    LogNormal {
        /// Half of the lengths are below it.
        median: f64,
        /// Standard deviation of the logarithm.
        sigma: f64,
        /// Longer draws become this.
        max: u32,
    },
}

impl Lengths {
    /// A length at random, at least 1 and at most the maximum.
    pub fn sample(&self, rng: &mut impl Rng) -> u32 {
        let cut = |length: f64, max: u32| (length.round() as u32).clamp(1, max);
        match *self {
            Lengths::Constant(length) => length,
            Lengths::Uniform { min, max } => rng.random_range(min..=max),
            Lengths::Exponential { mean, max } => {
                cut(Exp::new(1.0 / mean).map_or(mean, |d| d.sample(rng)), max)
            }
            Lengths::LogNormal { median, sigma, max } => {
                cut(LogNormal::new(median.ln(), sigma).map_or(median, |d| d.sample(rng)), max)
            }
        }
    }

    fn check(self) -> Result<Self, String> {
        let length = |name: &str, value: u32| match value {
            1..=MAX_STEP_TOKENS => Ok(()),
            _ => Err(format!("`{name}` is {value}, not in 1..={MAX_STEP_TOKENS}")),
        };
        let positive = |name: &str, value: f64, most: f64| {
            if value > 0.0 && value <= most {
                Ok(())
            } else {
                Err(format!("`{name}` is {value}, not above 0 and at most {most}"))
            }
        };
        match self {
            Lengths::Constant(value) => length("constant", value)?,
            Lengths::Uniform { min, max } => {
                length("min", min)?;
                length("max", max)?;
                if min > max {
                    return Err(format!("`min` is {min}, above `max` {max}"));
                }
            }
            Lengths::Exponential { mean, max } => {
                positive("mean", mean, f64::from(MAX_STEP_TOKENS))?;
                length("max", max)?;
            }
            Lengths::LogNormal { median, sigma, max } => {
                positive("median", median, f64::from(MAX_STEP_TOKENS))?;
                positive("sigma", sigma, 10.0)?;
                length("max", max)?;
            }
        }
        Ok(self)
    }
}

impl FromStr for Lengths {
    type Err = PlannerError;

    fn from_str(text: &str) -> Result<Self, PlannerError> {
        parse(text)
            .and_then(Lengths::check)
            .map_err(|reason| PlannerError::BadLengths { text: text.to_owned(), reason })
    }
}

/// `lognormal:median=300,sigma=1,max=4096` is an inline table of TOML but for its brackets.
fn parse(text: &str) -> Result<Lengths, String> {
    let (name, rest) = text.split_once(':').ok_or("no colon after its name")?;
    let table = match name {
        "constant" => format!("{name} = {rest}"),
        _ => format!("{name} = {{ {rest} }}"),
    };
    toml::from_str(&table).map_err(|error| error.message().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::SeedableRng;

    #[test]
    fn parses_what_it_prints() {
        for text in [
            "constant:512",
            "uniform:min=16,max=512",
            "exponential:mean=200,max=2048",
            "lognormal:median=300,sigma=1.25,max=4096",
        ] {
            assert_eq!(text.parse::<Lengths>().unwrap().to_string(), text);
        }
        for text in [
            "512",
            "zipf:s=2",
            "constant:0",
            "constant:-4",
            "uniform:min=9,max=3",
            "uniform:min=9",
            "exponential:mean=-2,max=9",
            "lognormal:median=300,sigma=nan,max=4096",
            "lognormal:median=300,sigma=1,max=4096,mu=1",
        ] {
            let error = text.parse::<Lengths>().unwrap_err().to_string();
            assert!(error.contains("is no length distribution"), "{error}");
        }
    }

    #[test]
    fn samples_have_the_stated_middle_and_bounds() {
        let mut rng = rand_chacha::ChaCha8Rng::seed_from_u64(7);
        let mut draw = |text: &str| -> Vec<u32> {
            let lengths: Lengths = text.parse().unwrap();
            let mut drawn: Vec<u32> = (0..4001).map(|_| lengths.sample(&mut rng)).collect();
            drawn.sort_unstable();
            drawn
        };
        let drawn = draw("lognormal:median=300,sigma=1,max=2000");
        assert!((270..330).contains(&drawn[2000]) && drawn[4000] == 2000 && drawn[0] >= 1);
        let drawn = draw("exponential:mean=200,max=100000");
        let mean = drawn.iter().sum::<u32>() / 4001;
        assert!((185..215).contains(&mean), "{mean}");
        let drawn = draw("uniform:min=5,max=8");
        assert_eq!((drawn[0], drawn[4000]), (5, 8));
        assert_eq!(draw("constant:9")[17], 9);
    }
}
