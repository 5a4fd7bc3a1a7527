//! Matrices of floats rounded to codes of few bits: nearest, ties to even.

use super::floats::{largest, read, sum_of_squares};
use piecewise_ir::dtype::DType;
use rayon::iter::{IndexedParallelIterator, ParallelIterator};
use rayon::slice::{ParallelSlice, ParallelSliceMut};

/// What a scale is made for where all of its weights are 0, or nearly.
const LEAST: f32 = 1e-10;
/// Added to a float below 2^22 and taken away again, it leaves the nearest integer.
const TO_INTEGER: f32 = 12_582_912.0;
/// The middle of unsigned codes of 4 bits.
const MIDDLE: u32 = 8;
/// Integers in a word.
const IN_A_WORD: usize = 8;

/// The numbers that weights are rounded to, and how they lie.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Codes {
    /// A byte each.
    E4M3,
    /// Eight to a word, the lowest bits first, 0 as 8; rows of whole words.
    I4,
}

impl Codes {
    /// What the largest weight of a block comes to. Of integers that is half a code beyond the largest:
    /// 16 codes then reach as far on either side.
    fn most(self) -> f32 {
        match self {
            Self::E4M3 => 448.0,
            Self::I4 => 7.5,
        }
    }

    fn row_bytes(self, columns: usize) -> usize {
        match self {
            Self::E4M3 => columns,
            Self::I4 => 4 * columns.div_ceil(IN_A_WORD),
        }
    }
}

/// A matrix of floats as a file keeps it, of at least one column, whose blocks of `group` columns of a row
/// share a scale.
#[derive(Clone, Copy, Debug)]
pub(super) struct Matrix<'a> {
    pub(super) dtype: DType,
    pub(super) bytes: &'a [u8],
    pub(super) columns: usize,
    pub(super) group: usize,
}

/// Codes with the squared norms of what was rounded and of what was lost.
#[derive(Clone, PartialEq, Debug, Default)]
pub(super) struct Rounded {
    pub(super) bytes: Vec<u8>,
    pub(super) squares: f64,
    pub(super) lost: f64,
}

impl Matrix<'_> {
    fn row_bytes(&self) -> usize {
        self.columns * self.dtype.size()
    }

    fn groups(&self) -> usize {
        self.columns.div_ceil(self.group)
    }

    /// A scale for each block, or the row of one that holds something that is no number.
    pub(super) fn scales(&self, codes: Codes) -> Result<Vec<f32>, usize> {
        let rows = self.bytes.par_chunks_exact(self.row_bytes());
        let mut scales = vec![0f32; rows.len() * self.groups()];
        scales.par_chunks_mut(self.groups()).zip(rows).for_each_init(
            || vec![0f32; self.columns],
            |row, (scales, bytes)| {
                read(self.dtype, bytes, row);
                for (scale, block) in scales.iter_mut().zip(row.chunks(self.group)) {
                    *scale = scale_of(block, codes);
                }
            },
        );
        match scales.iter().position(|scale| !scale.is_finite()) {
            Some(at) => Err(at / self.groups()),
            None => Ok(scales),
        }
    }

    /// The codes; of what is no number those of some number.
    pub(super) fn codes(&self, codes: Codes) -> Rounded {
        let rows = self.bytes.par_chunks_exact(self.row_bytes());
        let across = codes.row_bytes(self.columns);
        let mut bytes = vec![0; rows.len() * across];
        let sums = bytes.par_chunks_mut(across).zip(rows).map_init(
            || [vec![0f32; self.columns], vec![0f32; self.columns]],
            |[row, lost], (to, bytes)| {
                read(self.dtype, bytes, row);
                match codes {
                    Codes::E4M3 => self.floats(row, to, lost),
                    Codes::I4 => self.integers(row, to, lost),
                }
                [sum_of_squares(row), sum_of_squares(lost)]
            },
        );
        // In the order of rows, so that it is the same number whoever added it.
        let sums: Vec<[f64; 2]> = sums.collect();
        let [squares, lost] = [0, 1].map(|i| sums.iter().map(|sum| sum[i]).sum());
        Rounded { bytes, squares, lost }
    }

    fn floats(&self, row: &[f32], to: &mut [u8], lost: &mut [f32]) {
        let of_row = row.chunks(self.group).zip(to.chunks_mut(self.group));
        for ((block, to), lost) in of_row.zip(lost.chunks_mut(self.group)) {
            let scale = scale_of(block, Codes::E4M3);
            for ((x, to), lost) in block.iter().zip(to).zip(lost) {
                *to = to_e4m3(x / scale);
                *lost = x - from_e4m3(*to) * scale;
            }
        }
    }

    fn integers(&self, row: &[f32], to: &mut [u8], lost: &mut [f32]) {
        // Codes wait where what is lost will stand.
        for (block, codes) in row.chunks(self.group).zip(lost.chunks_mut(self.group)) {
            let scale = scale_of(block, Codes::I4);
            for (x, code) in block.iter().zip(codes) {
                *code = (x / scale + TO_INTEGER - TO_INTEGER).clamp(-8.0, 7.0);
            }
        }
        for (word, eight) in to.as_chunks_mut().0.iter_mut().zip(lost.chunks(IN_A_WORD)) {
            let each = (0..).zip(eight);
            let nibbles = each.map(|(i, code)| ((*code + MIDDLE as f32) as u32) << (4 * i));
            *word = nibbles.fold(0, |word: u32, nibble| word | nibble).to_le_bytes();
        }
        for (block, lost) in row.chunks(self.group).zip(lost.chunks_mut(self.group)) {
            let scale = scale_of(block, Codes::I4);
            for (x, lost) in block.iter().zip(lost) {
                *lost = x - *lost * scale;
            }
        }
    }
}

