//! A step of attention as kernels on the host run it, and what must come of it.

use crate::emulate::{Case, Rng, fill, floats, try_emulate_hiding};
use piecewise_ir::custom::CustomOpDef;
use piecewise_ir::dim::Dim;
use piecewise_ir::dtype::DType::{self, BF16, I32};
use piecewise_ir::entity::{Entity, Symbol};
use piecewise_ir::eval::Array;
use piecewise_ir::types::TensorType;
use piecewise_kernels::attention::PagedAttention;
use piecewise_kernels::attention::{attention_kernels, other_attention_kernels};
use piecewise_kernels::cuda::OperandRole;
use piecewise_kernels::op::cuda::{CudaOpCall, CudaTarget};
use std::ops::Range;

const PAGES: usize = 160;
const POOL_PAGES: usize = 256;
/// Sequences past the count, with lengths that nothing may follow.
pub(crate) const PADDING: usize = 2;

#[derive(Clone, Copy)]
pub(crate) struct Step<'a> {
    pub(crate) dtypes: [DType; 2],
    pub(crate) heads: [usize; 2],
    pub(crate) dims: [usize; 2],
    pub(crate) causal: bool,
    pub(crate) lengths: &'a [i32],
    pub(crate) queries: &'a [i32],
    /// Rows past those of the sequences.
    pub(crate) padding_rows: usize,
    /// Sequences past the count.
    pub(crate) absent: usize,
    pub(crate) capability: (u32, u32),
    /// Of every sequence, where the kernels are those of uniform batches.
    pub(crate) query_length: Option<u64>,
    /// Whether the keys of decodes are in more ranges than usual.
    pub(crate) more_ranges: bool,
    /// Keys that a row sees at the most.
    pub(crate) window: Option<u32>,
    pub(crate) softcap: Option<f64>,
    /// The dtype of the sinks, where there are some.
    pub(crate) sinks: Option<DType>,
}

/// What a step is run on, and what must come of it.
pub(crate) struct Checked {
    pub(crate) case: Case,
    /// Of the keys and the values, as arguments, the bytes of pages that the step writes to.
    pub(crate) written: Vec<(usize, Range<usize>)>,
    pub(crate) expected: Array,
}

/// So large that a thousand keys do not hide what is done with them.
fn sinks(dtype: DType, heads: usize) -> Vec<u8> {
    let values = (0..heads).map(|head| 3.0 + (head * 3 % 5) as f32 * 0.5);
    let of = |x: f32| match dtype {
        BF16 => half::bf16::from_f32(x).to_bits().to_ne_bytes().to_vec(),
        DType::F16 => half::f16::from_f32(x).to_bits().to_ne_bytes().to_vec(),
        _ => x.to_ne_bytes().to_vec(),
    };
    values.flat_map(of).collect()
}

impl Default for Step<'_> {
    fn default() -> Self {
        Self {
            dtypes: [BF16; 2],
            heads: [4, 2],
            dims: [64, 64],
            causal: true,
            lengths: &[],
            queries: &[],
            padding_rows: 3,
            absent: PADDING,
            capability: (8, 0),
            query_length: None,
            more_ranges: false,
            window: None,
            softcap: None,
            sinks: None,
        }
    }
}

