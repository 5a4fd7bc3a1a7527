//! Times of captured graphs, compared in rounds that take turns.

use piecewise_backend::device::{Captured, Device, DeviceError};

/// Rounds by which a trial is given up that is clearly slower.
pub(super) const SCREENING: usize = 2;
/// Rounds that decide between two graphs: more of them where a replay takes up to so many microseconds.
const DECIDING: [(f64, usize); 2] = [(2_000.0, 9), (8_000.0, 7)];
const DECIDING_LONG: usize = 3;
/// The least share of a step that counts as noise: what a later start would not see again.
const FLOOR: f64 = 0.002;
/// How many times its standard deviation a difference must have to mean something; it is then looked for
/// again.
const SIGMAS: f64 = 2.0;

/// Rounds that decide, where a replay takes so long.
pub(super) fn deciding(us: f64) -> usize {
    let found = DECIDING.into_iter().find(|(most, _)| us <= *most);
    found.map_or(DECIDING_LONG, |(_, rounds)| rounds)
}

/// The microseconds of a replay of each of two graphs, which take turns, and take turns at being the
/// first: as [`of_pairs`] has them.
pub(super) fn compare(
    device: &mut dyn Device,
    graphs: [&Captured; 2],
    rounds: usize,
) -> Result<[f64; 2], DeviceError> {
    let mut replay = |i: usize| device.replay_time(graphs[i]).map(|time| time.as_secs_f64() * 1e6);
    let pairs: Result<Vec<_>, _> = (0..rounds).map(|round| pair(round, &mut replay)).collect();
    Ok(of_pairs(&pairs?))
}

/// The times of both in a round; they take turns at being the first.
pub(super) fn pair<E>(
    round: usize,
    mut time: impl FnMut(usize) -> Result<f64, E>,
) -> Result<[f64; 2], E> {
    let mut pair = [0.0; 2];
    for i in [round % 2, (round + 1) % 2] {
        pair[i] = time(i)?;
    }
    Ok(pair)
}

/// The median of the first of each pair, and what is by the median difference of both from it: the clock
/// of a device at its limit of power drifts from pair to pair, and differences don't see that.
pub(super) fn of_pairs(pairs: &[[f64; 2]]) -> [f64; 2] {
    let first = median(&mut pairs.iter().map(|pair| pair[0]).collect::<Vec<_>>());
    [first, first + median(&mut differences(pairs))]
}

fn differences(pairs: &[[f64; 2]]) -> Vec<f64> {
    pairs.iter().map(|[first, second]| second - first).collect()
}

/// The share of a step by which two graphs must differ to mean something: from replays of the same one.
pub(super) fn noise(device: &mut dyn Device, graph: &Captured) -> Result<f64, DeviceError> {
    let [us, _] = compare(device, [graph; 2], 1)?;
    let rounds = deciding(us);
    let mut pairs = Vec::with_capacity(rounds);
    for _ in 0..rounds {
        let mut replay = || device.replay_time(graph).map(|time| time.as_secs_f64() * 1e6);
        pairs.push([replay()?, replay()?]);
    }
    Ok(noise_of(&pairs))
}

/// The share of the first by which the two of a pair must differ to mean something.
pub(super) fn noise_of(pairs: &[[f64; 2]]) -> f64 {
    let mut apart = differences(pairs);
    let middle = median(&mut apart);
    apart.iter_mut().for_each(|difference| *difference = (*difference - middle).abs());
    // Of a normal distribution: from the median deviation to the standard one, and from that of a
    // difference to that of the median of so many.
    let deviation = 1.4826 * median(&mut apart);
    let of_median = 1.2533 * deviation / (pairs.len() as f64).sqrt();
    f64::max(FLOOR, SIGMAS * of_median / of_pairs(pairs)[0].max(f64::MIN_POSITIVE))
}

pub(super) fn median(times: &mut [f64]) -> f64 {
    times.sort_unstable_by(f64::total_cmp);
    times.get(times.len() / 2).copied().unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Steps of 50 ms whose clock drifts by a tenth, of which the second takes a hundredth less.
    #[test]
    fn a_clock_that_drifts_hides_no_difference() {
        let pairs = [1.0, 1.03, 1.06, 0.97, 1.1].map(|clock| [50_000.0 * clock, 49_500.0 * clock]);
        let [first, second] = of_pairs(&pairs);
        assert!((second / first - 0.99).abs() < 1e-3, "{first} {second}");
        let same = pairs.map(|[first, _]| [first, first + 0.001 * (first - 50_000.0)]);
        assert_eq!(noise_of(&same), FLOOR);
        // What two in a row differ by is noise.
        let apart = [100.0, -900.0, 1_400.0, -500.0, 700.0].map(|us| [50_000.0, 50_000.0 + us]);
        assert!(noise_of(&apart) > 0.01, "{}", noise_of(&apart));
    }
}
