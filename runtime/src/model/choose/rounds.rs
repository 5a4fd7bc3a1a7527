//! Times of captured graphs, compared in rounds that take turns.

use piecewise_backend::device::{Device, DeviceError};

/// Rounds by which a trial is given up that is clearly slower.
pub(super) const SCREENING: usize = 2;
/// Rounds that decide between two graphs: more of them where a replay takes up to so many microseconds.
const DECIDING: [(f64, usize); 2] = [(2_000.0, 9), (8_000.0, 7)];
const DECIDING_LONG: usize = 3;
/// The least share of a step that counts as noise: what a later start would not see again.
const FLOOR: f64 = 0.002;
/// How many times its standard deviation a difference of medians must have to mean something.
const SIGMAS: f64 = 3.0;

/// Rounds that decide, where a replay takes so long.
pub(super) fn deciding(us: f64) -> usize {
    let found = DECIDING.into_iter().find(|(most, _)| us <= *most);
    found.map_or(DECIDING_LONG, |(_, rounds)| rounds)
}

/// The median microseconds of a replay of each of two graphs, which take turns, and take turns at being
/// the first.
pub(super) fn compare<D: Device>(
    device: &mut D,
    graphs: [&D::Captured; 2],
    rounds: usize,
) -> Result<[f64; 2], DeviceError> {
    let mut times = [Vec::with_capacity(rounds), Vec::with_capacity(rounds)];
    for round in 0..rounds {
        for turn in 0..2 {
            let i = (round + turn) % 2;
            times[i].push(device.replay_time(graphs[i])?.as_secs_f64() * 1e6);
        }
    }
    Ok(times.map(|mut times| median(&mut times)))
}

/// The share of a step by which the medians of two graphs must differ to mean something: from replays
/// of the same one.
pub(super) fn noise<D: Device>(device: &mut D, graph: &D::Captured) -> Result<f64, DeviceError> {
    let [_, us] = compare(device, [graph; 2], 1)?;
    let rounds = deciding(us);
    let mut times = Vec::with_capacity(2 * rounds);
    for _ in 0..2 * rounds {
        times.push(device.replay_time(graph)?.as_secs_f64() * 1e6);
    }
    let middle = median(&mut times);
    let mut apart: Vec<f64> = times.iter().map(|time| (time - middle).abs()).collect();
    // Of a normal distribution: from the median deviation to the standard one, and from that of a
    // replay to that of the difference of two medians.
    let deviation = 1.4826 * median(&mut apart);
    let of_difference = 1.2533 * deviation * (2.0 / rounds as f64).sqrt();
    Ok(f64::max(FLOOR, SIGMAS * of_difference / middle.max(f64::MIN_POSITIVE)))
}

pub(super) fn median(times: &mut [f64]) -> f64 {
    times.sort_unstable_by(f64::total_cmp);
    times.get(times.len() / 2).copied().unwrap_or(0.0)
}
