//! Bytes that no writer makes: damaged ones, and forged ones under right checksums.

#![allow(dead_code, reason = "each test program uses its part")]

use piecewise_cache::format::{MAGIC, PREFIX_BYTES};
use proptest::prelude::*;

use crate::support::key;

/// An archive with these bytes as its entries.
pub(crate) fn archive(entries: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = b"PWARCHIV\x01\0\0\0".to_vec();
    for entry in entries {
        bytes.extend_from_slice(&(entry.len() as u64).to_le_bytes());
        bytes.extend_from_slice(entry);
    }
    bytes.extend_from_slice(&0_u64.to_le_bytes());
    bytes.extend_from_slice(&(entries.len() as u64).to_le_bytes());
    bytes
}

/// An entry of the key 0 with right lengths and checksums over whatever its header says.
pub(crate) fn sealed(header: &[u8], payload: &[u8]) -> Vec<u8> {
    let mut bytes = MAGIC.to_vec();
    bytes.extend_from_slice(&1_u32.to_le_bytes());
    bytes.extend_from_slice(&(header.len() as u32).to_le_bytes());
    bytes.extend_from_slice(&(payload.len() as u64).to_le_bytes());
    bytes.extend_from_slice(&key(0));
    bytes.extend_from_slice(&[0; 8]);
    bytes.extend_from_slice(blake3::hash(payload).as_bytes());
    let mut hasher = blake3::Hasher::new();
    hasher.update(&bytes).update(header);
    bytes.extend_from_slice(hasher.finalize().as_bytes());
    assert_eq!(bytes.len(), PREFIX_BYTES);
    bytes.extend_from_slice(header);
    bytes.extend_from_slice(payload);
    bytes
}

/// One way of damaging bytes.
#[derive(Clone, Debug)]
pub(crate) enum Damage {
    Set(usize, u8),
    Cut(usize),
    Remove(usize, usize),
    Repeat(usize, usize),
    Insert(usize, Vec<u8>),
    Length(usize, u64),
}

pub(crate) fn damage() -> impl Strategy<Value = Damage> {
    let at = any::<usize>();
    prop_oneof![
        4 => (at, any::<u8>()).prop_map(|(at, byte)| Damage::Set(at, byte)),
        1 => at.prop_map(Damage::Cut),
        1 => (at, 1..300_usize).prop_map(|(at, count)| Damage::Remove(at, count)),
        1 => (at, 1..300_usize).prop_map(|(at, count)| Damage::Repeat(at, count)),
        1 => (at, proptest::collection::vec(any::<u8>(), 1..40))
            .prop_map(|(at, bytes)| Damage::Insert(at, bytes)),
        2 => (at, any::<u64>()).prop_map(|(at, length)| Damage::Length(at, length)),
    ]
}

impl Damage {
    /// Damages bytes; a place beyond the end wraps around.
    pub(crate) fn apply(&self, bytes: &mut Vec<u8>) {
        let place = |at: usize, bytes: &Vec<u8>| at % (bytes.len() + 1);
        match *self {
            Self::Set(at, byte) => {
                let at = place(at, bytes);
                if let Some(old) = bytes.get_mut(at) {
                    *old = byte;
                }
            }
            Self::Cut(at) => bytes.truncate(place(at, bytes)),
            Self::Remove(at, count) => {
                let at = place(at, bytes);
                bytes.drain(at..(at + count).min(bytes.len()));
            }
            Self::Repeat(at, count) => {
                let at = place(at, bytes);
                let part = bytes[at..(at + count).min(bytes.len())].to_vec();
                bytes.splice(at..at, part);
            }
            Self::Insert(at, ref new) => {
                let at = place(at, bytes);
                bytes.splice(at..at, new.iter().copied());
            }
            Self::Length(at, length) => {
                let at = place(at, bytes);
                for (old, new) in bytes[at..].iter_mut().zip(length.to_le_bytes()) {
                    *old = new;
                }
            }
        }
    }
}
