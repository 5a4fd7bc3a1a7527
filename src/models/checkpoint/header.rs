//! The header of a safetensors file: which tensor lies where.
//!
//! The `safetensors` crate's parser has the last word on every file. Before it, a scan of the same
//! bytes that stores nothing but names refuses what the crate would accept (a name twice, a type
//! that we cannot declare), what it would need much memory to refuse (a shape of a million
//! dimensions), and what it would refuse without naming the tensor.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::fmt;
use std::ops::Range;
use std::path::Path;

use safetensors::SafeTensors;
use serde::Deserialize;
use serde::de::{self, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

use super::TensorDtype;
use super::error::{CheckpointError, shortened};

/// Bytes of the number that begins a file: the length of the header.
const PREFIX: u64 = 8;
/// Bytes that a header may have: the bound of the format's reference implementation.
const LONGEST_HEADER: u64 = 100_000_000;
/// Dimensions that a tensor may have.
const MOST_DIMENSIONS: usize = 8;

/// One tensor of a file.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct TensorEntry {
    pub(super) dtype: TensorDtype,
    pub(super) shape: Box<[usize]>,
    /// Where its bytes lie in the file.
    pub(super) bytes: Range<usize>,
}

/// Reads and validates the header of `contents`, the whole file at `file`.
///
/// On success the tensors' bytes lie within the file, do not overlap, leave no gap, and each has as
/// many as its shape and type say. Memory used on the way is bounded by a small multiple of the
/// header's length, which is checked against the file's before anything is read.
pub(super) fn read_header(
    contents: &[u8],
    file: &Path,
) -> Result<Vec<(String, TensorEntry)>, CheckpointError> {
    let available = contents.len() as u64;
    let truncated =
        |needed| CheckpointError::Truncated { file: file.to_path_buf(), needed, available };
    let Some((prefix, rest)) = contents.split_first_chunk() else {
        return Err(truncated(PREFIX));
    };
    let length = u64::from_le_bytes(*prefix);
    if length > LONGEST_HEADER {
        return Err(CheckpointError::HeaderTooLarge {
            file: file.to_path_buf(),
            length,
            limit: LONGEST_HEADER,
        });
    }
    let needed = PREFIX + length;
    let Some((header, data)) = rest.split_at_checked(length as usize) else {
        return Err(truncated(needed));
    };

    let invalid = |reason: String| CheckpointError::Header { file: file.to_path_buf(), reason };
    let text = std::str::from_utf8(header).map_err(|error| invalid(error.to_string()))?;
    scan(text, data.len(), file)?;

    let (_, metadata) =
        SafeTensors::read_metadata(contents).map_err(|error| invalid(error.to_string()))?;
    let start = needed as usize;
    let names = metadata.offset_keys();
    let mut entries = Vec::with_capacity(names.len());
    for name in names {
        let Some(info) = metadata.info(&name) else { continue };
        let Some(dtype) = TensorDtype::from_safetensors(&info.dtype.to_string()) else {
            return Err(unsupported(file, &name, &info.dtype.to_string()));
        };
        let bytes = start + info.data_offsets.0..start + info.data_offsets.1;
        entries.push((name, TensorEntry { dtype, shape: info.shape.as_slice().into(), bytes }));
    }
    Ok(entries)
}

fn unsupported(file: &Path, tensor: &str, dtype: &str) -> CheckpointError {
    CheckpointError::UnsupportedDtype {
        file: file.to_path_buf(),
        tensor: shortened(tensor),
        dtype: shortened(dtype),
    }
}

/// Checks each tensor of a header for itself against `data_len`, the bytes after the header.
fn scan(text: &str, data_len: usize, file: &Path) -> Result<(), CheckpointError> {
    let mut scan = Scan { data_len, file, refused: None };
    let mut json = serde_json::Deserializer::from_str(text);
    let parsed = json.deserialize_map(&mut scan).and_then(|()| json.end());
    match (scan.refused, parsed) {
        (Some(error), _) => Err(error),
        (None, Ok(())) => Ok(()),
        (None, Err(error)) => {
            Err(CheckpointError::Header { file: file.to_path_buf(), reason: error.to_string() })
        }
    }
}

