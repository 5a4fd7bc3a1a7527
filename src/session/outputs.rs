//! What a step returned.

use super::error::SessionError;
use piecewise_ir::dtype::DType;
use piecewise_kernels::inputs::Element;
use piecewise_runtime::steps::StepOutputs;
use piecewise_runtime::words::ModelError;

/// The outputs of a step, of its real rows alone.
#[derive(Clone, Debug)]
pub struct Outputs {
    outputs: Vec<Output>,
}

#[derive(Clone, Debug)]
struct Output {
    dtype: DType,
    shape: Vec<u64>,
    bytes: Vec<u8>,
}

/// [`Outputs`] where the step left them, until the next one.
#[derive(Clone, Copy, Debug)]
pub struct OutputsView<'a> {
    pub(super) outputs: &'a StepOutputs<'a>,
}

impl<'a> OutputsView<'a> {
    /// How many the graph returns.
    pub fn len(&self) -> usize {
        (0..).take_while(|&i| self.outputs.ty(i).is_some()).count()
    }

    /// Whether the graph returns none.
    pub fn is_empty(&self) -> bool {
        self.outputs.ty(0).is_none()
    }

    /// The dtype of output `i`; `None` where the graph returns fewer.
    pub fn dtype(&self, i: usize) -> Option<DType> {
        self.outputs.ty(i).map(|ty| ty.dtype)
    }

    /// The values of output `i`, row-major.
    ///
    /// # Errors
    /// As for [`Outputs::get`].
    pub fn get<T: Element>(&self, i: usize) -> Result<&'a [T], SessionError> {
        let outputs = self.len();
        let ty = self.outputs.ty(i).ok_or(SessionError::UnknownOutput { output: i, outputs })?;
        check_type::<T>(i, ty.dtype)?;
        let bytes = self.outputs.bytes(i)?;
        bytemuck::checked::try_cast_slice(bytes)
            .map_err(|_| SessionError::OutputBytes { output: i, dtype: ty.dtype })
    }
}

fn check_type<T: Element>(output: usize, declared: DType) -> Result<(), SessionError> {
    match declared == T::DTYPE {
        true => Ok(()),
        false => Err(SessionError::OutputType { output, declared, asked: T::DTYPE }),
    }
}

impl Outputs {
    pub(super) fn copied(outputs: &StepOutputs<'_>, counts: &[u64]) -> Result<Self, ModelError> {
        let mut copied = Vec::new();
        while let Some(ty) = outputs.ty(copied.len()) {
            copied.push(Output {
                dtype: ty.dtype,
                shape: ty.dims(counts).to_vec(),
                bytes: outputs.bytes(copied.len())?.to_vec(),
            });
        }
        Ok(Self { outputs: copied })
    }

    /// How many the graph returns.
    pub fn len(&self) -> usize {
        self.outputs.len()
    }

    /// Whether the graph returns none.
    pub fn is_empty(&self) -> bool {
        self.outputs.is_empty()
    }

    /// The shape of output `i`.
    ///
    /// # Errors
    /// When there is no such output.
    pub fn shape(&self, i: usize) -> Result<&[u64], SessionError> {
        Ok(&self.output(i)?.shape)
    }

    /// The values of output `i`, row-major.
    ///
    /// # Errors
    /// When there is no such output, or `T` is not its element type.
    pub fn get<T: Element>(&self, i: usize) -> Result<Vec<T>, SessionError> {
        let output = self.output(i)?;
        check_type::<T>(i, output.dtype)?;
        let values = output.bytes.chunks_exact(size_of::<T>());
        values
            .map(|bytes| bytemuck::checked::try_pod_read_unaligned(bytes).ok())
            .collect::<Option<_>>()
            .ok_or(SessionError::OutputBytes { output: i, dtype: output.dtype })
    }

    fn output(&self, i: usize) -> Result<&Output, SessionError> {
        let outputs = self.outputs.len();
        self.outputs.get(i).ok_or(SessionError::UnknownOutput { output: i, outputs })
    }
}
