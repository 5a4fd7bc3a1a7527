//! Steps by size, with the part of their rows that is padding, and the chosen sizes.

use std::collections::BTreeMap;

use anyhow::Result;
use piecewise_planner::{CaptureSizes, StepKind, serve};
use plotters::prelude::*;
use plotters::style::text_anchor::HPos;

use super::super::input::Input;
use super::canvas::{
    Area, GRID, INK, PADDING, QUIET_INK, REAL, anchored, draw as on_canvas, drawing, font, grouped,
    key, short, text,
};

const WIDTH: u32 = 960;
const TITLE: u32 = 64;
const PANEL: u32 = 270;
/// Bars to a doubling of size; sizes are on a logarithmic axis.
const BINS_PER_OCTAVE: f64 = 6.0;

struct Panel {
    title: String,
    axis: &'static str,
    /// By the size that each ran at.
    steps: Vec<(u32, Bin)>,
    sizes: Vec<u32>,
}

/// Steps and rows of them.
#[derive(Clone, Copy, Default, derive_more::Add)]
struct Bin {
    steps: u64,
    real: u64,
    padding: u64,
}

pub(super) fn draw(input: &Input, sizes: &CaptureSizes) -> Result<String> {
    let panels = panels(input, sizes)?;
    let height = TITLE + PANEL * panels.len() as u32;
    on_canvas((WIDTH, height), |root| {
        text(
            root,
            "Steps by size, and what of their rows is padding",
            (24, 24),
            anchored(18, &INK, HPos::Left),
        )?;
        let next = key(root, REAL, "real rows", (24, 50))?;
        let next = key(root, PADDING, "padding rows", (next, 50))?;
        text(root, "| chosen size", (next, 50), anchored(12, &QUIET_INK, HPos::Left))?;
        let (_, body) = root.split_vertically(TITLE);
        for (panel, area) in panels.iter().zip(body.split_evenly((panels.len(), 1))) {
            draw_panel(panel, &area)?;
        }
        Ok(())
    })
}

fn panels(input: &Input, sizes: &CaptureSizes) -> Result<Vec<Panel>> {
    let Input { traffic, costs, request, .. } = input;
    let own_list = |kind: StepKind| {
        matches!(kind, StepKind::Decode { .. })
            && request.graph_mode.has_decode_graphs()
            && !sizes.decode_batch_sizes.is_empty()
    };
    let mut panels = Vec::new();
    for decode in [false, true] {
        let list = if decode { &sizes.decode_batch_sizes } else { &sizes.capture_num_tokens };
        let mut steps = Vec::new();
        for (kind, own_count, number) in traffic.iter().filter(|step| own_list(step.0) == decode) {
            let tokens = kind.tokens(own_count);
            let count = if decode { own_count } else { tokens };
            let replay = serve(request.on(traffic, costs), kind, own_count, sizes)?.replay;
            let real = number.saturating_mul(u64::from(tokens));
            let padding =
                number.saturating_mul(replay.map_or(0, |replay| u64::from(replay.padding)));
            steps.push((count, Bin { steps: number, real, padding }));
        }
        if steps.is_empty() {
            continue;
        }
        let (name, axis) = match (decode, request.graph_mode.has_decode_graphs()) {
            (true, _) => ("Decode", "sequences in the step"),
            (false, true) => ("Context and mixed", "tokens in the step"),
            (false, false) => ("All steps", "tokens in the step"),
        };
        let all = steps.iter().fold(Bin::default(), |all, (_, bin)| all + *bin);
        let title = format!(
            "{name}: {} steps, {} sizes, {:.1} % of the rows are padding",
            grouped(all.steps),
            list.len(),
            100.0 * all.padding as f64 / (all.real + all.padding).max(1) as f64
        );
        panels.push(Panel { title, axis, steps, sizes: list.clone() });
    }
    Ok(panels)
}

fn bin_of(count: u32) -> i64 {
    (f64::from(count).log2() * BINS_PER_OCTAVE).round() as i64
}

fn draw_panel(panel: &Panel, area: &Area<'_>) -> Result<()> {
    let mut bins: BTreeMap<i64, Bin> = BTreeMap::new();
    for (count, held) in &panel.steps {
        let bin = bins.entry(bin_of(*count)).or_default();
        *bin = *bin + *held;
    }
    let last = panel.sizes.iter().copied().chain(panel.steps.iter().map(|(count, _)| *count)).max();
    let right = f64::from(last.unwrap_or(1)).log2() + 1.0 / BINS_PER_OCTAVE;
    let left = bins.first_key_value().map_or(0.0, |(bin, _)| *bin as f64 / BINS_PER_OCTAVE);
    let first = f64::from(panel.sizes.first().copied().unwrap_or(1)).log2();
    let left = left.min(first) - 1.0 / BINS_PER_OCTAVE;
    let top = bins.values().map(|bin| bin.steps).max().unwrap_or(1) as f64 * 1.08;

    text(area, &panel.title, (24, 14), anchored(14, &INK, HPos::Left))?;
    let mut chart = ChartBuilder::on(area)
        .margin_top(34)
        .margin_right(24)
        .margin_left(16)
        .x_label_area_size(46)
        .y_label_area_size(58)
        .build_cartesian_2d(left..right, 0.0..top)
        .map_err(drawing)?;
    chart
        .configure_mesh()
        .disable_x_mesh()
        .light_line_style(GRID.mix(0.0))
        .bold_line_style(GRID)
        .axis_style(GRID)
        .x_labels((right - left).ceil() as usize + 1)
        .x_label_formatter(&|x| octave_label(*x))
        .y_labels(5)
        .y_label_formatter(&|y| short(*y))
        .x_desc(format!("{} (logarithmic)", panel.axis))
        .y_desc("steps")
        .label_style(font(12, &QUIET_INK))
        .axis_desc_style(font(12, &QUIET_INK))
        .draw()
        .map_err(drawing)?;
    for size in &panel.sizes {
        let x = f64::from(*size).log2();
        chart
            .draw_series([PathElement::new(vec![(x, 0.0), (x, top)], QUIET_INK.stroke_width(1))])
            .map_err(drawing)?;
    }
    for (bin, held) in &bins {
        let from = (*bin as f64 - 0.44) / BINS_PER_OCTAVE;
        let to = (*bin as f64 + 0.44) / BINS_PER_OCTAVE;
        let height = held.steps as f64;
        let padded = height * held.padding as f64 / (held.real + held.padding).max(1) as f64;
        let bars = [(0.0, height - padded, REAL), (height - padded, height, PADDING)];
        for (low, high, color) in bars.into_iter().filter(|(low, high, _)| high > low) {
            chart
                .draw_series([Rectangle::new([(from, low), (to, high)], color.filled())])
                .map_err(drawing)?;
        }
    }
    Ok(())
}

fn octave_label(x: f64) -> String {
    let whole = x.round();
    if (x - whole).abs() < 1e-6 && whole >= 0.0 { short_size(whole.exp2()) } else { String::new() }
}

fn short_size(size: f64) -> String {
    if size >= 16384.0 { format!("{}Ki", size / 1024.0) } else { format!("{size}") }
}
