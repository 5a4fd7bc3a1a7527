//! `piecewise encode`: an encoder of any kind, tensors in, tensors out.

mod args;
mod images;
mod items;
mod texts;

use super::encoder_args::{print_settings_of_encoder, refuse_flags_of_writers};
use super::out_file::{OutFile, write_tensors};
use super::tensor_file::TensorFile;
use anyhow::bail;
pub(crate) use args::EncodeArgs;
use items::Output;
use piecewise::models::encoder::Modality;
use safetensors::tensor::{Dtype, TensorView};
use std::path::Path;
use std::process::ExitCode;

pub(crate) fn run(mut args: EncodeArgs) -> anyhow::Result<ExitCode> {
    args.model.bring()?;
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
    write_tensors(out, views)
}
