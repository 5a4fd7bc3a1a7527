//! Custom ops on the CPU: addresses wrapped so that an implementation needs no `unsafe`.

// A new op or dtype must not compile before it is here.
#![warn(clippy::wildcard_enum_match_arm)]

use super::error::OpError;
use super::floats::{FloatSlice, FloatSliceMut};
use crate::step::{CaptureSupport, LaunchContext};
use bytemuck::Pod;
use piecewise_ir::custom::Attrs;
use piecewise_ir::dtype::DType;
use piecewise_ir::types::TensorType;
use std::cell::Cell;
use std::marker::PhantomData;

/// A call of a custom op, without addresses.
#[derive(Clone, Copy, Debug)]
pub struct CpuOpCall<'a> {
    /// The types of its operands.
    pub operands: &'a [TensorType],
    /// The types of its results.
    pub results: &'a [TensorType],
    /// What it was called with besides its operands.
    pub attrs: &'a Attrs,
    /// The sizes by symbol index.
    pub sizes: &'a [u64],
    /// Threads that may compute it.
    pub threads: usize,
}

impl CpuOpCall<'_> {
    /// The extent of an axis of an operand; 0 where it has no such axis.
    pub fn extent(&self, operand: usize, axis: usize) -> usize {
        let dim = self.operands[operand].shape.get(axis);
        dim.map_or(0, |dim| dim.eval(self.sizes) as usize)
    }
}

/// An implementation of a custom op on the CPU.
pub trait CpuOp: Send + Sync + std::fmt::Debug {
    /// The name of its definition.
    fn name(&self) -> &str;

    /// In which batches it may be captured. An op that reads host values through
    /// [`CpuOpArgs::context`] must say [`CaptureSupport::Never`].
    fn capture_support(&self) -> CaptureSupport {
        CaptureSupport::Always
    }

    /// Bytes of scratch that a launch needs at these sizes to use so many threads. A launch gets at least what one thread needs, and may get more than it asked for.
    fn scratch_bytes(&self, call: &CpuOpCall<'_>) -> u64 {
        let _ = call;
        0
    }

    /// Computes the results in place. It must not allocate, must write only results, mutated
    /// operands and scratch, and must leave rows past the true counts alone or write only them.
    ///
    /// # Errors
    /// When an operand or attribute does not fit.
    fn run(&self, args: &CpuOpArgs<'_>) -> Result<(), OpError>;
}

/// The operands, results and scratch of one launch.
///
/// Operand positions come first, then results: position `operands.len() + i` is result `i`.
#[derive(Debug)]
pub struct CpuOpArgs<'a> {
    binding: CpuOpBinding<'a>,
    scratch_taken: Cell<bool>,
    taken: Cell<u64>,
    memory: PhantomData<&'a mut [u8]>,
}

/// What a call of an op has: arguments, true sizes and scratch.
#[derive(Clone, Copy, Debug)]
pub struct CpuOpBinding<'a> {
    /// The op's name, for errors.
    pub name: &'a str,
    /// What the op was called with besides its operands.
    pub attrs: &'a Attrs,
    /// Types of operands, then of results; at most 64.
    pub types: &'a [TensorType],
    /// Bit `i` is set where position `i` may be written: results and mutated operands.
    pub writable: u64,
    /// The address of each position.
    pub addresses: &'a [usize],
    /// The true size of each symbol, by symbol index.
    pub counts: &'a [u64],
    /// Whether it is launched or captured, and what then is known of the step.
    pub context: LaunchContext<'a>,
    /// Address and bytes of the scratch.
    pub scratch: (usize, usize),
}

impl<'a> CpuOpArgs<'a> {
    /// Wraps the addresses of a launch.
    ///
    /// # Safety
    /// For `'a`, each address must be aligned for its dtype and valid for the bytes of its type
    /// at the context's sizes, initialized, not written by anyone else, and not even read by
    /// anyone else where writable; the same holds for the scratch. No two positions may share
    /// bytes where one is writable.
    pub unsafe fn new(binding: CpuOpBinding<'a>) -> Self {
        Self { binding, scratch_taken: Cell::new(false), taken: Cell::new(0), memory: PhantomData }
    }

    /// For what an implementation finds wrong; the message of the step names the call.
    pub fn error(&self, message: impl Into<String>) -> OpError {
        OpError { op: self.binding.name.to_owned(), message: message.into() }
    }

