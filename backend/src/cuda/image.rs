//! Kernel images of CUDA: what a launch runs, as bytes without addresses or names of weights.
//!
//! Grids and numbers that differ from size to size are functions of the sizes, so that sizes share
//! images.

use super::code::Code;
use super::cubin::cubin_kernels;
use super::nvrtc::Arch;
use super::occupancy::resources;
use crate::artifact::Digest;
use crate::compiler::ImageListing;
use crate::matmul::Matmul;
use piecewise_ir::custom::Attrs;
use piecewise_ir::types::TensorType;
use piecewise_kernels::op::cuda::LaunchRecipe;
use serde::{Deserialize, Serialize};
use serde_json::json;

/// Changes when the meaning of image bytes changes.
pub(super) const IMAGE_VERSION: u32 = 4;

/// The function of the library that multiplies.
pub(super) const LIBRARY_MATMUL: &str = "cublasLtMatmul";

/// What a launch runs: a kernel, a product of cuBLASLt, or the host function of a custom op.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum CudaImage {
    /// Compiled code with its entry and geometry.
    Kernel(KernelImage),
    /// A matrix product by the library. The arguments are the left and right operand, the result,
    /// and scratch as workspace.
    Matmul(Box<Matmul>),
    /// The host function of a custom op, found by name when the artifact is bound. The arguments
    /// are operands, results, and scratch if there is any.
    Host(HostImage),
}

/// A compiled kernel and how it is launched.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct KernelImage {
    /// What it was compiled for; it runs there only.
    pub arch: Arch,
    /// The machine code and its provenance.
    pub code: Code,
    /// How it is launched, and its source.
    pub recipe: LaunchRecipe,
}

/// A custom op that runs by its host function.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct HostImage {
    /// The op's name, by which the function is found.
    pub name: String,
    /// What the op was called with besides its operands.
    pub attrs: Attrs,
    /// Types of the operands, then of the results.
    pub types: Vec<TensorType>,
}

/// The recipe of a kernel that is compiled with the lines of its source, under a name of its own.
pub(super) fn with_lines(mut recipe: LaunchRecipe) -> LaunchRecipe {
    let digest = Digest::of(recipe.source.as_bytes()).to_string();
    let line = format!("{LINE}{}-{}.cu\"\n", recipe.entry, &digest[..12]);
    recipe.source.insert_str(0, &line);
    recipe.options.push("-lineinfo".to_owned());
    recipe
}

/// How a source begins that says what its file is called.
const LINE: &str = "#line 2 \"";

/// The file that the lines of a source are of, where it says so.
fn source_file(source: &str) -> Option<String> {
    let (name, _) = source.strip_prefix(LINE)?.split_once('"')?;
    Some(name.to_owned())
}

fn pretty(value: &impl Serialize) -> String {
    serde_json::to_string_pretty(value).unwrap_or_else(|e| e.to_string())
}

#[derive(Serialize, Deserialize)]
struct Versioned<T> {
    version: u32,
    image: T,
}

impl CudaImage {
    /// Its bytes and their digest.
    ///
    /// # Errors
    /// A sentence, when it can't be written.
    pub fn to_bytes(&self) -> Result<(Digest, Vec<u8>), String> {
        let versioned = Versioned { version: IMAGE_VERSION, image: self };
        let bytes = postcard::to_allocvec(&versioned).map_err(|e| e.to_string())?;
        Ok((Digest::of(&bytes), bytes))
    }

