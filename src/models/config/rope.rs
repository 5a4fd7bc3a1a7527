//! Rotary position embeddings: the two forms in which configurations state them, and the
//! frequencies that follow.

use serde_json::Value;
use std::ops::RangeInclusive;

use super::error::ConfigError;
use super::fields::Fields;

/// Lengths of a context.
pub(super) const POSITIONS: RangeInclusive<usize> = 1..=1 << 27;

/// Rotary embedding of a decoder. All of a head's dimensions rotate, in halves: dimension `i` with
/// dimension `i + head_dim / 2`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RopeConfig {
    /// The base of the geometric series of frequencies.
    pub theta: f64,
    /// How the frequencies are stretched for a longer context.
    pub scaling: RopeScaling,
}

/// Stretching of rope frequencies. None of these scales the sines and cosines.
#[derive(Debug, Clone, Copy, PartialEq)]
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
}

/// The base where a configuration states none: that of every family here.
const DEFAULT_THETA: f64 = 10_000.0;
const THETA: RangeInclusive<f64> = 1.0..=1e15;
const FACTOR: RangeInclusive<f64> = 1.0..=1e6;
const FREQ_FACTOR: RangeInclusive<f64> = 1e-6..=1e6;

impl RopeConfig {
    /// The angle in radians by which each of the `head_dim / 2` pairs turns from one position to
    /// the next, before rounding to `f32`.
    ///
    /// `theta ^ (-2 i / head_dim)`, then the scaling; `llama3` as published with Llama 3.1. In
    /// transformers every step of this is rounded to `f32`; here only the caller rounds, once.
    pub fn inverse_frequencies(&self, head_dim: usize) -> Vec<f64> {
        (0..head_dim / 2)
            .map(|pair| self.theta.powf(-((2 * pair) as f64) / head_dim as f64))
            .map(|frequency| self.scaling.apply(frequency))
            .collect()
    }

    /// Reads `rope_parameters`, or the older `rope_theta` and `rope_scaling`.
    pub(super) fn read(root: &Fields<'_>) -> Result<Self, ConfigError> {
        refuse_partial_rotation(root)?;
        let newer = non_empty_child(root, "rope_parameters")?;
        let older = non_empty_child(root, "rope_scaling")?;
        if let (Some(newer), Some(older)) = (&newer, &older)
            && (read_scaling(newer)? != read_scaling(older)?
                || (newer.get("rope_theta").is_some()
                    && older.get("rope_theta").is_some()
                    && read_theta(newer)? != read_theta(older)?))
        {
            return Err(root.conflict("rope_parameters", root, "rope_scaling"));
        }
        let stated = [Some(root), newer.as_ref(), older.as_ref()];
        let mut theta: Option<(f64, &Fields<'_>)> = None;
        for fields in stated.into_iter().flatten() {
            match (read_theta(fields)?, theta) {
                (Some(value), Some((earlier, at))) if value != earlier => {
                    return Err(fields.conflict("rope_theta", at, "rope_theta"));
                }
                (Some(value), _) => theta = Some((value, fields)),
                (None, _) => {}
            }
        }
        let scaling = match newer.as_ref().or(older.as_ref()) {
            Some(fields) => read_scaling(fields)?,
            None => RopeScaling::None,
        };
        Ok(Self { theta: theta.map_or(DEFAULT_THETA, |(value, _)| value), scaling })
    }
}

impl RopeScaling {
    fn apply(self, frequency: f64) -> f64 {
        match self {
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
        }
    }
}

fn non_empty_child<'a>(root: &Fields<'a>, key: &'a str) -> Result<Option<Fields<'a>>, ConfigError> {
    Ok(root.child(key)?.filter(|fields| !fields.is_empty()))
}

fn read_theta(fields: &Fields<'_>) -> Result<Option<f64>, ConfigError> {
    fields.number("rope_theta", THETA)
}

fn refuse_partial_rotation(fields: &Fields<'_>) -> Result<(), ConfigError> {
    match fields.get("partial_rotary_factor").map(Value::as_f64) {
        None | Some(Some(1.0)) => Ok(()),
        Some(_) => Err(fields.unsupported("partial_rotary_factor", "only 1.0 is")),
    }
}

fn read_scaling(fields: &Fields<'_>) -> Result<RopeScaling, ConfigError> {
    refuse_partial_rotation(fields)?;
    let type_key = if fields.get("rope_type").is_some() { "rope_type" } else { "type" };
    let rope_type = fields.string(type_key)?.unwrap_or("default");
    if fields.string("type")?.is_some_and(|alias| alias != rope_type) {
        return Err(fields.conflict("rope_type", fields, "type"));
    }
    let (scaling, own_keys): (_, &[&str]) = match rope_type {
        "default" => (RopeScaling::None, &[]),
        "linear" => {
            (RopeScaling::Linear { factor: fields.required_number("factor", FACTOR)? }, &["factor"])
        }
        "llama3" => (
            read_llama3(fields)?,
            &["factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"],
        ),
        _ => return Err(fields.unsupported(type_key, "use default, linear or llama3")),
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
