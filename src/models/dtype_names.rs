//! What other formats call the element types of the IR.

use piecewise_ir::dtype::DType;

/// The name of `dtype` in a safetensors header.
pub(crate) fn safetensors_name(dtype: DType) -> &'static str {
    match dtype {
        DType::F32 => "F32",
        DType::F16 => "F16",
        DType::BF16 => "BF16",
        DType::I32 => "I32",
        DType::I64 => "I64",
        DType::U8 => "U8",
        DType::Bool => "BOOL",
        DType::E4M3 => "F8_E4M3",
        // The format has none: published files pack such integers into I32.
        DType::I4 => "I4",
    }
}

/// The type that a safetensors header calls `name`, if the IR has it.
pub(crate) fn from_safetensors(name: &str) -> Option<DType> {
    DType::ALL.into_iter().find(|&dtype| !dtype.is_packed() && safetensors_name(dtype) == name)
}

/// The float type that a `config.json` calls `name`, as in `"dtype": "bfloat16"`; a `torch.`
/// prefix is allowed.
pub(crate) fn from_torch(name: &str) -> Option<DType> {
    match name.strip_prefix("torch.").unwrap_or(name) {
        "float32" => Some(DType::F32),
        "float16" => Some(DType::F16),
        "bfloat16" => Some(DType::BF16),
        _ => None,
    }
}
