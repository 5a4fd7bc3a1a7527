//! The tiny model with weights by which its activations leave the range of f16, and of f16 alone.

use serde_json::Value;
use std::path::Path;

/// A folder of the model, made from the one in `tiny`: what goes into one down projection is 2^16 times
/// as large, and what comes out of it as it was, so that in bf16 and f32 every token is the same.
pub(crate) fn overflowing_model(tiny: &Path) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for name in ["config.json", "generation_config.json", "tokenizer.json"] {
        std::fs::copy(tiny.join(name), folder.path().join(name)).unwrap();
    }
    let mut bytes = std::fs::read(tiny.join("model.safetensors")).unwrap();
    let (length, rest) = bytes.split_first_chunk_mut::<8>().unwrap();
    let (header, data) = rest.split_at_mut(u64::from_le_bytes(*length) as usize);
    let header: Value = serde_json::from_slice(header).unwrap();
    for (name, factor) in [("up_proj", 65536.0), ("down_proj", 1.0 / 65536.0)] {
        let tensor = &header[format!("model.layers.2.mlp.{name}.weight")];
        assert_eq!(tensor["dtype"], "BF16");
        let place = |i: usize| tensor["data_offsets"][i].as_u64().unwrap() as usize;
        for number in data[place(0)..place(1)].as_chunks_mut::<2>().0 {
            let scaled = f32::from_bits(u32::from(u16::from_le_bytes(*number)) << 16) * factor;
            *number = ((scaled.to_bits() >> 16) as u16).to_le_bytes();
        }
    }
    std::fs::write(folder.path().join("model.safetensors"), bytes).unwrap();
    folder
}
