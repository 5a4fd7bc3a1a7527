//! What a function that fills an input writes through.

use super::element::Element;
use piecewise_ir::dtype::DType;

/// Where the elements of an input go.
#[derive(Debug)]
pub(super) enum Bytes<'a> {
    /// Grows to as many as there are.
    Grown(&'a mut Vec<u8>),
    /// A slice as long as the whole input, filled in place.
    Placed(&'a mut [u8]),
}

impl Bytes<'_> {
    /// The first `end` bytes, or those that there are.
    fn up_to(&mut self, end: usize) -> &mut [u8] {
        match self {
            // What an earlier step of as many elements left is overwritten, so that it is filled with
            // zeros once, and a loop over places that are there needs no other check.
            Self::Grown(bytes) => {
                if bytes.len() < end {
                    bytes.resize(end, 0);
                }
                &mut bytes[..end]
            }
            Self::Placed(bytes) => {
                let end = end.min(bytes.len());
                &mut bytes[..end]
            }
        }
    }
}

/// Takes the elements of an input, row-major, and notices what does not fit.
#[derive(Debug)]
pub struct InputWriter<'a> {
    bytes: Bytes<'a>,
    dtype: DType,
    dims: &'a [u64],
    /// The columns of each row, where they are fewer than the last dimension.
    columns: Option<u64>,
    /// Bytes of the whole input, and those that are written.
    end: usize,
    written: usize,
    /// Elements that came after the last.
    past_end: u64,
    wrong: Option<DType>,
}

impl<'a> InputWriter<'a> {
    /// Writes elements of `dtype` in a shape of these dimensions over what `bytes` held.
    pub(super) fn new(dtype: DType, dims: &'a [u64], mut bytes: Bytes<'a>) -> Result<Self, String> {
        let end = dims.iter().fold(dtype.size() as u64, |n, &dim| n.saturating_mul(dim)) as usize;
        match &mut bytes {
            Bytes::Grown(bytes) => {
                bytes.try_reserve(end.saturating_sub(bytes.len())).map_err(|error| {
                    format!(
                        "there is no memory for its buffer {dims:?} of {dtype}: {error}; bring \
                         fewer rows"
                    )
                })?
            }
            Bytes::Placed(bytes) if bytes.len() == end => {}
            Bytes::Placed(bytes) => {
                return Err(format!(
                    "has a place of {} bytes, and its buffer {dims:?} of {dtype} takes {end}",
                    bytes.len()
                ));
            }
        }
        let (columns, wrong) = (None, None);
        Ok(Self { bytes, dtype, dims, columns, end, written: 0, past_end: 0, wrong })
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
            // What was written before it was said has no place any more.
            let lost = self.written.saturating_sub(self.end);
            self.past_end += (lost / self.dtype.size()) as u64;
            self.written -= lost;
        }
    }

    /// As [`Self::extend`] with one element.
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
        let mut values = values.into_iter();
        let places = &mut self.bytes.up_to(self.end)[self.written..];
        let places = places.chunks_exact_mut(size_of::<T>());
        let mut taken = 0;
        for (place, value) in places.zip(values.by_ref()) {
            place.copy_from_slice(bytemuck::bytes_of(&value));
            taken += size_of::<T>();
        }
        self.written += taken;
        self.past_end += values.count() as u64;
    }

    /// Appends the same element so many times.
    pub fn repeat<T: Element>(&mut self, value: T, times: usize) {
        self.extend(std::iter::repeat_n(value, times));
    }

    /// The columns that rows were shortened to, if they were; or what did not fit.
    pub(super) fn finish(self) -> Result<Option<u64>, String> {
        let Self { bytes, dtype, dims, columns, end, written, past_end, wrong } = self;
        if let Some(wrong) = wrong {
            return Err(format!("writes {wrong}, but the input holds {dtype}"));
        }
        let all = end / dtype.size();
        if past_end > 0 {
            return Err(format!(
                "writes {past_end} elements past the {all} of its buffer {dims:?}"
            ));
        }
        if written < end {
            let written = written / dtype.size();
            return Err(format!("writes {written} of the {all} elements of its buffer {dims:?}"));
        }
        if let Bytes::Grown(bytes) = bytes {
            bytes.truncate(end);
        }
        Ok(columns)
    }
}
