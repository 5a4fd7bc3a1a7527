//! What `piecewise encode` takes.

use super::super::encoder_args::EncoderArgs;
use super::super::model_args::ModelArgs;
use std::path::PathBuf;

/// Arguments of `encode`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  piecewise encode --model DIR --inputs items.safetensors --out vectors.safetensors
  piecewise encode --model DIR --inputs items.safetensors --out vectors.safetensors --one-by-one
  piecewise encode --model DIR --image cat.png dog.jpg --out vectors.safetensors

Inputs, i from 0 on; tensors of other names are ignored:
  text           ids_i [n] and, of a model that has them, token_types_i [n]: i32 or i64
  SigLIP, CLIP,  pixel_values [N, C, H, W]: f32, f16 or bf16
  ViT
  Qwen-VL        pixel_values_i [patches, width] and grid_thw [N, 3]

Outputs, all f32:
  text           last_hidden_state_i [n, width], embedding_i [width] and, where the model has them,
                 pooler_output_i [width], logits_i [labels]
  SigLIP, CLIP,  last_hidden_state [N, rows, width], pooler_output [N, width]
  ViT
  Qwen-VL        embeds_i [tokens, width], deepstack_i_j [tokens, width]")]
pub(crate) struct EncodeArgs {
    #[command(flatten)]
    pub(super) model: ModelArgs,
    /// Items to encode.
    #[arg(long, value_name = "FILE.safetensors", required_unless_present_any = ["image", "print_config"])]
    pub(super) inputs: Option<PathBuf>,
    /// Images to encode instead, PNG, JPEG or WebP, made ready by the folder's
    /// preprocessor_config.json; item i is the i-th.
    #[arg(long, value_name = "FILE", num_args = 1.., conflicts_with = "inputs")]
    pub(super) image: Vec<PathBuf>,
    /// Where their outputs go.
    #[arg(long, value_name = "FILE.safetensors", required_unless_present = "print_config")]
    pub(super) out: Option<PathBuf>,
    #[command(flatten)]
    pub(super) encoder: EncoderArgs,
}
