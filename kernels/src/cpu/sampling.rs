//! Choosing a token from a row of logits: the largest, or a draw from the filtered distribution.
//!
//! A choice depends on the row's logits and parameters alone, and on every machine it is the same:
//! each float step is one correctly rounded operation, and sums are of integers. A twin on another
//! device follows these steps (`fma` rounds once, all f32 operations to nearest):
//!
//! 1. **No id.** A row with a logit that is NaN or +inf, or with none above -inf, says nothing of what
//!    comes next: it gets [`NO_ID`](crate::sampling::NO_ID), and takes none of the steps below.
//! 2. **Greedy** if `temperature` is not above 0 (0, negative, NaN): the largest logit wins, the
//!    lowest index among equals (-0 equals +0).
//! 3. **Temperature.** `z[i] = logit[i] / temperature`; NaN becomes -inf. `top = max z`. If `top`
//!    is not finite, the greedy choice is taken.
//! 4. **Weights.** `x = z[i] - top`; below `LOWEST` (or -inf) the weight is 0, else with
//!    `n = floor(fma(x, log2 e, 0.5))` and `r = fma(n, -LN2_LOW, fma(n, -LN2_HIGH, x))`:
//!    `p = P5`, then `p = fma(p, r, P4)`, and so on to `P0`, then `e = fma(p, r * r, r) + 1`, and
//!    the weight is the integer part of `e * 2^(n + 40)`: `e^x` in 40 binary places, an integer of
//!    64 bits.
//! 5. **Order.** By z descending, then by index ascending (-0 equals +0).
//! 6. **Top-k** if `0 < top_k < V`: the first `top_k` in this order remain.
//! 7. **Top-p** if `top_p < 1` (NaN: off), over what remains: with `W` the sum of the remaining
//!    weights and `P = floor(top_p * 2^32)` (at least 0), a token stays if the sum of the weights
//!    before it is below `floor(W * P / 2^32)`; the first always stays. So the smallest prefix
//!    that holds the share `top_p` stays.
//! 8. **Draw.** `[a, b, _, _] = philox4x32([position, 0, 0, 0], [seed low, seed high])`,
//!    `u = b * 2^32 + a`, `target = floor(W' * u / 2^64)` with `W'` the sum of the weights that
//!    stayed. The token is the first **by index** for which the running sum of the weights that
//!    stayed exceeds `target`.
//!
//! With controls ([`ControlledSample`](crate::sampling::ControlledSample)), the steps start from logits
//! with biases, penalties and masks, where a logit that is NaN or +inf as it comes is not masked; in
//! step 4 a weight below `floor(min_p * 2^40)` is 0. A row that is given its id gets it after step 1, of
//! the logits as they come.
//!
//! The seed names the sequence: two sequences that should differ get different seeds.

mod controls;
mod row;

use super::philox::philox4x32;
use super::scratch::{self, Shared};
use super::{CpuMathError, Isa, at_least, parallel};

use controls::CALL;
pub use controls::ControlArgs;
use row::{Row, RowParameters};

/// Weights of 40 binary places then sum to less than 2^63.
const MAX_VOCABULARY: usize = 1 << 22;

/// Operands of [`sample`]: one parameter of each kind for a row.
#[derive(Debug)]
pub struct SampleArgs<'a> {
    /// `[R, vocabulary]`.
    pub logits: &'a [f32],
    /// Logits of a row: the ids that may be sampled are below it.
    pub vocabulary: usize,
    /// `[R]`: 0 for the largest logit.
    pub temperature: &'a [f32],
    /// `[R]`: how many of the likeliest tokens remain; 0 for all.
    pub top_k: &'a [i32],
    /// `[R]`: the share of probability that remains; 1 for all.
    pub top_p: &'a [f32],
    /// `[R]`: key of the generator.
    pub seed: &'a [i64],
    /// `[R]`: counter of the generator, the position the token will have.
    pub position: &'a [i32],
    /// What rows ask for besides.
    pub controls: Option<ControlArgs<'a>>,
    /// `[R]`: the chosen tokens, or [`NO_ID`](crate::sampling::NO_ID). Its length is the number of real rows; the other slices may be
    /// longer.
    pub out: &'a mut [i32],
    /// At least [`sample_scratch_bytes`] bytes for as many threads as should work.
    pub scratch: &'a mut [u8],
}

/// Scratch bytes for [`sample`], with controls or without, on up to `threads` threads.
///
/// With less, down to what one thread needs, the call uses fewer threads.
pub fn sample_scratch_bytes(vocabulary: usize, controlled: bool, threads: usize) -> usize {
    let [keys, logits] = worker_bytes(vocabulary, controlled);
    keys.saturating_add(logits).saturating_mul(threads.max(1))
}

