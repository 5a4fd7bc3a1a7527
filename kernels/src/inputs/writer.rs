//! What a function that fills an input writes through.

use super::element::Element;
use piecewise_ir::dtype::DType;

/// Takes the elements of an input, row-major, and notices what does not fit.
#[derive(Debug)]
pub struct InputWriter<'a> {
    bytes: &'a mut Vec<u8>,
    dtype: DType,
    dims: &'a [u64],
    /// The columns of each row, where they are fewer than the last dimension.
    columns: Option<u64>,
    /// Bytes of the whole input.
    end: usize,
    /// Elements that came after the last.
    past_end: u64,
    wrong: Option<DType>,
}

impl<'a> InputWriter<'a> {
    /// Writes elements of `dtype` in a shape of these dimensions over what `bytes` held.
    pub(super) fn new(dtype: DType, dims: &'a [u64], bytes: &'a mut Vec<u8>) -> Self {
        let end = dims.iter().fold(dtype.size() as u64, |n, &dim| n.saturating_mul(dim)) as usize;
        bytes.clear();
        bytes.reserve(end);
        Self { bytes, dtype, dims, columns: None, end, past_end: 0, wrong: None }
    }

    /// The extent of an axis at the true counts of the step; of the last one, the columns that rows
    /// were shortened to.
    pub fn dim(&self, axis: usize) -> usize {
        let shortened = self.columns.filter(|_| axis + 1 == self.dims.len());
        shortened.unwrap_or(self.dims[axis]) as usize
    }

    /// Says, before anything is written, that of each row of a matrix only the first `columns` are
    /// written, or all if there are not so many. The others hold what earlier steps left there: no op
    /// may read them.
    pub fn shorten_rows(&mut self, columns: usize) {
        if let &[rows, all] = self.dims {
            let columns = (columns as u64).min(all);
            self.columns = Some(columns);
            self.end = self.dtype.size() * (rows * columns) as usize;
        }
    }

    /// Appends an element.
    pub fn push<T: Element>(&mut self, value: T) {
        self.extend([value]);
    }

    /// Appends elements. One past the end of the input or of another type than its own is not
    /// written, and makes the step an error.
    pub fn extend<T: Element>(&mut self, values: impl IntoIterator<Item = T>) {
        if T::DTYPE != self.dtype {
            self.wrong = Some(T::DTYPE);
            return;
        }
        for value in values {
            if self.bytes.len() + size_of::<T>() > self.end {
                self.past_end += 1;
            } else {
                self.bytes.extend_from_slice(bytemuck::bytes_of(&value));
            }
        }
    }

    /// Appends the same element so many times.
    pub fn repeat<T: Element>(&mut self, value: T, times: usize) {
        self.extend(std::iter::repeat_n(value, times));
    }

    /// The columns that rows were shortened to, if they were; or what did not fit.
    pub(super) fn finish(self) -> Result<Option<u64>, String> {
        let Self { bytes, dtype, dims, columns, end, past_end, wrong } = self;
        if let Some(wrong) = wrong {
            return Err(format!("writes {wrong}, but the input holds {dtype}"));
        }
        let all = end / dtype.size();
        if past_end > 0 {
            return Err(format!(
                "writes {past_end} elements past the {all} of its buffer {dims:?}"
            ));
        }
        if bytes.len() < end {
            let written = bytes.len() / dtype.size();
            return Err(format!("writes {written} of the {all} elements of its buffer {dims:?}"));
        }
        Ok(columns)
    }
}
