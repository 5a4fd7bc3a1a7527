//! Image files.

use anyhow::Context;
use piecewise::encoding::{ImageItem, ImageProcessor};
use std::fs::File;
use std::io::Read;
use std::path::Path;

/// Bytes that an image file may have.
const LARGEST_FILE: u64 = 256 << 20;

/// The item of an image file.
pub(super) fn item_of_file(processor: &ImageProcessor, file: &Path) -> anyhow::Result<ImageItem> {
    let mut bytes = Vec::new();
    let read = File::open(file).and_then(|f| f.take(LARGEST_FILE + 1).read_to_end(&mut bytes));
    read.with_context(|| format!("can't read {}", file.display()))?;
    if bytes.len() as u64 > LARGEST_FILE {
        anyhow::bail!("{}: larger than {LARGEST_FILE} bytes", file.display());
    }
    processor.item(&bytes).with_context(|| file.display().to_string())
}