/// Bytes of a thread's keys, and of the logits that controls make.
fn worker_bytes(vocabulary: usize, controlled: bool) -> [usize; 2] {
    let bytes = |size| scratch::round_up(vocabulary.saturating_mul(size));
    [bytes(size_of::<u64>()), if controlled { bytes(size_of::<f32>()) } else { 0 }]
}

/// Chooses a token for each row of `out`.
///
/// Parameters may hold anything; see the module's steps for what odd values mean.
///
/// # Errors
/// If a slice is too short, the vocabulary is empty or above 2^22, or the scratch does not serve
/// one thread; nothing was written.
pub fn sample(isa: Isa, args: SampleArgs<'_>) -> Result<(), CpuMathError> {
    let SampleArgs { logits, vocabulary, temperature, top_k, top_p, seed, position, .. } = args;
    let mut controls = args.controls;
    let rows = args.out.len();
    if vocabulary == 0 || vocabulary > MAX_VOCABULARY {
        let (name, value, rule) = ("vocabulary", vocabulary, "in 1..=4194304");
        return Err(CpuMathError::BadShape { call: CALL, name, value, rule });
    }
    for (operand, have, need) in [
        ("logits", logits.len(), rows.saturating_mul(vocabulary)),
        ("temperature", temperature.len(), rows),
        ("top_k", top_k.len(), rows),
        ("top_p", top_p.len(), rows),
        ("seed", seed.len(), rows),
        ("position", position.len(), rows),
    ] {
        at_least(CALL, operand, have, need)?;
    }
    if let Some(controls) = &controls {
        controls.check(rows, vocabulary)?;
    }
    let [of_keys, of_logits] = worker_bytes(vocabulary, controls.is_some());
    let need = of_keys + of_logits;
    scratch::check(CALL, args.scratch, need, "sample_scratch_bytes")?;
    let threads = match rows {
        0 | 1 => 1,
        _ => parallel::pool_threads().min(args.scratch.len() / need),
    };
    let scratch = Shared(args.scratch.as_mut_ptr());
    let out = Shared(args.out.as_mut_ptr());
    let asked = controls.as_ref();
    parallel::for_each_block(threads, rows, |worker, row| {
        let keys = scratch.get().wrapping_add(worker * need).cast::<u64>();
        let adjusted = scratch.get().wrapping_add(worker * need + of_keys).cast::<f32>();
        let mut from = &logits[row * vocabulary..][..vocabulary];
        if let Some(controls) = asked.filter(|controls| controls.adjusts(row)) {
            // SAFETY: the part of this worker is aligned and holds `vocabulary` logits behind its
            // keys, which are zeroed before they are seen as a slice.
            let adjusted = unsafe {
                adjusted.write_bytes(0, vocabulary);
                std::slice::from_raw_parts_mut(adjusted, vocabulary)
            };
            controls.adjust(row, from, adjusted);
            from = adjusted;
        }
        let parameters = RowParameters {
            given: asked.and_then(|controls| controls.given(row)),
            least: asked.map_or(0, |controls| controls.least_weight(row)),
            temperature: temperature[row],
            top_k: usize::try_from(top_k[row]).unwrap_or(0),
            top_p: top_p[row],
            uniform: uniform(seed[row], position[row]),
        };
        // SAFETY: the part of this worker is aligned and holds `vocabulary` keys, which are
        // zeroed before they are seen as a slice; each row writes its own output.
        unsafe {
            let len = if parameters.needs_order(vocabulary) { vocabulary } else { 0 };
            keys.write_bytes(0, len);
            let keys = std::slice::from_raw_parts_mut(keys, len);
            *out.get().add(row) = isa.dispatch(Row { logits: from, parameters, keys });
        }
    });
    if let Some(controls) = &mut controls {
        for (row, &token) in args.out.iter().enumerate() {
            controls.count(row, vocabulary, token);
            controls.tell(row, &logits[row * vocabulary..][..vocabulary], token);
        }
    }
    Ok(())
}

/// 64 random bits of a sequence's seed at a position.
fn uniform(seed: i64, position: i32) -> u64 {
    let key = [seed as u32, (seed >> 32) as u32];
    let [low, high, _, _] = philox4x32([position as u32, 0, 0, 0], key);
    u64::from(high) << 32 | u64::from(low)
}

#[cfg(test)]
mod control_tests;
#[cfg(test)]
mod tests;
