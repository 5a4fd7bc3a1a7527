//! Experts on the CPU: rows are listed by expert, and each expert multiplies its rows at once.

use super::{DOWN, Experts, GATE_UP, LOGITS, OUT, X};
use crate::cpu::element::Element;
use crate::cpu::matmul::{MatmulArgs, MatmulProblem, matmul, matmul_scratch_bytes};
use crate::cpu::{FloatSlice, FloatSliceMut, Isa, SCRATCH_ALIGN};
use crate::op::with_elements;
use crate::op::{CpuOp, CpuOpArgs, CpuOpCall, LEAST_SUM, OpError, RouterScores, Routing};
use bytemuck::Pod;
use piecewise_ir::dtype::DType;

/// Rows of an expert that are multiplied at a time: more read its weights less often, and take more
/// scratch.
const BLOCK: usize = 128;

#[derive(Clone, Copy)]
struct Shape {
    /// Padded ones.
    rows: usize,
    width: usize,
    experts: usize,
    inner: usize,
    top_k: usize,
    weights: DType,
}

impl Shape {
    fn new(extent: impl Fn(usize, usize) -> usize, routing: Routing, weights: DType) -> Self {
        Self {
            rows: extent(X, 0),
            width: extent(X, 1),
            experts: extent(DOWN, 0),
            inner: extent(DOWN, 2),
            top_k: routing.top_k as usize,
            weights,
        }
    }

    fn block(&self) -> usize {
        self.rows.min(BLOCK)
    }

    fn pairs(&self) -> usize {
        self.rows.saturating_mul(self.top_k)
    }

    /// The products of a block with one expert: with its gate and what that gates, and with `down` of
    /// what comes of both, which lies where the gate was.
    fn products(&self) -> [MatmulProblem; 2] {
        let Self { width, inner, weights, .. } = *self;
        let of = |n, k| MatmulProblem::linear(self.block(), n, k, DType::F32, weights, DType::F32);
        let mut down = of(width, inner);
        down.a.row_stride = 2 * inner;
        [of(2 * inner, width), down]
    }

    /// Elements of 4 bytes of each list and buffer, as [`Buffers`] has them.
    fn elements(&self) -> [usize; 7] {
        let block = self.block();
        [
            self.experts,
            self.pairs(),
            self.pairs(),
            self.experts,
            self.rows.saturating_mul(self.width),
            block.saturating_mul(self.width),
            block.saturating_mul(2 * self.inner),
        ]
    }
}

/// What a call keeps in its scratch. A pair is a row and one of its experts: `row * top_k` plus the
/// place among the row's experts.
struct Buffers<'a> {
    /// The logits of a row.
    logits: &'a mut [f32],
    /// By what each pair counts.
    weights: &'a mut [f32],
    /// The expert of each pair, then the pairs by expert, and by row of one.
    pairs: [&'a mut [u32]; 2],
    /// Of each expert, where its pairs end in that list.
    ends: &'a mut [u32],
    /// The result in f32.
    sums: &'a mut [f32],
    /// Rows of a block, then what an expert makes of them.
    rows: &'a mut [f32],
    /// What the gate, and what is gated, make of a block.
    gates: &'a mut [f32],
    /// Of the products.
    scratch: &'a mut [u8],
}

fn bytes_of(elements: usize) -> usize {
    elements.saturating_mul(4).next_multiple_of(SCRATCH_ALIGN)
}

/// The first elements of the scratch; what is left is aligned as it was.
fn taken<'a, T: Pod>(scratch: &mut &'a mut [u8], elements: usize) -> &'a mut [T] {
    let (head, rest) = std::mem::take(scratch).split_at_mut(bytes_of(elements));
    *scratch = rest;
    &mut bytemuck::cast_slice_mut(head)[..elements]
}

impl<'a> Buffers<'a> {
    fn new(shape: &Shape, mut scratch: &'a mut [u8]) -> Self {
        let [logits, weights, pairs, ends, sums, rows, gates] = shape.elements();
        Self {
            logits: taken(&mut scratch, logits),
            weights: taken(&mut scratch, weights),
            pairs: [taken(&mut scratch, pairs), taken(&mut scratch, pairs)],
            ends: taken(&mut scratch, ends),
            sums: taken(&mut scratch, sums),
            rows: taken(&mut scratch, rows),
            gates: taken(&mut scratch, gates),
            scratch,
        }
    }

    /// Lists the pairs of the first `real` rows by expert.
    fn route(&mut self, shape: &Shape, routing: Routing, logits: &FloatSlice<'_>, real: usize) {
        let Shape { experts, top_k, .. } = *shape;
        let [of_pairs, listed] = &mut self.pairs;
        self.ends.fill(0);
        for row in 0..real {
            with_elements!(FloatSlice, logits, of => {
                let of = &of[row * experts..][..experts];
                self.logits.iter_mut().zip(of).for_each(|(to, x)| *to = x.to_f32());
            });
            let places = row * top_k..(row + 1) * top_k;
            let chosen = &mut of_pairs[places.clone()];
            choose(self.logits, chosen);
            weigh(self.logits, chosen, routing, &mut self.weights[places]);
            chosen.iter().for_each(|&expert| self.ends[expert as usize] += 1);
        }
        let mut first = 0;
        for end in self.ends.iter_mut() {
            first += std::mem::replace(end, first);
        }
        for (pair, &expert) in (0..).zip(&of_pairs[..real * top_k]) {
            let next = &mut self.ends[expert as usize];
            listed[*next as usize] = pair;
            *next += 1;
        }
    }
}

