//! Findings shown inside the listing, under what they are about.

use super::print::{Mode, Printer, Span};
use crate::diagnostic::{Anchor, Diagnostic, Diagnostics};
use crate::graph::Graph;
use crate::module::Module;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

/// Listings of up to this many lines are shown whole.
const SHORT: usize = 60;
/// Lines shown before and after a line with findings.
const CONTEXT: usize = 2;

/// What [`render`] can list.
#[derive(Clone, Copy, Debug, derive_more::From)]
pub enum Listing<'a> {
    /// A graph that has no plan, or whose plan is not wanted.
    Graph(&'a Graph),
    /// A graph and its plan.
    Module(&'a Module),
}

/// The listing with each finding under the line that it is about, and their count at the end.
/// Of a long listing only lines with findings are shown, with a little around them and the lines
/// that open the blocks they are in. A finding about something that the text does not show is put
/// under the graph's first line.
pub fn render<'a>(listing: impl Into<Listing<'a>>, findings: &Diagnostics) -> String {
    let mut printer = Printer::new(Mode::Listing);
    match listing.into() {
        Listing::Graph(graph) => printer.graph_document(graph),
        Listing::Module(module) => printer.module(module),
    }
    let (text, spans) = printer.finish_with_spans();
    let lines: Vec<&str> = text.lines().collect();
    let mut by_line: BTreeMap<usize, Vec<(Span, &Diagnostic)>> = BTreeMap::new();
    for finding in &findings.items {
        let span = find(&spans, finding.at);
        by_line.entry(span.line).or_default().push((span, finding));
    }
    let shown = shown_lines(&lines, by_line.keys().copied());
    let mut out = String::new();
    let mut next = 0;
    for &index in &shown {
        if index > next {
            out.push_str("  ...\n");
        }
        next = index + 1;
        // Writing to a String never fails.
        let _ = writeln!(out, "{}", lines[index]);
        for (span, finding) in by_line.get(&index).into_iter().flatten() {
            write_finding(&mut out, lines[index], *span, finding);
        }
    }
    if next < lines.len() {
        out.push_str("  ...\n");
    }
    let count = match findings.items.len() {
        0 => "no errors".to_owned(),
        1 => "1 error".to_owned(),
        n => format!("{n} errors"),
    };
    let _ = writeln!(out, "; {count}");
    out
}

/// Where `anchor` stands, or the nearest thing around it that the text shows.
fn find(spans: &BTreeMap<Anchor, Span>, anchor: Anchor) -> Span {
    let around = match anchor {
        Anchor::Operand(node, _) | Anchor::Body(node, _) => Anchor::Node(node),
        _ => Anchor::Graph,
    };
    [anchor, around, Anchor::Graph].iter().find_map(|a| spans.get(a).copied()).unwrap_or(Span {
        line: 0,
        start: 0,
        end: 0,
    })
}

fn shown_lines(lines: &[&str], marked: impl Iterator<Item = usize>) -> BTreeSet<usize> {
    if lines.len() <= SHORT {
        return (0..lines.len()).collect();
    }
    let indent = |line: usize| lines[line].len() - lines[line].trim_start().len();
    let mut shown = BTreeSet::from([0]);
    for line in marked {
        shown.extend(line.saturating_sub(CONTEXT)..(line + CONTEXT + 1).min(lines.len()));
        let mut depth = indent(line);
        for above in (0..line).rev() {
            if depth == 0 {
                break;
            }
            if !lines[above].is_empty() && indent(above) < depth {
                depth = indent(above);
                shown.insert(above);
            }
        }
    }
    shown
}

fn write_finding(out: &mut String, line: &str, span: Span, finding: &Diagnostic) {
    let column = line[..span.start].chars().count();
    let width = line[span.start..span.end].chars().count().max(1);
    let (margin, carets) = (" ".repeat(column), "^".repeat(width));
    let mut message = finding.message.lines();
    let first = message.next().unwrap_or_default();
    let _ = writeln!(out, "{margin}{carets} error[{}]: {first}", finding.code);
    for more in message {
        let _ = writeln!(out, "{margin}  {more}");
    }
    for note in &finding.notes {
        for (i, text) in note.lines().enumerate() {
            let label = if i == 0 { "note:" } else { "     " };
            let _ = writeln!(out, "{margin}  {label} {text}");
        }
    }
}
