//! What the small model computes.

use super::device::FakeDevice;
use super::graph::VOCAB;
use super::program::FakeProgram;
use crate::batch::Sampling;
use piecewise_backend::device::{Address, DeviceError};
use piecewise_kernels::attention::PAGE_ROWS;
use piecewise_kernels::sampling::NO_ID;
use std::sync::atomic::Ordering;

/// The id after `ids`.
pub(crate) fn next_id(ids: &[u32], sampling: Sampling) -> u32 {
    let hash = ids.iter().fold(0, |hash, &id| absorb(hash, f64::from(id) as f32));
    choose(hash, sampling, ids.len() as i32)
}

fn absorb(hash: i64, id: f32) -> i64 {
    if id.is_nan() {
        return i64::MIN;
    }
    hash.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(id as i64 + 1)
}

fn choose(hash: i64, sampling: Sampling, position: i32) -> u32 {
    let mut key = hash as u64;
    if sampling.temperature != 0.0 {
        let parameters = [
            u64::from(sampling.temperature.to_bits()),
            u64::from(sampling.top_k),
            u64::from(sampling.top_p.to_bits()),
            sampling.seed,
            position as u64,
        ];
        for parameter in parameters {
            key = (key ^ parameter).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        }
    }
    key ^= key >> 29;
    (key.wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 33) as u32 % VOCAB as u32
}

/// Runs a program at padded sizes by symbol: tokens, rows, sequences, then fixed ones.
pub(super) fn run(
    device: &mut FakeDevice,
    program: &FakeProgram,
    sizes: &[u64],
) -> Result<(), DeviceError> {
    let mut counts = [0; 3];
    for (i, count) in counts.iter_mut().enumerate() {
        *count = u64::from(u32::from_le_bytes(device.load(program.counts, i as u64)?));
    }
    let relevant = if program.op == "test.head" { 1..2 } else { 0..1 };
    for i in relevant {
        if counts[i] > sizes[i] {
            return Err(DeviceError::Launch {
                launch: program.op.clone(),
                label: program.op.clone(),
                reason: format!("{} rows at size {}", counts[i], sizes[i]),
            });
        }
    }
    match program.op.as_str() {
        "test.embed" => embed(device, &program.operands, counts[0], sizes[0]),
        "test.mix" => mix(device, program, counts[2], counts[0]),
        _ => head(device, program, counts[1], sizes),
    }
}

fn int(device: &mut FakeDevice, at: Address, i: u64) -> Result<i32, DeviceError> {
    Ok(i32::from_le_bytes(device.load(at, i)?))
}

fn embed(
    device: &mut FakeDevice,
    operands: &[Address],
    count: u64,
    size: u64,
) -> Result<(), DeviceError> {
    let (&[ids, feedback, slots, ref rest @ ..], Some(&x)) = (operands, operands.last()) else {
        unreachable!()
    };
    let (given, sampled, kv) = match *rest {
        [sampled, kv, _] => (None, sampled, kv),
        [rows, sampled, kv, given, _] => (Some((rows, given)), sampled, kv),
        _ => unreachable!(),
    };
    for t in 0..size {
        let entry = int(device, feedback, t)?;
        let id = match u64::try_from(entry) {
            Ok(entry) => int(device, sampled, entry)?,
            Err(_) => int(device, ids, t)?,
        };
        let mut value = if t < count { id as f32 } else { f32::NAN };
        if let Some((rows, given)) = given
            && let Ok(row) = u64::try_from(int(device, rows, t)?)
        {
            value = f32::from_le_bytes(device.load(given, row)?);
        }
        device.store(x, t, value.to_le_bytes())?;
        if let Ok(slot) = u64::try_from(int(device, slots, t)?) {
            device.store(kv, slot, value.to_le_bytes())?;
        }
    }
    Ok(())
}

fn mix(
    device: &mut FakeDevice,
    program: &FakeProgram,
    sequences: u64,
    tokens: u64,
) -> Result<(), DeviceError> {
    let &[_, positions, table, lengths, starts, queries, kv, h] = &program.operands[..] else {
        unreachable!()
    };
    let past = i32::from(device.faults.read_past_length.load(Ordering::Relaxed));
    for s in 0..sequences {
        let length = int(device, lengths, s)?;
        let start = int(device, starts, s)?;
        let query = int(device, queries, s)?;
        for j in 0..query {
            let t = (start + j) as u64;
            let position = int(device, positions, t)?;
            assert_eq!(position, length - query + j, "positions and lengths disagree");
            assert!(t < tokens, "a query row past the tokens");
            let mut hash = 0;
            for i in 0..=(position + past) as u64 {
                let column = s * program.columns as u64 + i / PAGE_ROWS;
                let page = match &program.table {
                    Some(baked) => i32::from(baked[4 * column as usize]),
                    None => int(device, table, column)?,
                } as u64;
                let id = f32::from_le_bytes(device.load(kv, page * PAGE_ROWS + i % PAGE_ROWS)?);
                hash = absorb(hash, id);
            }
            device.store(h, t, hash.to_le_bytes())?;
        }
    }
    Ok(())
}

fn head(
    device: &mut FakeDevice,
    program: &FakeProgram,
    count: u64,
    sizes: &[u64],
) -> Result<(), DeviceError> {
    let size = sizes[1];
    let &[h, rows, entries, temperature, top_k, top_p, seed, position, sampled, logits, out] =
        &program.operands[..]
    else {
        unreachable!()
    };
    let wrong = program.replayed && device.faults.wrong_replay.load(Ordering::Relaxed);
    // Logits may take the bytes of what is read here.
    let mut hashes = Vec::new();
    let uniform = program.replayed && device.faults.rows_of_uniform.load(Ordering::Relaxed);
    for r in 0..size {
        let row = match uniform {
            true => (r + 1) * (sizes[0] / sizes[2]).max(1) - 1,
            false => int(device, rows, r)? as u64,
        };
        hashes.push(i64::from_le_bytes(device.load(h, row)?));
    }
    for (r, hash) in (0..size).zip(hashes) {
        let sampling = Sampling {
            temperature: f32::from_le_bytes(device.load(temperature, r)?),
            top_k: int(device, top_k, r)? as u32,
            top_p: f32::from_le_bytes(device.load(top_p, r)?),
            seed: u64::from_le_bytes(device.load(seed, r)?),
            ..Sampling::default()
        };
        let position = int(device, position, r)?;
        let id = choose(hash, sampling, position);
        let fault = &device.faults.no_id_at;
        let at = if r < count && position > 0 { position as u64 } else { u64::MAX };
        let strikes = fault.compare_exchange(at, 0, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        let given = if strikes { NO_ID } else { id as i32 };
        let width = program.columns as u64;
        for v in 0..width {
            let value = match width {
                1 => id as f32,
                _ if v == u64::from(id) && r < count => 1.0,
                _ => 0.0,
            };
            let value = value + if wrong { 0.5 } else { 0.0 };
            device.store(logits, r * width + v, value.to_le_bytes())?;
        }
        device.store(out, r, given.to_le_bytes())?;
        if let Ok(entry) = u64::try_from(int(device, entries, r)?) {
            device.store(sampled, entry, given.to_le_bytes())?;
        }
    }
    Ok(())
}