fn scale_of(block: &[f32], codes: Codes) -> f32 {
    let largest = largest(block);
    // The larger of a number and NaN would be the number.
    if largest.is_nan() { largest } else { largest.max(LEAST) / codes.most() }
}

/// The code of e4m3 nearest to `x`, the largest where `x` is larger.
fn to_e4m3(x: f32) -> u8 {
    let size = x.abs().min(448.0);
    let bits = size.to_bits();
    // Three bits of the mantissa stay; exponents begin at 2^-6, and below it steps are 2^-9.
    let normal = ((bits + 0x7_ffff + (bits >> 20 & 1)) >> 20).wrapping_sub(120 << 3);
    let small = (size + 16_384.0).to_bits() - 16_384f32.to_bits();
    let code = if size < 0.015_625 { small } else { normal };
    (x.to_bits() >> 24) as u8 & 0x80 | code as u8
}

fn from_e4m3(code: u8) -> f32 {
    let size = f32::from_bits(u32::from(code & 0x7f) << 20) * 2f32.powi(120);
    if code < 0x80 { size } else { -size }
}

#[cfg(test)]
mod tests {
    use super::*;
    use piecewise_ir::literal::Scalar;
    use proptest::prelude::*;

    fn matrix(bytes: &[u8], columns: usize, group: usize) -> Matrix<'_> {
        Matrix { dtype: DType::F32, bytes, columns, group }
    }

    fn bytes_of(values: &[f32]) -> Vec<u8> {
        values.iter().flat_map(|x| x.to_le_bytes()).collect()
    }

    fn nibbles(bytes: &[u8]) -> Vec<i32> {
        bytes.iter().flat_map(|b| [b & 15, b >> 4]).map(|code| i32::from(code) - 8).collect()
    }

    /// Every code, every middle between two, and what lies a bit beside either.
    #[test]
    fn floats_of_eight_bits_are_the_nearest_and_ties_are_even() {
        let mut sizes: Vec<f32> = (0..0x7f).map(from_e4m3).collect();
        let middles: Vec<f32> = sizes.windows(2).map(|pair| pair[0].midpoint(pair[1])).collect();
        sizes.extend(middles);
        sizes.extend([448.1, 464.0, 500.0, 1e9, f32::MAX, 1e-30, 1e-45]);
        let beside = |x: f32| [x, x.next_up(), x.next_down().max(0.0)];
        for x in sizes.into_iter().flat_map(beside).flat_map(|x| [x, -x]) {
            let expected = Scalar::new(DType::E4M3, f64::from(x));
            assert_eq!(u64::from(to_e4m3(x)), expected.bits(), "{x:e}");
            assert_eq!(f64::from(from_e4m3(to_e4m3(x))), expected.to_f64(), "{x:e}");
        }
    }

    #[test]
    fn integers_of_four_bits_are_the_nearest_and_ties_are_even() {
        // A scale of 1: codes are the weights rounded.
        let row = [7.5, -7.5, 0.5, 1.5, -0.5, -2.5, 6.5, 7.4, -3.2, 0.0, 3.0];
        let bytes = bytes_of(&row);
        let matrix = matrix(&bytes, row.len(), row.len());
        assert_eq!(matrix.scales(Codes::I4), Ok(vec![1.0]));
        let codes = matrix.codes(Codes::I4).bytes;
        // Two words; what is beyond the row is 0 in bits.
        assert_eq!(codes.len(), 8);
        let expected = [7, -8, 0, 2, 0, -2, 6, 7, -3, 0, 3, -8, -8, -8, -8, -8];
        assert_eq!(nibbles(&codes), expected);
    }

    #[test]
    fn a_block_of_zeros_has_a_scale_and_what_is_no_number_has_none() {
        let zeros = bytes_of(&[0.0; 4]);
        for codes in [Codes::E4M3, Codes::I4] {
            let scales = matrix(&zeros, 4, 2).scales(codes).unwrap();
            assert!(scales.iter().all(|scale| *scale > 0.0), "{scales:?}");
            for wrong in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                let bytes = bytes_of(&[0.0, 1.0, 2.0, 3.0, wrong, 1.0]);
                assert_eq!(matrix(&bytes, 2, 2).scales(codes), Err(2), "{wrong}");
            }
        }
        assert_eq!(matrix(&zeros, 4, 4).codes(Codes::E4M3).bytes, [0; 4]);
        assert_eq!(nibbles(&matrix(&zeros, 4, 4).codes(Codes::I4).bytes)[..4], [0; 4]);
    }

    proptest! {
        /// By the formula, in f64: each weight is off by half a step at the most, and the sums say by
        /// how much all are.
        #[test]
        fn no_weight_is_further_off_than_half_a_step(
            values in prop::collection::vec(-3f32..3.0, 24),
            (columns, group) in prop::sample::select(vec![(12, 12), (12, 4), (12, 5), (3, 3), (8, 8)]),
        ) {
            let bytes = bytes_of(&values);
            let matrix = matrix(&bytes, columns, group);
            for codes in [Codes::E4M3, Codes::I4] {
                let (scales, made) = (matrix.scales(codes).unwrap(), matrix.codes(codes));
                let across = codes.row_bytes(columns);
                let (mut squares, mut lost) = (0.0, 0.0);
                for (i, &x) in values.iter().enumerate() {
                    let (row, column) = (i / columns, i % columns);
                    let scale = f64::from(scales[row * columns.div_ceil(group) + column / group]);
                    let of_row = &made.bytes[row * across..][..across];
                    let (value, half) = match codes {
                        Codes::E4M3 => {
                            let value = f64::from(from_e4m3(of_row[column]));
                            (value, value.abs().max(2f64.powi(-6)) / 16.0)
                        }
                        Codes::I4 => (f64::from(nibbles(of_row)[column]), 0.5),
                    };
                    let off = f64::from(x) - value * scale;
                    prop_assert!(off.abs() <= half * scale * 1.0001, "{codes:?} {x}: {off}");
                    squares += f64::from(x).powi(2);
                    lost += off.powi(2);
                }
                prop_assert!((made.squares - squares).abs() <= 1e-5 * squares);
                prop_assert!((made.lost - lost).abs() <= 1e-4 * lost + 1e-9 * squares);
            }
        }

        #[test]
        fn floats_of_a_file_are_read_as_they_are(values in prop::collection::vec(-3f32..3.0, 16)) {
            for dtype in [DType::F32, DType::BF16, DType::F16] {
                let scalars = values.iter().map(|&x| Scalar::new(dtype, f64::from(x)));
                let scalars: Vec<Scalar> = scalars.collect();
                let bytes: Vec<u8> = scalars.iter().flat_map(|x| x.to_bytes()).collect();
                let mut found = [0f32; 16];
                read(dtype, &bytes, &mut found);
                for (found, scalar) in found.iter().zip(&scalars) {
                    prop_assert_eq!(f64::from(*found), scalar.to_f64());
                }
            }
        }
    }
}
