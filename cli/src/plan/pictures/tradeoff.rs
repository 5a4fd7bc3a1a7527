//! What each further graph buys, with the knee and the chosen plan.

use anyhow::Result;
use piecewise_planner::{CurvePoint, Objective, Plan};
use plotters::prelude::*;
use plotters::style::text_anchor::HPos;

use super::canvas::{
    GRID, GROUND, INK, PADDING, QUIET_INK, REAL, anchored, draw as on_canvas, drawing, font, key,
    short, text,
};

const SIZE: (u32, u32) = (960, 400);
const TITLE: u32 = 64;

pub(super) fn draw(objective: Objective, plan: &Plan) -> Result<String> {
    let (scale, unit) = match objective {
        Objective::Time => (1e-6, "expected time of the log, s"),
        Objective::Padding => (1.0, "padding tokens of the log"),
    };
    let points: Vec<(f64, f64)> =
        plan.curve.iter().map(|point| (point.graphs as f64, point.cost * scale)).collect();
    let find = |graphs: usize| -> Option<(&CurvePoint, (f64, f64))> {
        let index = plan.curve.iter().rposition(|point| point.graphs <= graphs)?;
        Some((&plan.curve[index], points[index]))
    };
    let first = points.first().map_or(0.0, |point| point.0);
    let last = points.last().map_or(1.0, |point| point.0);
    let lowest = points.iter().map(|point| point.1).fold(f64::INFINITY, f64::min);
    let highest = points.iter().map(|point| point.1).fold(0.0, f64::max);
    // Padding starts at zero; times differ by little over a large floor.
    let floor = match objective {
        Objective::Time => (lowest - 0.15 * (highest - lowest)).max(0.0),
        Objective::Padding => 0.0,
    };
    let top = highest + 0.08 * (highest - floor).max(f64::MIN_POSITIVE);
    on_canvas(SIZE, |root| {
        text(root, "What more graphs buy", (24, 24), anchored(18, &INK, HPos::Left))?;
        let next = key(root, REAL, "best plan of at most so many graphs", (24, 50))?;
        let next = key(root, PADDING, &format!("knee, {} graphs", plan.knee_graphs), (next, 50))?;
        let chosen = format!("chosen, {} graphs", plan.outcome.graphs);
        key(root, INK, &chosen, (next, 50))?;
        let (_, body) = root.split_vertically(TITLE);
        let mut chart = ChartBuilder::on(&body)
            .margin_top(12)
            .margin_right(32)
            .margin_left(16)
            .x_label_area_size(46)
            .y_label_area_size(76)
            .build_cartesian_2d(first..last + 0.02 * (last - first), floor..top)
            .map_err(drawing)?;
        chart
            .configure_mesh()
            .disable_x_mesh()
            .light_line_style(GRID.mix(0.0))
            .bold_line_style(GRID)
            .axis_style(GRID)
            .x_labels(12)
            .x_label_formatter(&|x| if x.fract() == 0.0 { format!("{x}") } else { String::new() })
            .y_labels(6)
            .y_label_formatter(&|y| short(*y))
            .x_desc("graphs (token sizes and decode sizes)")
            .y_desc(unit)
            .label_style(font(12, &QUIET_INK))
            .axis_desc_style(font(12, &QUIET_INK))
            .draw()
            .map_err(drawing)?;
        chart
            .draw_series([PathElement::new(points.clone(), REAL.stroke_width(2))])
            .map_err(drawing)?;
        for (graphs, color, radius) in
            [(plan.outcome.graphs, INK, 7), (plan.knee_graphs, PADDING, 4)]
        {
            if let Some((_, at)) = find(graphs) {
                chart
                    .draw_series([Circle::new(at, radius + 2, GROUND.filled())])
                    .map_err(drawing)?;
                chart.draw_series([Circle::new(at, radius, color.filled())]).map_err(drawing)?;
            }
        }
        Ok(())
    })
}
