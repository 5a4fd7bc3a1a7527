//! Rotary position embeddings: the two forms in which configurations state them, and the
//! frequencies that follow.

use serde_json::Value;
use std::ops::RangeInclusive;

use super::error::ConfigError;
use super::fields::Fields;

/// Lengths of a context.
pub(in crate::models) const POSITIONS: RangeInclusive<usize> = 1..=1 << 27;

/// Rotary embedding of a decoder. The dimensions of a head that rotate do so in halves: of `n`,
/// dimension `i` with dimension `i + n / 2`.
#[derive(Debug, Clone, PartialEq)]
pub struct RopeConfig {
    /// The base of the geometric series of frequencies.
    pub theta: f64,
    /// The share of a head's dimensions that rotate, the first ones; the others are left as they are.
    pub rotated: f64,
    /// How the frequencies are stretched for a longer context.
    pub scaling: RopeScaling,
}

/// Stretching of rope frequencies.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum RopeScaling {
    /// `rope_type` `default`: none.
    None,
    /// `rope_type` `linear`: every frequency divided by `factor`.
    Linear {
        /// The divisor, at least 1.
        factor: f64,
    },
    /// `rope_type` `llama3`: long wavelengths divided by `factor`, short ones kept, those between
    /// interpolated.
    Llama3 {
        /// The divisor of long wavelengths, at least 1.
        factor: f64,
        /// Wavelengths above `original_max_position_embeddings / low_freq_factor` are long.
        low_freq_factor: f64,
        /// Wavelengths below `original_max_position_embeddings / high_freq_factor` are short.
        high_freq_factor: f64,
        /// Context length before stretching, in positions.
        original_max_position_embeddings: usize,
    },
    /// `rope_type` `yarn` (Peng et al. 2023): pairs that turn less than `beta_slow` times in the
    /// original context divided by `factor`, those that turn more than `beta_fast` times kept, those
    /// between interpolated by their number.
    Yarn {
        /// The divisor of slow pairs, at least 1.
        factor: f64,
        /// Turns above which a pair is kept.
        beta_fast: f64,
        /// Turns below which a pair is divided.
        beta_slow: f64,
        /// Context length before stretching, in positions.
        original_max_position_embeddings: usize,
        /// Whether the ends of the range between are whole numbers of pairs.
        truncate: bool,
        /// What cosines and sines are multiplied by.
        attention_factor: f64,
    },
    /// `rope_type` `longrope` (Ding et al. 2024): a divisor for each pair.
    LongRope {
        /// The divisors where no sequence is longer than the original context.
        short_factor: Vec<f64>,
        /// The divisors otherwise.
        long_factor: Vec<f64>,
        /// Context length before stretching, in positions.
        original_max_position_embeddings: usize,
        /// What cosines and sines are multiplied by.
        attention_factor: f64,
    },
}

/// What a table of cosines and sines is made of.
#[derive(Debug, Clone, PartialEq)]
pub struct RopeTable {
    /// The angle in radians by which each pair turns from one position to the next.
    pub frequencies: Vec<f64>,
    /// What cosines and sines are multiplied by.
    pub factor: f64,
}

/// What a family's rope may be and is where nothing is stated.
#[derive(Debug, Clone, Copy)]
pub(in crate::models) struct RopeForm {
    /// The base.
    pub(in crate::models) theta: f64,
    /// Whether the family's code leaves some dimensions as they are.
    pub(in crate::models) is_partial: bool,
    /// Whether layers that see all have one of their own, which `rope_parameters` may have under their kind.
    pub(in crate::models) is_by_kind: bool,
}

/// The kinds of layers that `rope_parameters` may have a rope for each.
pub(in crate::models) const KINDS: [&str; 2] = ["full_attention", "sliding_attention"];

const THETA: RangeInclusive<f64> = 1.0..=1e15;
const FACTOR: RangeInclusive<f64> = 1.0..=1e6;
const FREQ_FACTOR: RangeInclusive<f64> = 1e-6..=1e6;
/// Turns of a pair in a context, and what cosines and sines are multiplied by.
const TURNS: RangeInclusive<f64> = 1e-3..=1e6;
const ATTENTION_FACTOR: RangeInclusive<f64> = 1e-3..=1e3;

impl RopeConfig {
    /// That of a base alone.
    pub fn plain(theta: f64) -> Self {
        Self { theta, rotated: 1.0, scaling: RopeScaling::None }
    }

