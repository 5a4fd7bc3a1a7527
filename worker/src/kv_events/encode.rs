//! Events as msgpack, in the shapes of vLLM 0.33.

use piecewise_runtime::memory::{KvEvent, PageHash};
use rmp::encode::{
    write_array_len, write_f64, write_map_len, write_nil, write_str, write_u32, write_u64,
};

/// A batch of one event: when, what, and of which rank.
// Writing to a vector does not fail.
#[expect(unused_must_use, reason = "a vector takes every byte")]
pub(super) fn batch(seconds: f64, event: &KvEvent, rank: u16) -> Vec<u8> {
    let mut to = Vec::new();
    write_array_len(&mut to, 3);
    write_f64(&mut to, seconds);
    write_array_len(&mut to, 1);
    match event {
        KvEvent::BlockStored { hashes, parent, ids, block_size, salt } => {
            begin(&mut to, "BlockStored", 8 + u32::from(salt.is_some()));
            write_hashes(&mut to, hashes);
            write_str(&mut to, "parent_block_hash");
            match parent {
                Some(parent) => write_u64(&mut to, number(parent)).unwrap_or_default(),
                None => write_nil(&mut to).unwrap_or_default(),
            }
            write_str(&mut to, "token_ids");
            write_array_len(&mut to, ids.len() as u32);
            ids.iter().for_each(|&id| drop(write_u32(&mut to, id)));
            write_str(&mut to, "block_size");
            write_u64(&mut to, *block_size);
            nothing(&mut to, "lora_id");
            write_str(&mut to, "medium");
            write_str(&mut to, "GPU");
            nothing(&mut to, "lora_name");
            if let Some(salt) = salt {
                // What each block's hash has beside ids: the salt the first, and the others nothing.
                write_str(&mut to, "extra_keys");
                write_array_len(&mut to, hashes.len() as u32);
                write_array_len(&mut to, 1);
                write_str(&mut to, salt);
                hashes.iter().skip(1).for_each(|_| drop(write_nil(&mut to)));
            }
        }
        KvEvent::BlockRemoved { hashes } => {
            begin(&mut to, "BlockRemoved", 3);
            write_hashes(&mut to, hashes);
            write_str(&mut to, "medium");
            write_str(&mut to, "GPU");
        }
        KvEvent::AllBlocksCleared => begin(&mut to, "AllBlocksCleared", 1),
    }
    write_u32(&mut to, u32::from(rank));
    to
}

#[expect(unused_must_use, reason = "a vector takes every byte")]
fn begin(to: &mut Vec<u8>, name: &str, fields: u32) {
    write_map_len(to, fields);
    write_str(to, "type");
    write_str(to, name);
}

#[expect(unused_must_use, reason = "a vector takes every byte")]
fn write_hashes(to: &mut Vec<u8>, hashes: &[PageHash]) {
    write_str(to, "block_hashes");
    write_array_len(to, hashes.len() as u32);
    hashes.iter().for_each(|hash| drop(write_u64(to, number(hash))));
}

#[expect(unused_must_use, reason = "a vector takes every byte")]
fn nothing(to: &mut Vec<u8>, name: &str) {
    write_str(to, name);
    write_nil(to);
}

/// What routers know a block by: the last 64 bits of its hash, as vLLM's own default is.
fn number(hash: &PageHash) -> u64 {
    hash.0[24..].iter().fold(0, |number, &byte| number << 8 | u64::from(byte))
}