impl Step<'_> {
    fn operands(&self) -> Vec<TensorType> {
        let [t, s, p] = [0, 1, 2].map(|i| Dim::from(Symbol::new(i)));
        let n = |x: usize| Dim::constant(x as u64);
        let metadata = TensorType::new(I32, [s.clone()]);
        let [q, kv] = self.dtypes;
        let [heads, kv_heads] = self.heads.map(n);
        let [dim, value_dim] = self.dims.map(n);
        let of_sinks = self.sinks.map(|dtype| TensorType::new(dtype, [heads.clone()]));
        let seven = [
            TensorType::new(q, [t, heads, dim.clone()]),
            TensorType::new(kv, [p.clone(), kv_heads.clone(), dim]),
            TensorType::new(kv, [p, kv_heads, value_dim]),
            TensorType::new(I32, [s, n(PAGES)]),
            metadata.clone(),
            metadata.clone(),
            metadata,
        ];
        seven.into_iter().chain(of_sinks).collect()
    }

    /// What is written of the keys and values, in bytes: the pages with positions of the step's own tokens,
    /// but for those that another sequence has seen already.
    fn written(&self, table: &[i32]) -> Vec<(usize, Range<usize>)> {
        let pages = |i: usize, positions: Range<i32>| {
            let numbers = positions.start as usize / 16..(positions.end as usize).div_ceil(16);
            let is_empty = positions.is_empty();
            numbers.filter(move |_| !is_empty).map(move |p| table[i * PAGES + p] as usize)
        };
        let sequences = || self.lengths.iter().zip(self.queries).enumerate();
        let before: Vec<usize> = sequences()
            .flat_map(|(i, (length, queries))| pages(i, 0..(length - queries) / 16 * 16))
            .collect();
        let own = sequences()
            .flat_map(|(i, (length, queries))| pages(i, length - queries..*length))
            .filter(|page| !before.contains(page));
        let own: Vec<usize> = own.collect();
        let parts = [1, 2].map(|arg: usize| {
            let bytes = 16 * self.heads[1] * self.dims[arg - 1] * self.dtypes[1].size();
            own.iter().map(move |page| (arg, page * bytes..(page + 1) * bytes)).collect::<Vec<_>>()
        });
        parts.concat()
    }

    /// The result's bytes of the real rows; checked against the reference, that no padding row is
    /// written, and that nothing of what the step writes is read before the wait.
    pub(crate) fn check(&self, name: &str, entries: &[&str]) -> Vec<u8> {
        let Checked { case, written, expected } = self.made(name, entries);
        let (qt, h, d1) = (self.dtypes[0], self.heads[0], self.dims[1]);
        let result = try_emulate_hiding(name, &case, &written);
        let mut all = result.unwrap_or_else(|refused| panic!("{name} {refused}"));
        let mut got = all.pop().unwrap();
        let padding = got.split_off(expected.data.len() * qt.size());
        assert!(padding.iter().all(|x| *x == 0x5a), "{name}: padding rows are written");
        let limit = if qt == BF16 { 1e-2 } else { 8e-3 };
        for (i, (a, b)) in floats(qt, &got).iter().zip(&expected.data).enumerate() {
            let at = (i / (h * d1), i / d1 % h, i % d1);
            assert!((a - b).abs() < limit, "{name} at {at:?}: {a}, not {b}");
        }
        got
    }

    pub(crate) fn made(&self, name: &str, entries: &[&str]) -> Checked {
        let mut r = Rng(5);
        let [qt, kt] = self.dtypes;
        let [h, kh] = self.heads;
        let [d0, d1] = self.dims;
        let (s, pool) = (self.lengths.len(), POOL_PAGES * 16);
        let t: usize = self.queries.iter().map(|x| *x as usize).sum();
        let rows = t + self.padding_rows;
        let mut k = fill(kt, pool * kh * d0, &mut r);
        let mut v = fill(kt, pool * kh * d1, &mut r);
        let q = fill(qt, rows * h * d0, &mut r);
        let table: Vec<i32> =
            (0..(s + self.absent) * PAGES).map(|i| ((i * 13 + 5) % POOL_PAGES) as i32).collect();
        let mut used = vec![false; pool];
        for (i, length) in self.lengths.iter().enumerate() {
            // What lies in pages before every row's window is not there.
            let before = length - self.queries[i] + 1 - self.window.map_or(*length, |w| w as i32);
            for p in before.max(0) as usize / 16 * 16..*length as usize {
                used[table[i * PAGES + p / 16] as usize * 16 + p % 16] = true;
            }
        }
        let (kf, vf) = (floats(kt, &k), floats(kt, &v));
        for (bytes, width) in [(&mut k, kh * d0 * kt.size()), (&mut v, kh * d1 * kt.size())] {
            for (row, _) in bytes.chunks_mut(width).zip(&used).filter(|(_, used)| !**used) {
                row.fill(0xff);
            }
        }
        let padded =
            |x: &[i32]| -> Vec<i32> { x.iter().copied().chain(vec![7; self.absent]).collect() };
        let starts: Vec<i32> = (0..s).map(|i| self.queries[..i].iter().sum()).collect();
        let attrs = PagedAttention::bounded_attrs(0.2, self.causal, self.window, self.softcap);
        let sinks = self.sinks.map(|dtype| (dtype, sinks(dtype, h)));
        let array = |dtype, shape: Vec<usize>, data: Vec<f64>| Array { dtype, shape, data };
        let ints = |x: &[i32]| array(I32, vec![x.len()], x.iter().map(|v| f64::from(*v)).collect());
        let of_sinks = sinks.as_ref().map(|(dtype, x)| array(*dtype, vec![h], floats(*dtype, x)));
        let seven = [
            array(qt, vec![t, h, d0], floats(qt, &q)[..t * h * d0].to_vec()),
            array(kt, vec![pool, kh, d0], kf),
            array(kt, vec![pool, kh, d1], vf),
            array(I32, vec![s, PAGES], ints(&table[..s * PAGES]).data),
            ints(self.lengths),
            ints(&starts),
            ints(self.queries),
        ];
        let given: Vec<Array> = seven.into_iter().chain(of_sinks).collect();
        let mut expected = PagedAttention.evaluate(&given, &attrs, &[]).unwrap();
        let sizes = vec![rows as u64, (s + self.absent) as u64, pool as u64];
        let role = |i| OperandRole {
            state: i == 1 || i == 2,
            weight: i == 7,
            staged: (3..7).contains(&i),
        };
        let roles: Vec<OperandRole> = (0..given.len()).map(role).collect();
        let at = |capability| {
            let call = CudaOpCall {
                operands: &self.operands(),
                roles: &roles,
                results: &[],
                attrs: &attrs,
                target: CudaTarget { capability },
                sizes: &sizes,
                query_length: self.query_length,
            };
            let usual = attention_kernels(&call).unwrap();
            if !self.more_ranges {
                return usual;
            }
            let mut others = other_attention_kernels(&call).unwrap();
            assert_eq!(others.len(), 1, "{name}");
            assert!(others[0].scratch.eval(&sizes) > usual.scratch.eval(&sizes), "{name}");
            others.remove(0)
        };
        let mut kernels = at((8, 0));
        if self.capability != (8, 0) {
            let mut own = at(self.capability);
            if own.launches[0].cluster[0] > 1 {
                kernels = own;
            } else {
                // Clusters along other axes than the first are none here: prompts alone differ.
                kernels.launches.pop();
                kernels.launches.extend(own.launches.pop());
            }
        }
        let made: Vec<&str> = kernels.launches.iter().map(|l| l.entry.as_str()).collect();
        assert_eq!(made, entries, "{name}");
        let scratch = kernels.scratch.eval(&sizes);
        let positions = given.len() + 1;
        kernels.launches.iter().for_each(|launch| launch.check(positions, scratch).unwrap());
        let bytes = |x: &[i32]| bytemuck::cast_slice::<i32, u8>(x).to_vec();
        let case = Case {
            launches: kernels.launches,
            args: [
                q,
                k,
                v,
                bytes(&table),
                bytes(&padded(self.lengths)),
                bytes(&padded(&starts)),
                bytes(&padded(self.queries)),
            ]
            .into_iter()
            .chain(sinks.map(|(_, x)| x))
            .chain([vec![0x5a; rows * h * d1 * qt.size()]])
            .collect(),
            sizes,
            counts: vec![t as i32, s as i32, pool as i32],
            scratch: scratch.max(256),
        };
        Checked { case, written: self.written(&table), expected: expected.remove(0) }
    }
}