    /// What the op was called with besides its operands.
    pub fn attrs(&self) -> &'a Attrs {
        self.binding.attrs
    }

    /// How the launch happens: host values are there only in a step.
    pub fn context(&self) -> LaunchContext<'a> {
        self.binding.context
    }

    /// How many positions there are, of operands and of results.
    pub fn positions(&self) -> usize {
        self.binding.types.len()
    }

    /// The element type of a position.
    pub fn dtype(&self, position: usize) -> DType {
        self.binding.types[position].dtype
    }

    /// The number of dimensions of a position.
    pub fn rank(&self, position: usize) -> usize {
        self.binding.types[position].rank()
    }

    /// The padded extent of an axis: what the memory of the position holds.
    pub fn dim(&self, position: usize, axis: usize) -> usize {
        self.binding.types[position].shape[axis].eval(self.binding.context.sizes()) as usize
    }

    /// The true extent of an axis: what is real.
    pub fn true_dim(&self, position: usize, axis: usize) -> usize {
        self.binding.types[position].shape[axis].eval(self.binding.counts) as usize
    }

    /// The elements of an operand that the op does not mutate.
    ///
    /// # Errors
    /// When the position is writable or `T` is not its element type.
    pub fn read<T: Pod>(&self, position: usize) -> Result<&'a [T], OpError> {
        if self.is_writable(position)? {
            return Err(
                self.error(format!("operand {position} is written; take it once by `write`"))
            );
        }
        let len = self.elements::<T>(position)?;
        // SAFETY: the caller of `new` vouches for address, alignment, bytes and initialization,
        // and that nobody writes this position while `'a` lasts.
        Ok(unsafe { std::slice::from_raw_parts(self.binding.addresses[position] as *const T, len) })
    }

    /// The elements of a result or of a mutated operand; each position can be taken once.
    ///
    /// # Errors
    /// When the position is not writable, was taken before, or `T` is not its element type.
    pub fn write<T: Pod>(&self, position: usize) -> Result<&'a mut [T], OpError> {
        if !self.is_writable(position)? {
            return Err(
                self.error(format!("position {position} is not a result or mutated operand"))
            );
        }
        let bit = 1u64 << position;
        if self.taken.get() & bit != 0 {
            return Err(self.error(format!("position {position} was taken before")));
        }
        let len = self.elements::<T>(position)?;
        self.taken.set(self.taken.get() | bit);
        // SAFETY: the caller of `new` vouches for address, alignment, bytes and initialization,
        // and that nobody else uses this position while `'a` lasts; `taken` gives it out once.
        Ok(unsafe {
            std::slice::from_raw_parts_mut(self.binding.addresses[position] as *mut T, len)
        })
    }

    /// [`Self::read`] of a float operand.
    ///
    /// # Errors
    /// When the position is writable or does not hold floats.
    pub fn read_floats(&self, position: usize) -> Result<FloatSlice<'a>, OpError> {
        match self.binding.types.get(position).map(|ty| ty.dtype) {
            Some(DType::F32) => Ok(FloatSlice::F32(self.read(position)?)),
            Some(DType::F16) => Ok(FloatSlice::F16(self.read(position)?)),
            Some(DType::BF16) => Ok(FloatSlice::Bf16(self.read(position)?)),
            Some(DType::I32 | DType::I64 | DType::U8 | DType::Bool)
            | Some(DType::E4M3 | DType::I4)
            | None => Err(self.error(format!("position {position} does not hold floats"))),
        }
    }

    /// [`Self::write`] of a float result or mutated operand.
    ///
    /// # Errors
    /// When the position is not writable, was taken before, or does not hold floats.
    pub fn write_floats(&self, position: usize) -> Result<FloatSliceMut<'a>, OpError> {
        match self.binding.types.get(position).map(|ty| ty.dtype) {
            Some(DType::F32) => Ok(FloatSliceMut::F32(self.write(position)?)),
            Some(DType::F16) => Ok(FloatSliceMut::F16(self.write(position)?)),
            Some(DType::BF16) => Ok(FloatSliceMut::Bf16(self.write(position)?)),
            Some(DType::I32 | DType::I64 | DType::U8 | DType::Bool)
            | Some(DType::E4M3 | DType::I4)
            | None => Err(self.error(format!("position {position} does not hold floats"))),
        }
    }

    /// The scratch that [`CpuOp::scratch_bytes`] asked for, aligned to 64 bytes; can be taken
    /// once. It may hold anything.
    ///
    /// # Errors
    /// When it was taken before.
    pub fn scratch(&self) -> Result<&'a mut [u8], OpError> {
        if self.scratch_taken.replace(true) {
            return Err(self.error("the scratch was taken before"));
        }
        let (address, len) = self.binding.scratch;
        if len == 0 {
            return Ok(&mut []);
        }
        // SAFETY: the caller of `new` vouches for address and bytes and that nobody else uses
        // them while `'a` lasts; `scratch_taken` gives them out once.
        Ok(unsafe { std::slice::from_raw_parts_mut(address as *mut u8, len) })
    }

    fn is_writable(&self, position: usize) -> Result<bool, OpError> {
        if position >= self.binding.types.len() {
            return Err(self.error(format!("there is no position {position}")));
        }
        Ok(self.binding.writable & (1 << position) != 0)
    }

    fn elements<T: Pod>(&self, position: usize) -> Result<usize, OpError> {
        let ty = &self.binding.types[position];
        if size_of::<T>() != ty.dtype.size() || align_of::<T>() > ty.dtype.size() {
            return Err(self.error(format!(
                "position {position} holds {}, whose elements have {} bytes, not {}",
                ty.dtype,
                ty.dtype.size(),
                size_of::<T>()
            )));
        }
        // Elements that share bytes are counted in these.
        Ok(ty.bytes(self.binding.context.sizes()) as usize / ty.dtype.size())
    }
}
