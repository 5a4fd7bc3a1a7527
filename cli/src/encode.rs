//! `piecewise encode`: an encoder of any kind, tensors in, tensors out.

mod images;
mod tensors;
mod texts;

use super::encoder_args::{
    EncoderArgs, in_calls, print_settings_of_encoder, refuse_flags_of_writers, with_room_for,
};
use super::logs::say;
use super::model_args::ModelArgs;
use super::out_file::OutFile;
use anyhow::bail;
use piecewise::encoding::{Encoder, ItemEncoder, ItemOutputs};
use piecewise::models::encoder::Modality;
use piecewise_runtime::config::ConfigLayers;
use safetensors::tensor::{Dtype, TensorView};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use tensors::TensorFile;

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
    model: ModelArgs,
    /// Items to encode.
    #[arg(long, value_name = "FILE.safetensors", required_unless_present_any = ["image", "print_config"])]
    inputs: Option<PathBuf>,
    /// Images to encode instead, PNG, JPEG or WebP, made ready by the folder's
    /// preprocessor_config.json; item i is the i-th.
    #[arg(long, value_name = "FILE", num_args = 1.., conflicts_with = "inputs")]
    image: Vec<PathBuf>,
    /// Where their outputs go.
    #[arg(long, value_name = "FILE.safetensors", required_unless_present = "print_config")]
    out: Option<PathBuf>,
    #[command(flatten)]
    encoder: EncoderArgs,
}

/// An item, or why it is none.
struct Named<T> {
    /// By which errors name the item.
    name: String,
    /// The number in the names of its outputs.
    number: u64,
    item: anyhow::Result<T>,
}

struct Output {
    name: String,
    shape: Vec<usize>,
    values: Vec<f32>,
}

pub(crate) fn run(args: EncodeArgs) -> anyhow::Result<ExitCode> {
    refuse_flags_of_writers(&args.model.model, &args.model.bounds, &[])?;
    let layers = args.encoder.over(args.model.bounds.layers()?)?;
    let printed = args.model.bounds.compile.shared.print_config;
    let Some(out) = args.out.as_ref().filter(|_| !printed) else {
        return print_settings_of_encoder(layers, &args.model.model);
    };
    let modality = Modality::of(&args.model.model)?;
    let out = OutFile::claim(out)?;
    args.encoder.items.check_log()?;
    let file = args.inputs.as_deref().map(TensorFile::read).transpose()?;
    let (outputs, failed) = match (modality, &file) {
        (Modality::Text, Some(file)) => texts::encode(&args, layers, file)?,
        (Modality::Text, None) => bail!("the model reads texts, no images"),
        (Modality::Vision, Some(file)) => images::encode(&args, layers, &file.tensors()?)?,
        (Modality::Vision, None) => images::encode_files(&args, layers)?,
    };
    if outputs.is_empty() {
        bail!("no item could be encoded; nothing is written");
    }
    out.write(|path| write(path, &outputs))?;
    Ok(if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The number and the outputs of each item in the order of `items`, of one that has none the reason;
/// reasons are said too. `load` makes the encoder for items of so many rows at most.
fn encode_items<M: ItemEncoder>(
    args: &EncodeArgs,
    layers: ConfigLayers,
    items: Vec<Named<M::Item>>,
    rows: impl Fn(&M::Item) -> usize,
    load: impl FnOnce(ConfigLayers) -> anyhow::Result<Encoder<M>>,
) -> anyhow::Result<Vec<(u64, anyhow::Result<ItemOutputs>)>> {
    let largest = items.iter().filter_map(|named| named.item.as_ref().ok()).map(rows).max();
    let mut good = Vec::with_capacity(items.len());
    let mut names = Vec::with_capacity(items.len());
    let mut results = Vec::with_capacity(items.len());
    for Named { name, number, item } in items {
        let item = item.map(|item| good.push(item));
        names.push(name);
        results.push((number, item.map(|()| ItemOutputs::new())));
    }
    if let Some(largest) = largest {
        let mut encoder = load(with_room_for(layers, &args.model.model, largest as u64)?)?;
        args.encoder.prepare(&mut encoder)?;
        let encoded = in_calls("encoding", good.len(), |call| encoder.encode(&good[call]));
        let served = results.iter_mut().filter(|(_, result)| result.is_ok());
        for ((_, result), outputs) in served.zip(encoded) {
            *result = outputs.map_err(anyhow::Error::new);
        }
        args.encoder.finish(&mut encoder)?;
    }
    for (name, (_, result)) in names.iter().zip(&results) {
        if let Err(error) = result {
            let error = format!("{error:#}");
            let named = if error.contains(name) { error } else { format!("{name}: {error}") };
            say(&format!("error: {named}"));
        }
    }
    Ok(results)
}

fn write(out: &Path, outputs: &[Output]) -> anyhow::Result<()> {
    let bytes =
        Vec::from_iter(outputs.iter().map(|output| {
            Vec::from_iter(output.values.iter().flat_map(|value| value.to_le_bytes()))
        }));
    let views = outputs.iter().zip(&bytes).map(|(output, bytes)| {
        let view = TensorView::new(Dtype::F32, output.shape.clone(), bytes)?;
        Ok((output.name.as_str(), view))
    });
    let views = views.collect::<anyhow::Result<Vec<_>>>()?;
    Ok(safetensors::serialize_to_file(views, None, out)?)
}