/// The experts of the largest logits, the largest first, a NaN after all numbers.
fn choose(logits: &[f32], chosen: &mut [u32]) {
    let is_before = |a: (f32, u32), b: (f32, u32)| match (a.0.is_nan(), b.0.is_nan()) {
        (false, false) => a.0 > b.0 || (a.0 == b.0 && a.1 < b.1),
        (true, true) => a.1 < b.1,
        (_, is_last) => is_last,
    };
    let mut last: Option<(f32, u32)> = None;
    for to in chosen {
        let after = (0..).zip(logits).map(|(expert, &logit)| (logit, expert));
        let after = after.filter(|&of| last.is_none_or(|last| is_before(last, of)));
        let best = after.reduce(|best, of| if is_before(of, best) { of } else { best });
        *to = best.map_or(0, |(_, expert)| expert);
        last = best;
    }
}

/// By what each of the chosen counts.
fn weigh(logits: &[f32], chosen: &[u32], routing: Routing, weights: &mut [f32]) {
    let top = chosen.first().map_or(0.0, |&expert| logits[expert as usize]);
    let softmax = routing.scores == RouterScores::Softmax;
    let score = |x: f32| if softmax { (x - top).exp() } else { 1.0 / (1.0 + (-x).exp()) };
    let mut sum = if softmax { 0.0 } else { LEAST_SUM as f32 };
    for (weight, &expert) in weights.iter_mut().zip(chosen) {
        *weight = score(logits[expert as usize]);
        sum += *weight;
    }
    if !routing.renormalize {
        sum = if softmax { logits.iter().map(|&x| score(x)).sum() } else { 1.0 };
    }
    let factor = routing.scale as f32 / sum;
    weights.iter_mut().for_each(|weight| *weight *= factor);
}

impl CpuOp for Experts {
    fn name(&self) -> &str {
        Self::NAME
    }

    fn scratch_bytes(&self, call: &CpuOpCall<'_>) -> u64 {
        let Ok(routing) = Self::routing(call.attrs) else { return 0 };
        let extent = |operand, axis| call.extent(operand, axis);
        let shape = Shape::new(extent, routing, call.operands[DOWN].dtype);
        let [logits, weights, pairs, rest @ ..] = shape.elements();
        let lists = [logits, weights, pairs, pairs].into_iter().chain(rest).map(bytes_of);
        let products = shape.products().map(|of| matmul_scratch_bytes(&of, call.threads));
        lists.chain(products.into_iter().max()).fold(0, usize::saturating_add) as u64
    }

    fn run(&self, args: &CpuOpArgs<'_>) -> Result<(), OpError> {
        let routing = Self::routing(args.attrs()).map_err(|reason| args.error(reason))?;
        let shape = Shape::new(|p, axis| args.dim(p, axis), routing, args.dtype(DOWN));
        let Shape { width, inner, top_k, .. } = shape;
        let real = args.true_dim(X, 0);
        if real == 0 {
            return Ok(());
        }
        let (x, logits) = (args.read_floats(X)?, args.read_floats(LOGITS)?);
        let (gate_up, down) = (args.read_floats(GATE_UP)?, args.read_floats(DOWN)?);
        let mut at = Buffers::new(&shape, args.scratch()?);
        at.route(&shape, routing, &logits, real);
        let Buffers { weights, pairs: [_, pairs], ends, sums, rows, gates, scratch, .. } = at;
        let sums = &mut sums[..real * width];
        sums.fill(0.0);
        let [first, second] = shape.products();
        let mut begin = 0;
        for (expert, &end) in ends.iter().enumerate() {
            for block in pairs[begin..end as usize].chunks(BLOCK) {
                let row_of = |pair: u32| pair as usize / top_k;
                for (to, &pair) in rows.chunks_exact_mut(width).zip(block) {
                    with_elements!(FloatSlice, x, x => {
                        let of = &x[row_of(pair) * width..][..width];
                        to.iter_mut().zip(of).for_each(|(to, x)| *to = x.to_f32());
                    });
                }
                let of = |weights: FloatSlice<'_>,
                          problem: MatmulProblem,
                          a: &[f32],
                          out: &mut [f32],
                          scratch: &mut [u8]| {
                    let weight = problem.n * problem.k;
                    let (a, out) = (FloatSlice::F32(a), FloatSliceMut::F32(out));
                    let b = weights.part(expert * weight..(expert + 1) * weight);
                    matmul(
                        Isa::detected(),
                        MatmulArgs { problem, rows: block.len(), a, b, out, scratch },
                    )
                    .map_err(|e| args.error(e.to_string()))
                };
                of(gate_up, first, rows, gates, scratch)?;
                for row in gates.chunks_exact_mut(2 * inner).take(block.len()) {
                    let (gate, up) = row.split_at_mut(inner);
                    gate.iter_mut().zip(up).for_each(|(x, up)| *x = *x / (1.0 + (-*x).exp()) * *up);
                }
                of(down, second, gates, rows, scratch)?;
                for (made, &pair) in rows.chunks_exact(width).zip(block) {
                    let weight = weights[pair as usize];
                    let sums = &mut sums[row_of(pair) * width..][..width];
                    sums.iter_mut().zip(made).for_each(|(sum, x)| *sum += weight * x);
                }
            }
            begin = end as usize;
        }
        with_elements!(FloatSliceMut, args.write_floats(OUT)?, out => {
            out.iter_mut().zip(sums).for_each(|(to, sum)| *to = Element::from_f32(*sum));
        });
        Ok(())
    }
}
