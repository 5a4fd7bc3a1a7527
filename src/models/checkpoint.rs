//! The weights of a Hugging Face model folder, memory-mapped.
//!
//! A folder holds `model.safetensors`, or shards and `model.safetensors.index.json`. Opening reads
//! and checks headers only; nothing is computed from the bytes of a tensor, which are read from
//! disk when somebody looks at them.

mod error;
mod header;
mod index;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use piecewise_backend::MappedFile;

pub use self::error::CheckpointError;
use self::header::{TensorEntry, read_header};
use self::index::read_index;
use super::files::{ReadError, read_bounded};
use piecewise_ir::dtype::DType;

const SINGLE_FILE: &str = "model.safetensors";
const INDEX_FILE: &str = "model.safetensors.index.json";
/// Bytes that an index may have; the largest models have about one million tensors.
const LARGEST_INDEX: u64 = 256 << 20;

/// The tensors of a model folder, by name.
///
/// The files are mapped: see [`MappedFile`] for what must not happen to them meanwhile.
#[derive(Debug)]
pub struct Checkpoint {
    folder: PathBuf,
    shards: Vec<Shard>,
    tensors: BTreeMap<String, Placed>,
}

#[derive(Debug)]
struct Shard {
    file: PathBuf,
    contents: MappedFile,
}

#[derive(Debug)]
struct Placed {
    shard: usize,
    entry: TensorEntry,
}

/// A tensor of a checkpoint, as it lies in the mapped file.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TensorView<'a> {
    /// The type that the elements are stored as.
    pub dtype: DType,
    /// Dimensions, outermost first; empty for a scalar.
    pub shape: &'a [usize],
    /// The elements, little-endian and in row-major order. They begin at any byte of the mapped
    /// file, so they need not be aligned to their size.
    pub bytes: &'a [u8],
}

impl Checkpoint {
    /// Opens the weights in `folder`: `model.safetensors`, or else the files that
    /// `model.safetensors.index.json` names.
    ///
    /// # Errors
    /// A [`CheckpointError`] if there are no weights, or if any header or the index is malformed,
    /// contradicts the length of its file or another file, or describes a tensor of an unsupported
    /// type. Memory used on the way is bounded by a small multiple of the headers' and the index's
    /// true length.
    pub fn open(folder: &Path) -> Result<Self, CheckpointError> {
        let mut checkpoint =
            Self { folder: folder.to_path_buf(), shards: Vec::new(), tensors: BTreeMap::new() };
        let single = folder.join(SINGLE_FILE);
        let index = folder.join(INDEX_FILE);
        if single.exists() {
            checkpoint.add_shard(single, |file, source| CheckpointError::Io { file, source })?;
        } else if index.exists() {
            checkpoint.add_shards_of(&index)?;
        } else {
            return Err(CheckpointError::NoWeights { folder: folder.to_path_buf() });
        }
        Ok(checkpoint)
    }

    /// The folder that was opened.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Names of all tensors, in alphabetical order.
    pub fn names(&self) -> impl ExactSizeIterator<Item = &str> {
        self.tensors.keys().map(String::as_str)
    }