    /// The table for sequences of up to `length` positions.
    ///
    /// `theta ^ (-2 i / n)`, then the scaling; `llama3` as published with Llama 3.1. In transformers
    /// every step of this is rounded to `f32`; here only the caller rounds, once. Which divisors
    /// `longrope` takes follows from `length` alone: in transformers each sequence starts with the
    /// short ones, and the keys that it has stay so when it becomes longer.
    pub fn table(&self, head_dim: usize, length: u64) -> RopeTable {
        let rotated = self.rotated_dims(head_dim);
        let exponent = |pair: usize| (2 * pair) as f64 / rotated as f64;
        let plain = (0..rotated / 2).map(|pair| self.theta.powf(-exponent(pair)));
        let frequencies = plain.enumerate();
        let frequencies = frequencies.map(|(pair, frequency)| {
            self.scaling.apply(frequency, pair, rotated, self.theta, length)
        });
        let factor = match self.scaling {
            RopeScaling::Yarn { attention_factor, .. }
            | RopeScaling::LongRope { attention_factor, .. } => attention_factor,
            RopeScaling::None | RopeScaling::Linear { .. } | RopeScaling::Llama3 { .. } => 1.0,
        };
        RopeTable { frequencies: frequencies.collect(), factor }
    }

    /// How many dimensions of a head rotate.
    pub fn rotated_dims(&self, head_dim: usize) -> usize {
        (head_dim as f64 * self.rotated) as usize
    }

