//! Pixels and patches to rows and merged tokens.

use super::super::images::item_of_file;
use super::super::progress::watcher;
use super::args::EncodeArgs;
use super::items::{Named, Output, encode_items};
use crate::tensor_file::Tensors;
use anyhow::{Context, anyhow, bail};
use piecewise::encoding::{ImageItem, ImageProcessor, ItemOutputs, OutputRows, VisionEncoder};
use piecewise::models::encoder::VisionConfig;
use piecewise_runtime::config::ConfigLayers;
use std::path::PathBuf;

const PIXELS: &str = "pixel_values";
const GRID: &str = "grid_thw";

pub(super) fn encode(
    args: &EncodeArgs,
    layers: ConfigLayers,
    tensors: &Tensors<'_>,
) -> anyhow::Result<(Vec<Output>, usize)> {
    let config = VisionConfig::load(&args.model.model)?;
    let items = match config.pixels_shape() {
        Some(_) => images(&config, tensors)?,
        None => patches(tensors)?,
    };
    encode_all(args, layers, &config, items)
}

pub(super) fn encode_files(
    args: &EncodeArgs,
    layers: ConfigLayers,
) -> anyhow::Result<(Vec<Output>, usize)> {
    let folder = &args.model.model;
    let (config, processor) = (VisionConfig::load(folder)?, ImageProcessor::load(folder)?);
    let named = |(number, file): (usize, &PathBuf)| Named {
        name: file.display().to_string(),
        number: number as u64,
        item: item_of_file(&processor, file),
    };
    let items = args.image.iter().enumerate().map(named).collect();
    encode_all(args, layers, &config, items)
}

fn encode_all(
    args: &EncodeArgs,
    layers: ConfigLayers,
    config: &VisionConfig,
    items: Vec<Named<ImageItem>>,
) -> anyhow::Result<(Vec<Output>, usize)> {
    // What has no rows is refused.
    let rows = |item: &ImageItem| config.tokens_of(item).map_or(0, |rows| rows as usize);
    let load = |layers| Ok(VisionEncoder::load(&args.model.model, layers, watcher())?);
    let results = encode_items(args, layers, items, rows, load)?;
    let failed = results.iter().filter(|(_, result)| result.is_err()).count();
    let outputs = match config.pixels_shape() {
        _ if failed == results.len() => Vec::new(),
        Some(_) => stacked(config, &results),
        None => numbered(config, results),
    };
    Ok((outputs, failed))
}

/// The images of one tensor.
fn images(config: &VisionConfig, tensors: &Tensors<'_>) -> anyhow::Result<Vec<Named<ImageItem>>> {
    if !tensors.has(PIXELS) {
        bail!("{} has no items: of this model they are `{PIXELS}` [N, C, H, W]", tensors.file());
    }
    let (shape, values) = tensors.floats(PIXELS)?;
    let &[count, channels, height, width] = &*shape else {
        bail!("`{PIXELS}` has the shape {shape:?}; give it as [N, C, H, W]");
    };
    if values.is_empty() {
        bail!("`{PIXELS}` has the shape {shape:?}: there are no images in it");
    }
    let pixels = values.chunks_exact(values.len() / count);
    let item = |pixels| config.item_of_pixels(pixels, [channels, height, width]);
    let items = pixels.map(item).collect::<Result<Vec<_>, _>>();
    let items = items.map_err(|reason| anyhow!("`{PIXELS}`: {reason}"))?;
    let named =
        |(i, item)| Named { name: format!("{PIXELS}[{i}]"), number: i as u64, item: Ok(item) };
    Ok(items.into_iter().enumerate().map(named).collect())
}

/// Images and videos of grids of their own.
fn patches(tensors: &Tensors<'_>) -> anyhow::Result<Vec<Named<ImageItem>>> {
    let numbers = tensors.numbers(PIXELS);
    if numbers.is_empty() {
        bail!(
            "{} has no items: of this model they are `{PIXELS}_0`, `{PIXELS}_1`, .. [patches, \
             width], with `{GRID}` [N, 3]",
            tensors.file()
        );
    }
    let (shape, grids) = tensors.integers(GRID)?;
    let &[_, 3] = &*shape else {
        bail!("`{GRID}` has the shape {shape:?}; give it as [N, 3]: frames, rows and columns");
    };
    let item = |number: u64| {
        let name = format!("{PIXELS}_{number}");
        let (shape, patches) = tensors.floats(&name)?;
        if shape.len() != 2 {
            bail!("`{name}` has the shape {shape:?}; give it as [patches, width]");
        }
        let grid =
            usize::try_from(number).ok().and_then(|number| grids.chunks_exact(3).nth(number));
        let grid =
            grid.with_context(|| format!("`{GRID}` has {} rows, so none for it", grids.len() / 3))?;
        let side = |i: usize| usize::try_from(grid[i]);
        let (Ok(frames), Ok(rows), Ok(columns)) = (side(0), side(1), side(2)) else {
            bail!("its grid is {grid:?}; sides are not negative");
        };
        Ok(ImageItem { grid: [frames, rows, columns], patches })
    };
    let named = |number| Named { name: format!("{PIXELS}_{number}"), number, item: item(number) };
    Ok(numbers.into_iter().map(named).collect())
}

/// One tensor of each output, over all images; NaN of one that has none. A tower without a pooler
/// has one output.
fn stacked(config: &VisionConfig, results: &[(u64, anyhow::Result<ItemOutputs>)]) -> Vec<Output> {
    let names = ["last_hidden_state", "pooler_output"];
    let lengths = results.iter().find_map(|(_, result)| result.as_ref().ok());
    let lengths = lengths.map_or_else(Vec::new, |outputs| outputs.iter().map(Vec::len).collect());
    let output = |(i, ((kind, name), &length)): (usize, ((&OutputRows, &str), &usize))| {
        let missing = vec![f32::NAN; length];
        let of_item = |result: &'_ anyhow::Result<ItemOutputs>| match result {
            Ok(outputs) => outputs[i].clone(),
            Err(_) => missing.clone(),
        };
        let values = Vec::from_iter(results.iter().flat_map(|(_, result)| of_item(result)));
        let shape = match *kind {
            OutputRows::PerRow(width) => vec![results.len(), length / width, width],
            OutputRows::PerItem(width) => vec![results.len(), width],
        };
        Output { name: name.to_owned(), shape, values }
    };
    config.outputs().iter().zip(names).zip(&lengths).enumerate().map(output).collect()
}

/// The tensors of each item.
fn numbered(
    config: &VisionConfig,
    results: Vec<(u64, anyhow::Result<ItemOutputs>)>,
) -> Vec<Output> {
    let mut tensors = Vec::new();
    for (number, result) in results {
        let outputs = result.unwrap_or_default();
        for (place, (kind, values)) in config.outputs().iter().zip(outputs).enumerate() {
            let (OutputRows::PerRow(width) | OutputRows::PerItem(width)) = *kind;
            let name = match place.checked_sub(1) {
                None => format!("embeds_{number}"),
                Some(deepstack) => format!("deepstack_{number}_{deepstack}"),
            };
            tensors.push(Output { name, shape: vec![values.len() / width, width], values });
        }
    }
    tensors
}
