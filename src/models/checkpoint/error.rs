//! What can be wrong with the weights of a model folder.

use std::path::PathBuf;

use piecewise_ir::dtype::DType;

/// Why weights cannot be read. Each variant names the file and, where there is one, the tensor.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "a field is what the message calls it")]
pub enum CheckpointError {
    /// The folder holds neither `model.safetensors` nor `model.safetensors.index.json`.
    #[error(
        "{}: holds neither model.safetensors nor model.safetensors.index.json; \
         other weight formats are not read",
        folder.display()
    )]
    NoWeights { folder: PathBuf },
    /// A file cannot be opened or mapped.
    #[error("{}: {source}", file.display())]
    Io {
        file: PathBuf,
        /// What the operating system said.
        source: std::io::Error,
    },
    /// A file ends before the header that it announces.
    #[error(
        "{}: truncated: the header would end at byte {needed}, but the file has {available}",
        file.display()
    )]
    Truncated {
        file: PathBuf,
        /// Length that the file must have at least.
        needed: u64,
        available: u64,
    },
    /// The header says that it is longer than any header.
    #[error(
        "{}: the header would have {length} bytes, above {limit}: this is no safetensors file",
        file.display()
    )]
    HeaderTooLarge {
        file: PathBuf,
        /// The length of the header, as its first eight bytes state it.
        length: u64,
        /// The largest length that is read.
        limit: u64,
    },
    /// The header is not the JSON that the format demands.
    #[error("{}: invalid header: {reason}", file.display())]
    Header {
        file: PathBuf,
        /// What is wrong and where in the header.
        reason: String,
    },
    /// The description of one tensor contradicts itself or the file.
    #[error("{}: tensor `{tensor}`: {reason}", file.display())]
    Tensor {
        file: PathBuf,
        tensor: String,
        /// What is wrong with it.
        reason: String,
    },
    /// A tensor has elements of a type that is not supported.
    #[error(
        "{}: tensor `{tensor}` has dtype {dtype:?}; supported are F32, F16, BF16, F8_E4M3, I32, I64, \
         U8 and BOOL",
        file.display()
    )]
    UnsupportedDtype {
        file: PathBuf,
        tensor: String,
        /// The type's name in the header, shortened.
        dtype: String,
    },
    /// Two files hold a tensor of the same name.
    #[error(
        "tensor `{tensor}` is both in {} and in {}: remove one of the files or save again",
        first.display(),
        second.display()
    )]
    DuplicateTensor { tensor: String, first: PathBuf, second: PathBuf },
    /// The index of a sharded checkpoint is not the JSON that it must be.
    #[error("{}: invalid index: {reason}", file.display())]
    Index {
        file: PathBuf,
        /// What is wrong and where.
        reason: String,
    },
    /// The index puts a tensor into something that is no file beside it.
    #[error(
        "{}: tensor `{tensor}` is said to be in {shard:?}, which is not the name of a file in the \
         folder",
        file.display()
    )]
    ShardPath {
        file: PathBuf,
        tensor: String,
        /// The path in the index, shortened.
        shard: String,
    },
    /// A file that the index names cannot be opened.
    #[error("{}: cannot be opened ({source}), but {} puts tensor `{tensor}` there", file.display(), index.display())]
    MissingShard {
        file: PathBuf,
        index: PathBuf,
        /// One tensor that should be there.
        tensor: String,
        /// What the operating system said.
        source: std::io::Error,
    },
    /// A file does not hold a tensor that the index puts there.
    #[error("{}: has no tensor `{tensor}`, but {} puts it there", file.display(), index.display())]
    NotInShard { file: PathBuf, index: PathBuf, tensor: String },
    /// The checkpoint has no tensor of a name that the model needs.
    #[error("{}: no tensor `{tensor}`; the checkpoint does not fit its config.json", folder.display())]
    MissingTensor { folder: PathBuf, tensor: String },
    /// The checkpoint lacks several tensors that the model needs.
    #[error(
        "{}: no tensor {first}; {missing} tensors are missing, so that the checkpoint does not fit its \
         config.json",
        folder.display()
    )]
    MissingTensors {
        folder: PathBuf,
        /// How many tensors of the model there are not.
        missing: usize,
        /// The names of the first few.
        first: String,
    },
    /// A tensor has another shape than the model needs.
    #[error(
        "{}: tensor `{tensor}` has shape {found:?}, but config.json asks for {expected:?}",
        file.display()
    )]
    Shape {
        file: PathBuf,
        tensor: String,
        /// The shape in the file.
        found: Vec<usize>,
        /// The shape that the model needs.
        expected: Vec<usize>,
    },
    /// A weight is not stored as floats.
    #[error("{}: weight `{tensor}` is stored as {dtype}, not as f32, f16 or bf16", file.display())]
    NotFloat {
        file: PathBuf,
        tensor: String,
        /// The type that it has.
        dtype: DType,
    },
}

/// A name from a file as an error shows it: whole if short, else its beginning.
pub(super) fn shortened(text: &str) -> String {
    const LONGEST: usize = 200;
    match text.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text.to_owned(),
    }
}
