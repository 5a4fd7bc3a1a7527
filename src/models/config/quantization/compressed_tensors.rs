//! `quantization_config` of compressed-tensors: groups of modules, each kept in its own way.

use super::kept::Quantization;
use super::keys::{GROUP, known};
use super::modules::Modules;
use super::stored::{Stored, ZeroPoints};
use crate::models::config::error::{ConfigError, shorter, shown};
use crate::models::config::fields::Fields;
use serde_json::Value;

pub(super) fn quantization(fields: &Fields<'_>) -> Result<Quantization, ConfigError> {
    let read = ["quant_method", "format", "config_groups", "ignore", "kv_cache_scheme"];
    let beside = ["quantization_status", "global_compression_ratio", "version"];
    known(fields, &read, &beside)?;
    if fields.get("kv_cache_scheme").is_some() {
        let supported = "null is: keys and values are cached as activations are";
        return Err(fields.unsupported("kv_cache_scheme", supported));
    }
    let ignored = fields.strings("ignore")?.unwrap_or_default();
    let skipped = ignored.into_iter().map(|name| modules(fields, "ignore", name));
    let skipped = skipped.collect::<Result<Vec<_>, _>>()?;
    let all = fields.child("config_groups")?.ok_or_else(|| fields.missing("config_groups"))?;
    let mut groups = Vec::new();
    for (name, value) in all.iter() {
        let Value::Object(_) = value else {
            return Err(all.wrong_type(name, value, "an object"));
        };
        let Some(group) = all.child(name)? else { continue };
        let stored = stored(&group, fields)?;
        let targets = group.strings("targets")?.ok_or_else(|| group.missing("targets"))?;
        for target in targets {
            groups.push((modules(&group, "targets", target)?, stored));
        }
    }
    Ok(Quantization { skipped, groups, is_stored: true })
}

/// The modules that an entry of `ignore` or `targets` names.
fn modules(fields: &Fields<'_>, key: &str, name: &str) -> Result<Modules, ConfigError> {
    match name.strip_prefix("re:") {
        None if name == "Linear" => Ok(Modules::LinearAndHead),
        None => Ok(Modules::Path(name.to_owned())),
        // An expression fits from the start of a name on, as Python's `re.match` takes it.
        Some(expression) => regex::Regex::new(&format!("^(?:{expression})"))
            .map(Modules::Expression)
            .map_err(|error| {
                // Its last line says what is wrong; the others show the expression.
                let error = error.to_string();
                let why = error.lines().last().unwrap_or_default();
                let name = shown(&Value::from(name));
                fields.bad_value(key, format!("{name} is no expression: {}", shorter(why)))
            }),
    }
}

/// How a group's weights are stored; what it does not say of their format `all` does.
fn stored(group: &Fields<'_>, all: &Fields<'_>) -> Result<Stored, ConfigError> {
    known(
        group,
        &["targets", "weights", "input_activations", "output_activations", "format"],
        &[],
    )?;
    if group.get("output_activations").is_some() {
        return Err(group.unsupported("output_activations", "null is"));
    }
    let weights = group.child("weights")?.ok_or_else(|| group.missing("weights"))?;
    let read = ["num_bits", "type", "symmetric", "strategy", "group_size", "block_structure"];
    let more = ["dynamic", "actorder", "observer", "observer_kwargs"];
    known(&weights, &read, &more)?;
    if weights.boolean("dynamic")? == Some(true) {
        return Err(weights.unsupported("dynamic", "false is"));
    }
    match weights.string("actorder")? {
        // The order is in the weights; nothing is left to do.
        None | Some("weight" | "static") => {}
        Some(_) => return Err(weights.unsupported("actorder", "null and weight are")),
    }
    let bits = weights.required_count("num_bits", 1..=64)?;
    let kind = weights.string("type")?.unwrap_or("int");
    let strategy = weights.string("strategy")?;
    let is_symmetric = weights.boolean("symmetric")?.unwrap_or(true);
    let (of_group, of_all) = (group.string("format")?, all.string("format")?);
    let format = of_group.or(of_all);
    match (format, kind, bits) {
        (None | Some("float-quantized" | "naive-quantized"), "float", 8) => {
            float8(&weights, strategy)
        }
        (None | Some("pack-quantized"), "int", 4) => {
            let size = match strategy {
                Some("channel") => None,
                Some("group") | None => Some(weights.required_count("group_size", GROUP)? as u64),
                Some(_) => return Err(weights.unsupported("strategy", "group and channel are")),
            };
            let zeros = if is_symmetric { ZeroPoints::Symmetric } else { ZeroPoints::Stored };
            Ok(Stored::Packed { group: size, zeros })
        }
        (Some("float-quantized" | "naive-quantized" | "pack-quantized") | None, _, _) => {
            let supported = "floats of 8 bits are, and packed integers of 4";
            Err(weights.unsupported("num_bits", supported))
        }
        (Some(_), _, _) => {
            let supported = "the formats are float-quantized, naive-quantized and pack-quantized";
            Err(if of_group.is_some() { group } else { all }.unsupported("format", supported))
        }
    }
}

fn float8(weights: &Fields<'_>, strategy: Option<&str>) -> Result<Stored, ConfigError> {
    let scale = "weight_scale";
    match strategy {
        Some("tensor") | None => Ok(Stored::Float8 { block: None, scale }),
        Some("channel") => Ok(Stored::Float8Rows),
        Some("block") => match weights.counts("block_structure", GROUP)?.as_deref() {
            Some(&[rows, columns]) => {
                Ok(Stored::Float8 { block: Some([rows as u64, columns as u64]), scale })
            }
            _ => {
                let reason = "must be two numbers, rows and columns of a block";
                Err(weights.bad_value("block_structure", reason))
            }
        },
        Some(_) => Err(weights.unsupported("strategy", "tensor, channel and block are")),
    }
}
