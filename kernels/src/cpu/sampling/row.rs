//! The choice for one row; the steps are those of the parent module.

use crate::cpu::simd::{Kernel, Simd};
use crate::inputs::NO_ID;
use crate::op::{LN2_HIGH, LN2_LOW, LOWEST, POLYNOMIAL};

const FRACTION_BITS: i32 = 40;
/// Candidates that the first search for the top-p prefix orders; grows eightfold.
const FIRST_PREFIX: usize = 256;
/// Parts of a row whose weights are summed apart, so that the draw looks into one of them only.
const DRAW_CHUNKS: usize = 256;

pub(super) struct RowParameters {
    pub(super) temperature: f32,
    /// 0 for off.
    pub(super) top_k: usize,
    pub(super) top_p: f32,
    pub(super) uniform: u64,
    /// What the row gets whatever its logits say, if they are finite.
    pub(super) given: Option<i32>,
    /// Weights below it count as none.
    pub(super) least: u64,
}

impl RowParameters {
    fn greedy(&self) -> bool {
        !matches!(self.temperature.partial_cmp(&0.0), Some(std::cmp::Ordering::Greater))
    }

    fn top_k_of(&self, vocabulary: usize) -> Option<usize> {
        (self.top_k > 0 && self.top_k < vocabulary).then_some(self.top_k)
    }

    /// Whether a filter asks for the order of the tokens.
    pub(super) fn needs_order(&self, vocabulary: usize) -> bool {
        self.given.is_none()
            && !self.greedy()
            && (self.top_k_of(vocabulary).is_some() || self.top_p < 1.0)
    }
}

pub(super) struct Row<'a> {
    pub(super) logits: &'a [f32],
    pub(super) parameters: RowParameters,
    /// One for each token if a filter is on, else empty.
    pub(super) keys: &'a mut [u64],
}

impl Kernel for Row<'_> {
    type Output = i32;
    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> i32 {
        let Row { logits, parameters, keys } = self;
        let Some(largest) = largest(s, logits) else { return NO_ID };
        if let Some(id) = parameters.given {
            return id;
        }
        let greedy = |logits: &[f32]| {
            logits.iter().position(|x| *x == largest).map_or(NO_ID, |index| index as i32)
        };
        if parameters.greedy() {
            return greedy(logits);
        }
        let RowParameters { temperature, least, .. } = parameters;
        let scaled = Scaled { temperature, top: largest / temperature, least };
        if !scaled.top.is_finite() {
            return greedy(logits);
        }
        let mut last_key = u64::MAX;
        if !keys.is_empty() {
            for (index, (key, logit)) in keys.iter_mut().zip(logits).enumerate() {
                *key = order_key(scaled.z(*logit), index);
            }
            last_key = last_kept(keys, &parameters, &scaled);
        }
        draw(logits, &scaled, last_key, parameters.uniform) as i32
    }
}

/// The largest value; nothing where it is not finite, or a value is NaN.
#[inline(always)]
fn largest<S: Simd>(s: S, values: &[f32]) -> Option<f32> {
    let mut chunks = values.chunks_exact(4 * S::LANES);
    let mut largest = [s.splat(f32::NEG_INFINITY); 4];
    // 1 where a value was NaN or +inf.
    let mut bad = s.splat(0.0);
    let (infinity, one) = (s.splat(f32::INFINITY), s.splat(1.0));
    for chunk in &mut chunks {
        for (i, largest) in largest.iter_mut().enumerate() {
            // SAFETY: the chunk holds four vectors.
            let values = unsafe { s.load_f32(chunk.as_ptr().add(i * S::LANES)) };
            *largest = s.max(values, *largest);
            bad = s.max(bad, s.zero_where_less(values, infinity, one));
        }
    }
    let [a, b, c, d] = largest;
    let whole = s.max_lane(s.max(s.max(a, b), s.max(c, d)));
    let rest = chunks.remainder();
    let is_good = s.max_lane(bad) == 0.0 && rest.iter().all(|value| *value < f32::INFINITY);
    let largest = rest.iter().copied().fold(whole, f32::max);
    (is_good && largest > f32::NEG_INFINITY).then_some(largest)
}

pub(super) struct Scaled {
    pub(super) temperature: f32,
    pub(super) top: f32,
    pub(super) least: u64,
}

impl Scaled {
    #[inline(always)]
    pub(super) fn z(&self, logit: f32) -> f32 {
        let z = logit / self.temperature;
        if z.is_nan() { f32::NEG_INFINITY } else { z }
    }