    /// The image that `bytes` hold.
    ///
    /// # Errors
    /// A sentence, when they hold none or one of another version.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, String> {
        let (version, _) =
            postcard::take_from_bytes::<u32>(bytes).map_err(|e| format!("no image: {e}"))?;
        if version != IMAGE_VERSION {
            return Err(format!("an image of version {version} where {IMAGE_VERSION} is known"));
        }
        let versioned: Versioned<Self> =
            postcard::from_bytes(bytes).map_err(|e| format!("no image: {e}"))?;
        versioned.image.check()?;
        Ok(versioned.image)
    }

    /// What it holds: the source of a kernel, the problem of a library call.
    pub fn listing(&self) -> ImageListing {
        match self {
            Self::Kernel(KernelImage { arch, recipe, code }) => ImageListing {
                name: recipe.entry.clone(),
                kind: "kernel",
                language: "cu",
                text: recipe.source.clone(),
                recipe: json!({
                    "arch": arch.to_string(),
                    "options": recipe.options,
                    "grid": recipe.grid,
                    "block": recipe.block,
                    "cluster": recipe.cluster,
                    "static_shared_bytes": recipe.static_shared,
                    "dynamic_shared_bytes": recipe.dynamic_shared,
                    "params": recipe.params,
                }),
                programmatic: recipe.programmatic && arch.has_programmatic_launch(),
                source_file: source_file(&recipe.source),
                resources: cubin_kernels(&code.cubin).ok().and_then(|kernels| {
                    let kernel = kernels.iter().find(|kernel| kernel.name == recipe.entry)?;
                    let threads = recipe.block.iter().product();
                    Some(resources(*arch, kernel, threads, recipe.dynamic_shared))
                }),
            },
            Self::Matmul(matmul) => ImageListing {
                name: LIBRARY_MATMUL.to_owned(),
                kind: "library",
                language: "json",
                text: pretty(matmul),
                ..ImageListing::default()
            },
            Self::Host(host) => ImageListing {
                name: host.name.clone(),
                kind: "host function",
                language: "json",
                text: pretty(host),
                ..ImageListing::default()
            },
        }
    }

    fn check(&self) -> Result<(), String> {
        match self {
            Self::Kernel(kernel) => kernel.code.check(None),
            Self::Host(_) => Ok(()),
            Self::Matmul(matmul) => matmul.check(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use piecewise_kernels::op::cuda::{GridAxis, Param, Scalar};
    use proptest::prelude::*;

    fn image() -> CudaImage {
        let params = vec![Param::Arg(0), Param::Counts, Param::Scalar(Scalar::F32(0.5))];
        let source = "extern \"C\" __global__ void scale(float *, const int *, float);";
        CudaImage::Kernel(KernelImage {
            arch: Arch { number: 90 },
            code: Code { nvrtc: (13, 0), cubin: b"\x7fELFcode".to_vec() },
            recipe: LaunchRecipe::new(source, "scale", GridAxis::one(), 256, params),
        })
    }

    #[test]
    fn a_source_with_lines_says_what_its_file_is_called() {
        let CudaImage::Kernel(kernel) = image() else { unreachable!() };
        assert_eq!(source_file(&kernel.recipe.source), None);
        let lined = with_lines(kernel.recipe.clone());
        let file = source_file(&lined.source).unwrap();
        assert!(file.starts_with("scale-") && file.ends_with(".cu"), "{file}");
        // The file begins with the directive, which numbers the line after it.
        assert_eq!(lined.source, format!("#line 2 \"{file}\"\n{}", kernel.recipe.source));
        assert_eq!(lined.options, ["-lineinfo"]);
    }

    #[test]
    fn images_come_back_as_they_were() {
        let (digest, bytes) = image().to_bytes().unwrap();
        assert_eq!(digest, Digest::of(&bytes));
        assert_eq!(CudaImage::from_bytes(&bytes), Ok(image()));
        let mut other = bytes;
        other[0] = 99;
        assert_eq!(
            CudaImage::from_bytes(&other),
            Err("an image of version 99 where 4 is known".to_owned())
        );
    }

    proptest! {
        #[test]
        fn no_bytes_are_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = CudaImage::from_bytes(&bytes);
        }

        #[test]
        fn a_changed_byte_is_an_error_or_another_image(at in 0usize..90, to in any::<u8>()) {
            let (_, mut bytes) = image().to_bytes().unwrap();
            let at = at % bytes.len();
            let changed = bytes[at] != to;
            bytes[at] = to;
            match CudaImage::from_bytes(&bytes) {
                Ok(found) => prop_assert_eq!(found != image(), changed),
                Err(_) => prop_assert!(changed),
            }
        }
    }
}
