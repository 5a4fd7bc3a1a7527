//! Safetensors files made by hand, well-formed or not.

use std::path::Path;

/// A file whose header is `header` and whose data is `data`.
pub(crate) fn file(header: &str, data: &[u8]) -> Vec<u8> {
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.as_bytes());
    bytes.extend(data);
    bytes
}

/// The description of one tensor in a header.
pub(crate) fn described(name: &str, dtype: &str, shape: &[u64], begin: u64, end: u64) -> String {
    format!(r#""{name}":{{"dtype":"{dtype}","shape":{shape:?},"data_offsets":[{begin},{end}]}}"#)
}

/// A well-formed file of three tensors, one of them without elements.
pub(crate) fn valid() -> Vec<u8> {
    let header = [
        r#""__metadata__":{"format":"pt"}"#.to_owned(),
        described("a.weight", "F32", &[2, 3], 0, 24),
        described("b", "BF16", &[4], 24, 32),
        described("empty", "I64", &[0, 7], 32, 32),
        described("scalar", "U8", &[], 32, 33),
    ];
    file(&format!("{{{}}}", header.join(",")), &[7; 33])
}

/// A folder whose `model.safetensors` is `contents`.
pub(crate) fn folder_with(contents: &[u8]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), "model.safetensors", contents);
    folder
}

/// Writes a file of `folder`.
pub(crate) fn write(folder: &Path, name: &str, contents: &[u8]) {
    std::fs::write(folder.join(name), contents).unwrap();
}
