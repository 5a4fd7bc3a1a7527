//! The tensors of a file, by name, as numbers.

use super::out_file::write_tensors;
use anyhow::{Context, anyhow, bail};
use half::{bf16, f16};
use piecewise::trial::Outputs;
use piecewise_ir::dtype::DType;
use piecewise_ir::eval::Array;
use safetensors::SafeTensors;
use safetensors::tensor::{Dtype, TensorView};
use std::path::{Path, PathBuf};

/// The types of tensors of graphs, as files have them.
const DTYPES: [(DType, Dtype); 7] = [
    (DType::F32, Dtype::F32),
    (DType::F16, Dtype::F16),
    (DType::BF16, Dtype::BF16),
    (DType::I32, Dtype::I32),
    (DType::I64, Dtype::I64),
    (DType::U8, Dtype::U8),
    (DType::Bool, Dtype::BOOL),
];

/// Writes arrays by their names.
pub(crate) fn write_arrays(out: &Path, outputs: &Outputs) -> anyhow::Result<()> {
    let bytes = Vec::from_iter(outputs.arrays.iter().map(Array::to_bytes));
    let arrays = outputs.names.iter().zip(&outputs.arrays).zip(&bytes);
    let views = arrays.map(|((name, array), bytes)| {
        let stored = DTYPES.iter().find(|(dtype, _)| *dtype == array.dtype);
        let (_, stored) =
            stored.with_context(|| format!("no file has tensors of {}", array.dtype))?;
        Ok((name.as_str(), TensorView::new(*stored, array.shape.clone(), bytes)?))
    });
    let views = views.collect::<anyhow::Result<Vec<_>>>()?;
    write_tensors(out, views)
}

/// A safetensors file in memory.
pub(crate) struct TensorFile {
    file: PathBuf,
    bytes: Vec<u8>,
}

/// Tensors of a file that parsed.
pub(crate) struct Tensors<'a> {
    file: &'a Path,
    tensors: SafeTensors<'a>,
}

impl TensorFile {
    pub(crate) fn read(file: &Path) -> anyhow::Result<Self> {
        let bytes =
            std::fs::read(file).with_context(|| format!("can't read {}", file.display()))?;
        Ok(Self { file: file.to_owned(), bytes })
    }

    pub(crate) fn tensors(&self) -> anyhow::Result<Tensors<'_>> {
        let tensors = SafeTensors::deserialize(&self.bytes);
        let tensors =
            tensors.with_context(|| format!("{} is no safetensors file", self.file.display()))?;
        Ok(Tensors { file: &self.file, tensors })
    }
}

impl Tensors<'_> {
    pub(crate) fn file(&self) -> std::path::Display<'_> {
        self.file.display()
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.tensors.tensor(name).is_ok()
    }

    /// The numbers of the tensors `{prefix}_{number}`, ascending.
    pub(crate) fn numbers(&self, prefix: &str) -> Vec<u64> {
        let number = |name: &str| {
            let number = name.strip_prefix(prefix)?.strip_prefix('_')?;
            // No sign, no leading zero: the outputs have the same name.
            number.parse().ok().filter(|parsed: &u64| parsed.to_string() == number)
        };
        let mut numbers = Vec::from_iter(self.tensors.names().into_iter().filter_map(number));
        numbers.sort_unstable();
        numbers
    }

    fn tensor(&self, name: &str) -> anyhow::Result<TensorView<'_>> {
        let tensor = self.tensors.tensor(name).ok();
        tensor.with_context(|| format!("{} has no `{name}`", self.file()))
    }

    /// The shape of a tensor of integers, and its values.
    pub(crate) fn integers(&self, name: &str) -> anyhow::Result<(Vec<usize>, Vec<i64>)> {
        let tensor = self.tensor(name)?;
        let data = tensor.data();
        let values = match tensor.dtype() {
            Dtype::I32 => elements(data, |bytes| i64::from(i32::from_le_bytes(bytes))),
            Dtype::I64 => elements(data, i64::from_le_bytes),
            other => bail!("`{name}` is of {other:?}; give it as i32 or i64"),
        };
        Ok((tensor.shape().to_vec(), values))
    }

    /// A list of numbers that are not negative and below 2^32.
    pub(crate) fn list(&self, name: &str) -> anyhow::Result<Vec<u32>> {
        let (shape, values) = self.integers(name)?;
        if shape.len() != 1 {
            bail!("`{name}` has the shape {shape:?}; give it as [n]");
        }
        let number = |value: i64| {
            u32::try_from(value)
                .map_err(|_| anyhow!("`{name}` holds {value}; give numbers from 0 to 2^32 - 1"))
        };
        values.into_iter().map(number).collect()
    }

    /// The names of all tensors, sorted.
    pub(crate) fn names(&self) -> Vec<String> {
        let mut names = Vec::from_iter(self.tensors.names().into_iter().map(str::to_owned));
        names.sort_unstable();
        names
    }

    /// A tensor of any type that a graph may have.
    pub(crate) fn array(&self, name: &str) -> anyhow::Result<Array> {
        let tensor = self.tensor(name)?;
        let Some((dtype, _)) = DTYPES.iter().find(|(_, stored)| *stored == tensor.dtype()) else {
            bail!("`{name}` is of {:?}, which no graph has", tensor.dtype());
        };
        Ok(Array::from_bytes(*dtype, tensor.shape().to_vec(), tensor.data()))
    }

    /// The shape of a tensor of floats, and its values.
    pub(crate) fn floats(&self, name: &str) -> anyhow::Result<(Vec<usize>, Vec<f32>)> {
        let tensor = self.tensor(name)?;
        let data = tensor.data();
        let values = match tensor.dtype() {
            Dtype::F32 => elements(data, f32::from_le_bytes),
            Dtype::F16 => elements(data, |bytes| f16::from_le_bytes(bytes).to_f32()),
            Dtype::BF16 => elements(data, |bytes| bf16::from_le_bytes(bytes).to_f32()),
            other => bail!("`{name}` is of {other:?}; give it as f32, f16 or bf16"),
        };
        Ok((tensor.shape().to_vec(), values))
    }
}

fn elements<T, const N: usize>(data: &[u8], of: impl Fn([u8; N]) -> T) -> Vec<T> {
    data.as_chunks().0.iter().map(|&bytes| of(bytes)).collect()
}
