//! The header of a safetensors file: which tensor lies where.
//!
//! The header is read in one pass that keeps nothing but the tensors' descriptions, because the
//! `safetensors` crate's parser needs more than ten times a header's length to read or refuse it,
//! does not say which tensor is wrong, and lets a name occur twice. Tests hold the two against each
//! other: what that crate refuses is refused here.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::path::Path;

use serde::Deserialize;
use serde::de::{self, Deserializer, MapAccess, SeqAccess, Visitor};

use super::error::{CheckpointError, shortened};
use crate::models::dtype_names;
use piecewise_ir::dtype::DType;

/// Bytes of the number that begins a file: the length of the header.
const PREFIX: u64 = 8;
/// Bytes that a header may have: the bound of the format's reference implementation.
const LONGEST_HEADER: u64 = 100_000_000;
/// Dimensions that a tensor may have.
const MOST_DIMENSIONS: usize = 8;

/// One tensor of a file.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct TensorEntry {
    pub(super) dtype: DType,
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
) -> Result<BTreeMap<String, TensorEntry>, CheckpointError> {
    let available = contents.len() as u64;
    let truncated =
        |needed| CheckpointError::Truncated { file: file.to_path_buf(), needed, available };
    let Some((prefix, rest)) = contents.split_first_chunk() else {
        return Err(truncated(PREFIX));
    };
    let length = u64::from_le_bytes(*prefix);
    if length > LONGEST_HEADER {
        let (file, limit) = (file.to_path_buf(), LONGEST_HEADER);
        return Err(CheckpointError::HeaderTooLarge { file, length, limit });
    }
    let needed = PREFIX + length;
    let Some((header, data)) = rest.split_at_checked(length as usize) else {
        return Err(truncated(needed));
    };

    let invalid = |reason: String| CheckpointError::Header { file: file.to_path_buf(), reason };
    let text = std::str::from_utf8(header).map_err(|error| invalid(error.to_string()))?;
    let data = Range { start: needed as usize, end: needed as usize + data.len() };
    let mut scan = Scan { data: data.clone(), file, refused: None };
    let mut json = serde_json::Deserializer::from_str(text);
    let parsed = json.deserialize_map(&mut scan).and_then(|entries| json.end().map(|()| entries));
    match (scan.refused, parsed) {
        (Some(error), _) => Err(error),
        (None, Err(error)) => Err(invalid(error.to_string())),
        (None, Ok(entries)) => {
            check_coverage(&entries, data, file)?;
            Ok(entries)
        }
    }
}

/// Checks that the tensors lie one after the other and fill `data`, the file after its header.
fn check_coverage(
    entries: &BTreeMap<String, TensorEntry>,
    data: Range<usize>,
    file: &Path,
) -> Result<(), CheckpointError> {
    let mut in_order: Vec<_> = entries.iter().collect();
    in_order.sort_unstable_by_key(|(_, entry)| (entry.bytes.start, entry.bytes.end));
    let mut end = data.start;
    for (name, entry) in in_order {
        if entry.bytes.start != end {
            let fault = if entry.bytes.start < end { "overlaps" } else { "leaves a gap after" };
            let [from, to, end] =
                [entry.bytes.start, entry.bytes.end, end].map(|at| at - data.start);
            let reason = format!(
                "data_offsets [{from}, {to}]: it {fault} the tensor before it, which ends at offset \
                 {end}"
            );
            return Err(refused(file, name, reason));
        }
        end = entry.bytes.end;
    }
    if end != data.end {
        let reason = format!(
            "the file is not fully covered: the tensors end at offset {}, but {} bytes of data \
             follow the header",
            end - data.start,
            data.len()
        );
        return Err(CheckpointError::Header { file: file.to_path_buf(), reason });
    }
    Ok(())
}

fn refused(file: &Path, tensor: &str, reason: String) -> CheckpointError {
    CheckpointError::Tensor { file: file.to_path_buf(), tensor: shortened(tensor), reason }
}

/// Visits the root object of a header.
struct Scan<'a> {
    /// Where the tensors' bytes lie in the file.
    data: Range<usize>,
    file: &'a Path,
    /// The first tensor that is refused, which ends the visit.
    refused: Option<CheckpointError>,
}

impl<'de> Visitor<'de> for &mut Scan<'_> {
    type Value = BTreeMap<String, TensorEntry>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of tensors")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut entries = BTreeMap::new();
        let mut has_notes = false;
        while let Some(Text(name)) = map.next_key::<Text<'de>>()? {
            if name == NOTES {
                if std::mem::replace(&mut has_notes, true) {
                    return Err(de::Error::custom(format!("`{NOTES}` occurs twice")));
                }
                map.next_value::<Option<Notes>>()?;
                continue;
            }
            let described = map.next_value::<Described<'de>>().map_err(|error| {
                de::Error::custom(format!("tensor `{}`: {error}", shortened(&name)))
            })?;
            let entry = described.entry(&name, &self.data, self.file).and_then(|entry| {
                if entries.contains_key(name.as_ref()) {
                    let reason = "described twice in the header".to_owned();
                    return Err(refused(self.file, &name, reason));
                }
                Ok(entry)
            });
            match entry {
                Ok(entry) => entries.insert(name.into_owned(), entry),
                Err(error) => {
                    self.refused = Some(error);
                    return Err(de::Error::custom("a tensor is refused"));
                }
            };
        }
        Ok(entries)
    }
}

/// The key of the one field of a header that is no tensor.
const NOTES: &str = "__metadata__";

/// The value of `__metadata__`: an object of strings, which nothing here reads.
struct Notes;

impl<'de> Deserialize<'de> for Notes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(Notes)
    }
}

impl<'de> Visitor<'de> for Notes {
    type Value = Self;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of strings")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self, A::Error> {
        while map.next_entry::<Text<'de>, Text<'de>>()?.is_some() {}
        Ok(Self)
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
    /// Checks a tensor for itself against `data`, where all tensors' bytes lie in the file.
    fn entry(
        &self,
        name: &str,
        data: &Range<usize>,
        file: &Path,
    ) -> Result<TensorEntry, CheckpointError> {
        let refuse = |reason| Err(refused(file, name, reason));
        let Some(dtype) = dtype_names::from_safetensors(&self.dtype) else {
            let (file, tensor) = (file.to_path_buf(), shortened(name));
            return Err(CheckpointError::UnsupportedDtype {
                file,
                tensor,
                dtype: shortened(&self.dtype),
            });
        };
        let shape = &self.shape.dimensions[..self.shape.rank.min(MOST_DIMENSIONS)];
        if self.shape.rank > MOST_DIMENSIONS {
            return refuse(format!("has {} dimensions, above {MOST_DIMENSIONS}", self.shape.rank));
        }
        let size =
            shape.iter().try_fold(dtype.size(), |size, dimension| size.checked_mul(*dimension));
        let Some(size) = size else {
            return refuse(format!("the size of {dtype}{shape:?} in bytes overflows"));
        };
        let (begin, end) = self.data_offsets;
        if begin > end {
            return refuse(format!("data_offsets [{begin}, {end}] end before they begin"));
        }
        if end > data.len() {
            return refuse(format!(
                "data_offsets [{begin}, {end}] end after the file's {} bytes of data; the file is \
                 truncated or not the one that the header was written for",
                data.len()
            ));
        }
        if end - begin != size {
            return refuse(format!(
                "data_offsets [{begin}, {end}] span {} bytes, but {dtype}{shape:?} has {size}",
                end - begin
            ));
        }
        let bytes = data.start + begin..data.start + end;
        Ok(TensorEntry { dtype, shape: shape.into(), bytes })
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