    /// The tensor of that name.
    pub fn tensor(&self, name: &str) -> Option<TensorView<'_>> {
        let Placed { shard, entry } = self.tensors.get(name)?;
        let bytes = &self.shards[*shard].contents[entry.bytes.clone()];
        Some(TensorView { dtype: entry.dtype, shape: &entry.shape, bytes })
    }

    /// The element type of the tensor of that name.
    pub fn dtype_of(&self, name: &str) -> Option<DType> {
        self.tensors.get(name).map(|placed| placed.entry.dtype)
    }

    /// What each tensor is stored as, by its name, for as long as anyone asks.
    pub(crate) fn dtypes(&self) -> impl Fn(&str) -> Option<DType> + use<> + 'static {
        let stored = self.names().map(|name| (name.to_owned(), self.dtype_of(name)));
        let stored: BTreeMap<String, Option<DType>> = stored.collect();
        move |name| stored.get(name).copied().flatten()
    }

    /// The file that holds the tensor of that name.
    pub fn file_of(&self, name: &str) -> Option<&Path> {
        self.tensors.get(name).map(|placed| self.shards[placed.shard].file.as_path())
    }

    /// The weight of that name, which must be of floats and have this shape, but for axes of extent 1.
    ///
    /// # Errors
    /// [`CheckpointError::MissingTensor`], [`CheckpointError::Shape`] or
    /// [`CheckpointError::NotFloat`].
    pub fn weight(&self, name: &str, shape: &[usize]) -> Result<TensorView<'_>, CheckpointError> {
        let view = self.shaped(name, shape)?;
        if !view.dtype.is_float() {
            return Err(CheckpointError::NotFloat {
                file: self.file_of(name).unwrap_or(&self.folder).to_path_buf(),
                tensor: name.to_owned(),
                dtype: view.dtype,
            });
        }
        Ok(view)
    }

    /// The tensor of that name, which must have this shape, but for axes of extent 1: files keep one
    /// scale as `[]` and as `[1]`.
    ///
    /// # Errors
    /// [`CheckpointError::MissingTensor`] or [`CheckpointError::Shape`].
    pub(super) fn shaped(
        &self,
        name: &str,
        shape: &[usize],
    ) -> Result<TensorView<'_>, CheckpointError> {
        let (Some(view), Some(file)) = (self.tensor(name), self.file_of(name)) else {
            return Err(CheckpointError::MissingTensor {
                folder: self.folder.clone(),
                tensor: name.to_owned(),
            });
        };
        let wide = |shape: &[usize]| Vec::from_iter(shape.iter().copied().filter(|n| *n != 1));
        if view.shape != shape && wide(view.shape) != wide(shape) {
            return Err(CheckpointError::Shape {
                file: file.to_path_buf(),
                tensor: name.to_owned(),
                found: view.shape.to_vec(),
                expected: shape.to_vec(),
            });
        }
        Ok(view)
    }

    fn add_shards_of(&mut self, index_file: &Path) -> Result<(), CheckpointError> {
        let text = read_bounded(index_file, LARGEST_INDEX).map_err(|error| match error {
            ReadError::Io(source) => CheckpointError::Io { file: index_file.to_path_buf(), source },
            ReadError::TooLarge { bytes } => CheckpointError::Index {
                file: index_file.to_path_buf(),
                reason: format!("{bytes} bytes, but an index has at most {LARGEST_INDEX}"),
            },
        })?;
        for (name, listed) in read_index(&text, index_file)? {
            let file = self.folder.join(name);
            self.add_shard(file.clone(), |file, source| CheckpointError::MissingShard {
                file,
                index: index_file.to_path_buf(),
                tensor: listed[0].clone(),
                source,
            })?;
            let shard = self.shards.len() - 1;
            let absent = listed
                .into_iter()
                .find(|tensor| self.tensors.get(tensor).is_none_or(|at| at.shard != shard));
            if let Some(tensor) = absent {
                return Err(CheckpointError::NotInShard {
                    file,
                    index: index_file.to_path_buf(),
                    tensor,
                });
            }
        }
        Ok(())
    }

    fn add_shard(
        &mut self,
        file: PathBuf,
        unopened: impl FnOnce(PathBuf, std::io::Error) -> CheckpointError,
    ) -> Result<(), CheckpointError> {
        let contents = match MappedFile::open(&file) {
            Ok(contents) => contents,
            Err(source) => return Err(unopened(file, source)),
        };
        let entries = read_header(&contents, &file)?;
        let shard = self.shards.len();
        for (name, entry) in entries {
            if let Some(earlier) = self.tensors.get(&name) {
                let first = self.shards[earlier.shard].file.clone();
                return Err(CheckpointError::DuplicateTensor { tensor: name, first, second: file });
            }
            self.tensors.insert(name, Placed { shard, entry });
        }
        self.shards.push(Shard { file, contents });
        Ok(())
    }
}