    /// Reads `rope_parameters`, or the older `rope_theta` and `rope_scaling`; a context is
    /// `positions` long where it is not stated how long it was.
    pub(in crate::models) fn read(
        root: &Fields<'_>,
        form: RopeForm,
        positions: usize,
    ) -> Result<Self, ConfigError> {
        let newer = match non_empty_child(root, "rope_parameters")? {
            Some(kinds) if form.is_by_kind && KINDS.iter().any(|kind| kinds.is_present(kind)) => {
                kinds.child(KINDS[0])?
            }
            rope => rope,
        };
        let older = non_empty_child(root, "rope_scaling")?;
        let read_scaling = |fields: &Fields<'_>| read_scaling(fields, root, positions);
        if let (Some(newer), Some(older)) = (&newer, &older)
            && (read_scaling(newer)? != read_scaling(older)?
                || (newer.get("rope_theta").is_some()
                    && older.get("rope_theta").is_some()
                    && read_theta(newer)? != read_theta(older)?))
        {
            return Err(root.conflict("rope_parameters", root, "rope_scaling"));
        }
        let mut stated = vec![*root];
        stated.extend(newer);
        stated.extend(older);
        let mut theta: Option<(f64, Fields<'_>)> = None;
        for fields in &stated {
            match (read_theta(fields)?, theta) {
                (Some(value), Some((earlier, at))) if value != earlier => {
                    return Err(fields.conflict("rope_theta", &at, "rope_theta"));
                }
                (Some(value), _) => theta = Some((value, *fields)),
                (None, _) => {}
            }
        }
        let mut rotated = 1.0;
        for fields in &stated {
            rotated = read_rotated(fields, form)?.unwrap_or(rotated);
        }
        let scaling = match newer.or(older) {
            Some(fields) => read_scaling(&fields)?,
            None => RopeScaling::None,
        };
        Ok(Self { theta: theta.map_or(form.theta, |(value, _)| value), rotated, scaling })
    }

    /// Reads a rope that one object states alone.
    pub(in crate::models) fn read_one(
        fields: &Fields<'_>,
        form: RopeForm,
        positions: usize,
    ) -> Result<Self, ConfigError> {
        Ok(Self {
            theta: read_theta(fields)?.unwrap_or(form.theta),
            rotated: read_rotated(fields, form)?.unwrap_or(1.0),
            scaling: read_scaling(fields, fields, positions)?,
        })
    }
}

impl RopeScaling {
    /// The frequency of a pair of those that `rotated` dimensions are.
    fn apply(&self, frequency: f64, pair: usize, rotated: usize, theta: f64, length: u64) -> f64 {
        match *self {
            Self::None => frequency,
            Self::Linear { factor } => frequency / factor,
            Self::Llama3 {
                factor,
                low_freq_factor,
                high_freq_factor,
                original_max_position_embeddings,
            } => {
                let context = original_max_position_embeddings as f64;
                let wavelength = std::f64::consts::TAU / frequency;
                if wavelength < context / high_freq_factor {
                    frequency
                } else if wavelength > context / low_freq_factor {
                    frequency / factor
                } else {
                    let smooth = (context / wavelength - low_freq_factor)
                        / (high_freq_factor - low_freq_factor);
                    (1.0 - smooth) * frequency / factor + smooth * frequency
                }
            }
            Self::Yarn {
                factor,
                beta_fast,
                beta_slow,
                original_max_position_embeddings,
                truncate,
                ..
            } => {
                let context = original_max_position_embeddings as f64;
                // The number of the pair, as a fraction, that turns so often in the context.
                let pair_of = |turns: f64| {
                    let once = (context / (turns * std::f64::consts::TAU)).ln();
                    rotated as f64 * once / (2.0 * theta.ln())
                };
                let (low, high) = (pair_of(beta_fast), pair_of(beta_slow));
                let (low, high) = if truncate { (low.floor(), high.ceil()) } else { (low, high) };
                let (low, high) = (low.max(0.0), high.min(rotated as f64 - 1.0));
                let width = if low == high { 0.001 } else { high - low };
                let divided = ((pair as f64 - low) / width).clamp(0.0, 1.0);
                frequency / factor * divided + frequency * (1.0 - divided)
            }
            Self::LongRope {
                ref short_factor,
                ref long_factor,
                original_max_position_embeddings,
                ..
            } => {
                let is_long = length > original_max_position_embeddings as u64;
                frequency / if is_long { long_factor } else { short_factor }[pair]
            }
        }
    }
}

fn non_empty_child<'a>(root: &Fields<'a>, key: &'a str) -> Result<Option<Fields<'a>>, ConfigError> {
    Ok(root.child(key)?.filter(|fields| !fields.is_empty()))
}

fn read_theta(fields: &Fields<'_>) -> Result<Option<f64>, ConfigError> {
    fields.number("rope_theta", THETA)
}

/// The share of dimensions that rotate.
fn read_rotated(fields: &Fields<'_>, form: RopeForm) -> Result<Option<f64>, ConfigError> {
    const KEY: &str = "partial_rotary_factor";
    match fields.get(KEY).map(Value::as_f64) {
        None => Ok(None),
        Some(Some(1.0)) => Ok(Some(1.0)),
        Some(Some(share)) if form.is_partial && (1e-3..1.0).contains(&share) => Ok(Some(share)),
        Some(_) if form.is_partial => {
            Err(fields.bad_value(KEY, "must be a number above 0 and at most 1"))
        }
        Some(_) => Err(fields.unsupported(KEY, "only 1.0 is, for this family")),
    }
}

/// How frequencies are stretched by the fields of one object; `root` states the original context where
/// the object does not, and `positions` is what it is where nothing does.
fn read_scaling(
    fields: &Fields<'_>,
    root: &Fields<'_>,
    positions: usize,
) -> Result<RopeScaling, ConfigError> {
    let type_key = if fields.get("rope_type").is_some() { "rope_type" } else { "type" };
    let rope_type = fields.string(type_key)?.unwrap_or("default");
    if fields.string("type")?.is_some_and(|alias| alias != rope_type) {
        return Err(fields.conflict("rope_type", fields, "type"));
    }
    let original = || -> Result<usize, ConfigError> {
        const KEY: &str = "original_max_position_embeddings";
        let stated = root.count(KEY, POSITIONS)?;
        Ok(stated.or(fields.count(KEY, POSITIONS)?).unwrap_or(positions))
    };
    let (scaling, own_keys): (_, &[&str]) = match rope_type {
        "default" => (RopeScaling::None, &[]),
        "linear" => {
            (RopeScaling::Linear { factor: fields.required_number("factor", FACTOR)? }, &["factor"])
        }
        "llama3" => (
            read_llama3(fields)?,
            &["factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"],
        ),
        "yarn" => (read_yarn(fields, original()?)?, &YARN),
        "longrope" | "su" => (read_longrope(fields, original()?, positions)?, &LONGROPE),
        _ => {
            return Err(
                fields.unsupported(type_key, "use default, linear, llama3, yarn or longrope")
            );
        }
    };
    let common = ["rope_type", "type", "rope_theta", "partial_rotary_factor"];
    for (key, value) in fields.iter() {
        if !value.is_null() && !common.contains(&key) && !own_keys.contains(&key) {
            return Err(
                fields.unsupported(key, format!("rope type {rope_type} has no such parameter"))
            );
        }
    }
    Ok(scaling)
}

fn read_llama3(fields: &Fields<'_>) -> Result<RopeScaling, ConfigError> {
    let low_freq_factor = fields.required_number("low_freq_factor", FREQ_FACTOR)?;
    let high_freq_factor = fields.required_number("high_freq_factor", FREQ_FACTOR)?;
    if high_freq_factor <= low_freq_factor {
        return Err(fields.bad_value(
            "high_freq_factor",
            format!("must be above `low_freq_factor` ({low_freq_factor:?})"),
        ));
    }
    Ok(RopeScaling::Llama3 {
        factor: fields.required_number("factor", FACTOR)?,
        low_freq_factor,
        high_freq_factor,
        original_max_position_embeddings: fields
            .required_count("original_max_position_embeddings", POSITIONS)?,
    })
}

const YARN: [&str; 8] = [
    "factor",
    "original_max_position_embeddings",
    "attention_factor",
    "beta_fast",
    "beta_slow",
    "mscale",
    "mscale_all_dim",
    "truncate",
];

fn read_yarn(fields: &Fields<'_>, original: usize) -> Result<RopeScaling, ConfigError> {
    let factor = fields.required_number("factor", FACTOR)?;
    let grown = |scale: f64| 0.1 * scale * factor.ln() + 1.0;
    let [scale, scale_of_all] = ["mscale", "mscale_all_dim"];
    let scales = (fields.number(scale, 0.0..=1e3)?, fields.number(scale_of_all, 0.0..=1e3)?);
    let of_factor = match scales {
        (Some(scale), Some(of_all)) if scale > 0.0 && of_all > 0.0 => grown(scale) / grown(of_all),
        _ => grown(1.0),
    };
    let beta_fast = fields.number("beta_fast", TURNS)?.unwrap_or(32.0);
    let beta_slow = fields.number("beta_slow", TURNS)?.unwrap_or(1.0);
    if beta_slow >= beta_fast {
        return Err(
            fields.bad_value("beta_slow", format!("must be below `beta_fast` ({beta_fast:?})"))
        );
    }
    Ok(RopeScaling::Yarn {
        factor,
        beta_fast,
        beta_slow,
        original_max_position_embeddings: original,
        truncate: fields.boolean("truncate")?.unwrap_or(true),
        attention_factor: fields.number("attention_factor", ATTENTION_FACTOR)?.unwrap_or(of_factor),
    })
}

const LONGROPE: [&str; 5] = [
    "factor",
    "original_max_position_embeddings",
    "attention_factor",
    "short_factor",
    "long_factor",
];

fn read_longrope(
    fields: &Fields<'_>,
    original: usize,
    positions: usize,
) -> Result<RopeScaling, ConfigError> {
    let factors = |key: &str| -> Result<Vec<f64>, ConfigError> {
        let list = fields.get(key).ok_or_else(|| fields.missing(key))?;
        let numbers =
            |list: &Vec<Value>| list.iter().map(Value::as_f64).collect::<Option<Vec<_>>>();
        let list = list.as_array().and_then(numbers);
        let list = list.filter(|list| list.iter().all(|n| (1e-3..=1e6).contains(n)));
        list.ok_or_else(|| fields.bad_value(key, "must be a list of divisors above 0"))
    };
    let grown = match fields.number("factor", FACTOR)? {
        Some(factor) => factor,
        None => positions as f64 / original as f64,
    };
    let of_factor = match grown > 1.0 && original > 1 {
        true => (1.0 + grown.ln() / (original as f64).ln()).sqrt(),
        false => 1.0,
    };
    Ok(RopeScaling::LongRope {
        short_factor: factors("short_factor")?,
        long_factor: factors("long_factor")?,
        original_max_position_embeddings: original,
        attention_factor: fields.number("attention_factor", ATTENTION_FACTOR)?.unwrap_or(of_factor),
    })
}

impl RopeConfig {
    /// Holds a rope that `fields` state against the width of a head.
    ///
    /// # Errors
    /// When the dimensions that rotate are no pairs, or a list has not a divisor for each.
    pub(in crate::models) fn check(
        &self,
        fields: &Fields<'_>,
        head_dim: usize,
    ) -> Result<(), ConfigError> {
        let rotated = self.rotated_dims(head_dim);
        if rotated == 0 || !rotated.is_multiple_of(2) {
            let reason =
                format!("{rotated} of {head_dim} dimensions would rotate, which are no pairs");
            return Err(fields.bad_value("partial_rotary_factor", reason));
        }
        let RopeScaling::LongRope { short_factor, long_factor, .. } = &self.scaling else {
            return Ok(());
        };
        for (key, list) in [("short_factor", short_factor), ("long_factor", long_factor)] {
            if list.len() != rotated / 2 {
                let (found, pairs) = (list.len(), rotated / 2);
                let reason = format!("`{key}` has {found} divisors for {pairs} pairs of a head");
                let names = ["rope_scaling", "rope_parameters"];
                let stated = names.into_iter().find(|name| fields.is_present(name));
                return Err(fields.bad_value(stated.unwrap_or(key), reason));
            }
        }
        Ok(())
    }
}