    /// `2^40 e^(z - top)`, its integer part.
    #[inline(always)]
    pub(super) fn weight(&self, z: f32) -> u64 {
        let difference = z - self.top;
        let x = difference.max(LOWEST);
        let n = x.mul_add(std::f32::consts::LOG2_E, 0.5).floor();
        let r = n.mul_add(-LN2_LOW, n.mul_add(-LN2_HIGH, x));
        let [first, rest @ ..] = POLYNOMIAL;
        let mut p = first;
        for coefficient in rest {
            p = p.mul_add(r, coefficient);
        }
        let e = p.mul_add(r * r, r) + 1.0;
        let scale = f32::from_bits(((n as i32 + FRACTION_BITS + 127) as u32) << 23);
        let weight = e * scale;
        // SAFETY: x is not NaN and n is in -40..=0, so the product is finite, within 0..2^41.
        let weight: i64 = unsafe { weight.to_int_unchecked() };
        let weight = if difference < LOWEST { 0 } else { weight as u64 };
        if weight < self.least { 0 } else { weight }
    }
}

/// Ascends as z descends, then as the index ascends.
#[inline(always)]
pub(super) fn order_key(z: f32, index: usize) -> u64 {
    let bits = (z + 0.0).to_bits();
    let ascending = if bits >> 31 == 1 { !bits } else { bits | 1 << 31 };
    u64::from(!ascending) << 32 | index as u64
}

/// The z that a key was made from, with -0 as +0.
#[inline(always)]
fn z_of_key(key: u64) -> f32 {
    let ascending = !((key >> 32) as u32);
    f32::from_bits(if ascending >> 31 == 1 { ascending & !(1 << 31) } else { !ascending })
}

/// The key of the last token that top-k and top-p leave. Reorders the keys.
#[inline(always)]
fn last_kept(keys: &mut [u64], parameters: &RowParameters, scaled: &Scaled) -> u64 {
    let kept = match parameters.top_k_of(keys.len()) {
        Some(count) => {
            keys.select_nth_unstable(count - 1);
            &mut keys[..count]
        }
        None => keys,
    };
    if parameters.top_p.is_nan() || parameters.top_p >= 1.0 {
        return kept[kept.len() - 1];
    }
    let total: u64 = kept.iter().map(|key| scaled.weight(z_of_key(*key))).sum();
    let share = (f64::from(parameters.top_p.max(0.0)) * 4_294_967_296.0) as u64;
    let limit = ((u128::from(total) * u128::from(share)) >> 32) as u64;

    // Most of the weight lies in few tokens: order only as many as reach the limit.
    let mut count = FIRST_PREFIX.min(kept.len());
    loop {
        if count < kept.len() {
            kept.select_nth_unstable(count - 1);
        }
        let reached: u64 = kept[..count].iter().map(|key| scaled.weight(z_of_key(*key))).sum();
        if reached >= limit || count == kept.len() {
            break;
        }
        count = count.saturating_mul(8).min(kept.len());
    }
    let prefix = &mut kept[..count];
    prefix.sort_unstable();
    let mut before = 0;
    let mut last = prefix[0];
    for key in prefix.iter() {
        if before >= limit {
            break;
        }
        last = *key;
        before += scaled.weight(z_of_key(*key));
    }
    last
}

/// The first token by index whose running weight exceeds the target, among those up to `last_key`.
#[inline(always)]
fn draw(logits: &[f32], scaled: &Scaled, last_key: u64, uniform: u64) -> usize {
    let chunk = logits.len().div_ceil(DRAW_CHUNKS);
    let mut sums = [0u64; DRAW_CHUNKS];
    let mut total = 0;
    for (index, (sum, logits)) in sums.iter_mut().zip(logits.chunks(chunk)).enumerate() {
        for (i, logit) in logits.iter().enumerate() {
            *sum += kept_weight(scaled, *logit, index * chunk + i, last_key);
        }
        total += *sum;
    }
    let target = ((u128::from(total) * u128::from(uniform)) >> 64) as u64;
    let mut running = 0;
    for (index, sum) in sums.iter().enumerate() {
        if running + sum <= target {
            running += sum;
            continue;
        }
        for (i, logit) in logits[index * chunk..].iter().enumerate() {
            running += kept_weight(scaled, *logit, index * chunk + i, last_key);
            if running > target {
                return index * chunk + i;
            }
        }
    }
    unreachable!("the token with the largest logit stays, so the total exceeds the target")
}

#[inline(always)]
fn kept_weight(scaled: &Scaled, logit: f32, index: usize, last_key: u64) -> u64 {
    let z = scaled.z(logit);
    let weight = scaled.weight(z);
    if order_key(z, index) <= last_key { weight } else { 0 }
}
