//! `quantization_config`, by its method.
//!
//! What a file says of how it was made (calibration, damping, observers) changes nothing here. What
//! changes the weights and is not known is refused by its name.

use super::compressed_tensors;
use super::kept::Quantization;
use super::keys::{GROUP, known};
use super::modules::Modules;
use super::stored::{Stored, ZeroPoints};
use crate::models::config::error::ConfigError;
use crate::models::config::fields::Fields;

const KEY: &str = "quantization_config";

impl Quantization {
    /// Reads the field `quantization_config`, where there is one.
    ///
    /// # Errors
    /// A [`ConfigError`] that names the field which asks for what is not done here.
    pub(in crate::models) fn read(root: &Fields<'_>) -> Result<Option<Self>, ConfigError> {
        root.child(KEY)?.as_ref().map(quantization).transpose()
    }
}

fn quantization(fields: &Fields<'_>) -> Result<Quantization, ConfigError> {
    match fields.string("quant_method")? {
        Some("fp8") => float8(fields),
        Some("compressed-tensors") => compressed_tensors::quantization(fields),
        Some("awq") => awq(fields),
        Some("gptq") => gptq(fields),
        Some(_) => Err(fields
            .unsupported("quant_method", "the methods are fp8, compressed-tensors, awq and gptq")),
        None => Err(fields.missing("quant_method")),
    }
}

/// DeepSeek's and Qwen's blocks, and one scale for a tensor.
fn float8(fields: &Fields<'_>) -> Result<Quantization, ConfigError> {
    known(fields, &["quant_method", "fmt", "activation_scheme", "weight_block_size"], &SKIPS)?;
    match fields.string("fmt")? {
        None | Some("e4m3" | "float8_e4m3fn") => {}
        Some(_) => return Err(fields.unsupported("fmt", "e4m3 is")),
    }
    match fields.string("activation_scheme")? {
        None | Some("dynamic" | "static") => {}
        Some(_) => return Err(fields.unsupported("activation_scheme", "dynamic and static are")),
    }
    let block = match fields.counts("weight_block_size", GROUP)?.as_deref() {
        None => None,
        Some(&[rows, columns]) => Some([rows as u64, columns as u64]),
        Some(_) => {
            let reason = "must be two numbers, rows and columns of a block";
            return Err(fields.bad_value("weight_block_size", reason));
        }
    };
    let scale = if block.is_some() { "weight_scale_inv" } else { "weight_scale" };
    let stored = Stored::Float8 { block, scale };
    of_all_layers(fields, stored)
}

/// Every layer but those that are named to be kept as they are.
fn of_all_layers(fields: &Fields<'_>, stored: Stored) -> Result<Quantization, ConfigError> {
    let groups = vec![(Modules::Linear, stored)];
    Ok(Quantization { skipped: skipped(fields)?, groups, is_stored: true })
}

fn awq(fields: &Fields<'_>) -> Result<Quantization, ConfigError> {
    known(fields, &["quant_method", "bits", "group_size", "zero_point", "version"], &SKIPS)?;
    four_bits(fields)?;
    match fields.string("version")? {
        Some(version) if !version.eq_ignore_ascii_case("gemm") => {
            return Err(fields.unsupported("version", "gemm is"));
        }
        _ => {}
    }
    if fields.boolean("zero_point")? == Some(false) {
        return Err(fields.unsupported("zero_point", "true is, for AWQ's files have zero points"));
    }
    let stored = Stored::Awq { group: group(fields)? };
    of_all_layers(fields, stored)
}

fn gptq(fields: &Fields<'_>) -> Result<Quantization, ConfigError> {
    let read = ["quant_method", "bits", "group_size", "desc_act", "sym", "checkpoint_format"];
    let beside = ["lm_head", "pack_dtype", "dynamic", "meta", "static_groups", "true_sequential"];
    let of_making =
        ["damp_percent", "damp_auto_increment", "mse", "quantizer", "model_name_or_path"];
    let of_making =
        of_making.iter().chain(&["model_file_base_name", "is_marlin_format", "dataset"]);
    let all: Vec<&str> = read.iter().chain(&beside).chain(of_making).copied().collect();
    known(fields, &all, &SKIPS)?;
    four_bits(fields)?;
    if fields.boolean("desc_act")? == Some(true) {
        let why = "false is: with it a file orders columns by their activations";
        return Err(fields.unsupported("desc_act", why));
    }
    if fields.boolean("lm_head")? == Some(true) {
        return Err(fields.unsupported("lm_head", "a head that is not quantized is"));
    }
    if fields.boolean("is_marlin_format")? == Some(true) {
        return Err(fields.unsupported("is_marlin_format", "false is"));
    }
    match fields.string("pack_dtype")? {
        None | Some("int32") => {}
        Some(_) => return Err(fields.unsupported("pack_dtype", "int32 is")),
    }
    if fields.child("dynamic")?.is_some_and(|rules| !rules.is_empty()) {
        return Err(fields.unsupported("dynamic", "one way for all layers is"));
    }
    let is_symmetric = fields.boolean("sym")?.ok_or_else(|| fields.missing("sym"))?;
    let zeros = match (is_symmetric, fields.string("checkpoint_format")?) {
        // Programs disagree on what zero points such a file holds; all are the middle.
        (true, None | Some("gptq" | "gptq_v2")) => ZeroPoints::Symmetric,
        (false, None | Some("gptq")) => ZeroPoints::LessOne,
        (false, Some("gptq_v2")) => ZeroPoints::Stored,
        (_, Some(_)) => {
            return Err(fields.unsupported("checkpoint_format", "gptq and gptq_v2 are"));
        }
    };
    let stored = Stored::Gptq { group: group(fields)?, zeros };
    of_all_layers(fields, stored)
}

/// Keys that name modules which are not quantized.
const SKIPS: [&str; 2] = ["modules_to_not_convert", "ignored_layers"];

fn skipped(fields: &Fields<'_>) -> Result<Vec<Modules>, ConfigError> {
    let mut skipped = Vec::new();
    for key in SKIPS {
        let names = fields.strings(key)?.unwrap_or_default();
        skipped.extend(names.into_iter().map(|name| Modules::Path(name.to_owned())));
    }
    Ok(skipped)
}

fn four_bits(fields: &Fields<'_>) -> Result<(), ConfigError> {
    match fields.required_count("bits", 1..=64)? {
        4 => Ok(()),
        _ => Err(fields.unsupported("bits", "4 is")),
    }
}

/// `group_size`; -1 is a whole row.
fn group(fields: &Fields<'_>) -> Result<Option<u64>, ConfigError> {
    const SIZE: &str = "group_size";
    if fields.get(SIZE).and_then(serde_json::Value::as_i64) == Some(-1) {
        return Ok(None);
    }
    fields.required_count(SIZE, GROUP).map(|group| Some(group as u64))
}
