//! What a graph is tried on: ids, tensors of files, numbers, random values.

use super::tensor_file::TensorFile;
use anyhow::{Context, bail};
use piecewise::trial::{Given, GivenInput};
use piecewise_ir::dtype::DType;
use piecewise_ir::graph::Graph;
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// What the steps of a trial read.
#[derive(Debug, clap::Args)]
pub(crate) struct TrialArgs {
    /// Token ids of one sequence; of a decoder a few where none are given.
    #[arg(long, value_delimiter = ',', value_name = "ID,..")]
    pub ids: Option<Vec<u32>>,
    /// What an input reads: x=@FILE.safetensors (its tensor x, or its only one; @FILE:NAME for another),
    /// x=1,2.5,3, x=random:f32[5,8] or x=zeros:f32[5,8]. Inputs that are not named read random values.
    #[arg(long = "input", value_name = "NAME=VALUE")]
    pub inputs: Vec<InputArg>,
    /// Decides the random values.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub seed: u64,
}

/// What an input reads.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct InputArg {
    name: String,
    value: InputValue,
}

#[derive(Clone, PartialEq, Debug)]
enum InputValue {
    File(PathBuf),
    Random(DType, Vec<usize>),
    Zeros(DType, Vec<usize>),
    Elements(Vec<f64>),
}

impl FromStr for InputArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let split = text.split_once('=').filter(|(name, _)| !name.is_empty());
        let (name, value) = split.ok_or("write NAME=VALUE, such as x=random:f32[5,8]")?;
        let value = match (value.strip_prefix('@'), value.split_once(':')) {
            (Some(file), _) => InputValue::File(file.into()),
            (None, Some(("random", ty))) => {
                tensor_type(ty).map(|(d, s)| InputValue::Random(d, s))?
            }
            (None, Some(("zeros", ty))) => tensor_type(ty).map(|(d, s)| InputValue::Zeros(d, s))?,
            _ => InputValue::Elements(elements(value)?),
        };
        // In the text of a graph its name begins so.
        let name = name.strip_prefix('%').unwrap_or(name).to_owned();
        Ok(Self { name, value })
    }
}

fn elements(text: &str) -> Result<Vec<f64>, String> {
    let element = |part: &str| {
        match part.trim() {
        "true" => Ok(1.0),
        "false" => Ok(0.0),
        number => number.parse().map_err(|_| {
            format!("`{part}` is no number; write 1,2.5,3, @FILE.safetensors, random:f32[5,8] or zeros:f32[5,8]")
        }),
    }
    };
    text.split(',').map(element).collect()
}

/// `f32[5,8]`; a scalar has no brackets.
fn tensor_type(text: &str) -> Result<(DType, Vec<usize>), String> {
    let wrong = || format!("`{text}` is no type; write one such as f32[5,8] or i32[5]");
    let (dtype, dims) = match text.split_once('[') {
        Some((dtype, dims)) => (dtype, dims.strip_suffix(']').ok_or_else(wrong)?),
        None => (text, ""),
    };
    let dims = dims.split(',').filter(|dim| !dim.trim().is_empty());
    let dims = dims.map(|dim| dim.trim().parse::<usize>().ok().filter(|&n| n < 1 << 32));
    let dims = dims.collect::<Option<Vec<_>>>().ok_or_else(wrong)?;
    Ok((dtype.parse().map_err(|_| wrong())?, dims))
}

impl TrialArgs {
    /// What they say, of a graph.
    ///
    /// # Errors
    /// When a file has no such tensor, or a type is not that of the input.
    pub(crate) fn given(&self, graph: &Graph) -> anyhow::Result<Given> {
        let input = |arg: &InputArg| {
            let given = match &arg.value {
                InputValue::File(file) => of_file(file, &arg.name)?,
                InputValue::Elements(elements) => {
                    GivenInput::Elements { shape: None, elements: elements.clone() }
                }
                InputValue::Random(dtype, shape) | InputValue::Zeros(dtype, shape) => {
                    let declared = graph.inputs().iter().find(|input| input.name == arg.name);
                    let declared = declared.map(|input| graph.ty(input.value).dtype);
                    if let Some(declared) = declared.filter(|declared| declared != dtype) {
                        bail!(
                            "input %{} is of {declared}; write that in place of {dtype}",
                            arg.name
                        );
                    }
                    match arg.value {
                        InputValue::Random(..) => GivenInput::Random(shape.clone()),
                        _ => GivenInput::Elements {
                            elements: vec![0.0; shape.iter().product()],
                            shape: Some(shape.clone()),
                        },
                    }
                }
            };
            Ok((arg.name.clone(), given))
        };
        let inputs = self.inputs.iter().map(input).collect::<anyhow::Result<_>>()?;
        Ok(Given { ids: self.ids.clone(), inputs, rows: None, seed: self.seed })
    }
}

/// A tensor of a file: the one that is named after a colon, the one of the input's name, or the only one.
fn of_file(file: &Path, input: &str) -> anyhow::Result<GivenInput> {
    let text = file.display().to_string();
    let named = text.rsplit_once(':').filter(|_| !file.exists());
    let (path, tensor) = match named {
        Some((path, tensor)) => (Path::new(path), Some(tensor.to_owned())),
        None => (file, None),
    };
    let file = TensorFile::read(path)?;
    let tensors = file.tensors()?;
    let tensor = match (tensor, tensors.names().as_slice()) {
        (Some(tensor), _) => tensor,
        (None, [only]) if !tensors.has(input) => only.clone(),
        (None, _) => input.to_owned(),
    };
    let array = tensors.array(&tensor).with_context(|| {
        format!("it has {}; name one as @{}:NAME", tensors.names().join(", "), path.display())
    })?;
    Ok(GivenInput::Elements { shape: Some(array.shape), elements: array.data })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_inputs_are_read() {
        let read = |text: &str| text.parse::<InputArg>().map(|arg| (arg.name, arg.value));
        let is =
            |text: &str, value: InputValue| assert_eq!(read(text), Ok(("x".to_owned(), value)));
        is("x=random:f32[5,8]", InputValue::Random(DType::F32, vec![5, 8]));
        is("%x=zeros:i32[3]", InputValue::Zeros(DType::I32, vec![3]));
        is("x=zeros:bf16", InputValue::Zeros(DType::BF16, vec![]));
        is("x=1,-2.5,true", InputValue::Elements(vec![1.0, -2.5, 1.0]));
        is("x=@a/b.safetensors", InputValue::File("a/b.safetensors".into()));
        for wrong in
            ["x", "=1", "x=", "x=a", "x=random:f33[2]", "x=random:f32[2", "x=zeros:f32[-1]"]
        {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }
}
