//! SVG pictures of a plan: the histogram with its sizes and padding, and the trade-off curve.

mod canvas;
mod histogram;
mod tradeoff;

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use piecewise_planner::Plan;

use super::super::out_file::OutFile;
use super::args::Theme;
use super::input::Input;

/// Makes the folder, and sees whether pictures can be written there.
pub(super) fn make(directory: &Path) -> Result<()> {
    fs::create_dir_all(directory)
        .with_context(|| format!("cannot create {}", directory.display()))?;
    OutFile::check(Some(&directory.join("histogram.svg")))
}

/// Writes `histogram.svg`, and `tradeoff.svg` where there is a curve.
pub(super) fn write(directory: &Path, theme: Theme, input: &Input, plan: &Plan) -> Result<()> {
    let save = |name: &str, svg: String| {
        let path = directory.join(name);
        let themed = canvas::themed(&svg, theme);
        fs::write(&path, themed).with_context(|| format!("cannot write {}", path.display()))
    };
    save("histogram.svg", histogram::draw(input, &plan.sizes)?)?;
    if plan.curve.len() > 1 {
        save("tradeoff.svg", tradeoff::draw(input.request.objective, plan)?)?;
    }
    Ok(())
}