/// Visits the root object of a header.
struct Scan<'a> {
    data_len: usize,
    file: &'a Path,
    /// The first tensor that is refused, which ends the visit.
    refused: Option<CheckpointError>,
}

impl<'de> Visitor<'de> for &mut Scan<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of tensors")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let mut names = BTreeSet::new();
        while let Some(name) = map.next_key::<Text<'de>>()? {
            if name.0 == "__metadata__" {
                map.next_value::<IgnoredAny>()?;
            } else {
                let described = map.next_value::<Described<'de>>().map_err(|error| {
                    de::Error::custom(format!("tensor `{}`: {error}", shortened(&name.0)))
                })?;
                if let Err(error) = described.check(&name.0, self.data_len, self.file) {
                    self.refused = Some(error);
                    return Err(de::Error::custom("a tensor is refused"));
                }
            }
            if names.contains(&name.0) {
                self.refused = Some(CheckpointError::Tensor {
                    file: self.file.to_path_buf(),
                    tensor: shortened(&name.0),
                    reason: "described twice in the header".to_owned(),
                });
                return Err(de::Error::custom("a tensor is refused"));
            }
            names.insert(name.0);
        }
        Ok(())
    }
}

/// A string that borrows from the header where it has no escapes.
#[derive(Deserialize)]
struct Text<'h>(#[serde(borrow)] Cow<'h, str>);

/// A tensor as the header describes it.
#[derive(Deserialize)]
struct Described<'h> {
    #[serde(borrow)]
    dtype: Cow<'h, str>,
    shape: Shape,
    data_offsets: (usize, usize),
}

impl Described<'_> {
    fn check(&self, name: &str, data_len: usize, file: &Path) -> Result<(), CheckpointError> {
        let refuse = |reason: String| {
            Err(CheckpointError::Tensor {
                file: file.to_path_buf(),
                tensor: shortened(name),
                reason,
            })
        };
        let Some(dtype) = TensorDtype::from_safetensors(&self.dtype) else {
            return Err(unsupported(file, name, &self.dtype));
        };
        let shape = &self.shape.dimensions[..self.shape.rank.min(MOST_DIMENSIONS)];
        if self.shape.rank > MOST_DIMENSIONS {
            return refuse(format!("has {} dimensions, above {MOST_DIMENSIONS}", self.shape.rank));
        }
        let size = shape
            .iter()
            .try_fold(dtype.size_in_bytes(), |size, dimension| size.checked_mul(*dimension));
        let Some(size) = size else {
            return refuse(format!("the size of {dtype}{shape:?} in bytes overflows"));
        };
        let (begin, end) = self.data_offsets;
        if begin > end {
            return refuse(format!("data_offsets [{begin}, {end}] end before they begin"));
        }
        if end > data_len {
            return refuse(format!(
                "data_offsets [{begin}, {end}] end after the file's {data_len} bytes of data; the \
                 file is truncated or not the one that the header was written for"
            ));
        }
        if end - begin != size {
            return refuse(format!(
                "data_offsets [{begin}, {end}] span {} bytes, but {dtype}{shape:?} has {size}",
                end - begin
            ));
        }
        Ok(())
    }
}

/// A list of dimensions, of which only the first few are kept.
struct Shape {
    rank: usize,
    dimensions: [usize; MOST_DIMENSIONS],
}

impl<'de> Deserialize<'de> for Shape {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Dimensions;
        impl<'de> Visitor<'de> for Dimensions {
            type Value = Shape;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of dimensions")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Shape, A::Error> {
                let mut shape = Shape { rank: 0, dimensions: [0; MOST_DIMENSIONS] };
                while let Some(dimension) = seq.next_element()? {
                    if let Some(kept) = shape.dimensions.get_mut(shape.rank) {
                        *kept = dimension;
                    }
                    shape.rank += 1;
                }
                Ok(shape)
            }
        }
        deserializer.deserialize_seq(Dimensions)
    }
}
