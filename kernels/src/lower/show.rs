//! Row programs as text, for dumps.

use super::row_program::{ArgDecl, ArgKind, PlaceKind, RowProgram, RowStep};
use piecewise_ir::entity::Entity;
use std::fmt::{Display, Formatter, Result};

impl Display for RowProgram {
    /// Arguments, places and steps, one a line. `p3+8[1,0]` is place 3 from element 8 on, with the
    /// strides of the loops, outermost first.
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        match self.over {
            Some(symbol) => write!(f, "for each row of symbol {}", symbol.index())?,
            None => write!(f, "once")?,
        }
        writeln!(f, ", in tiles of {} rows", self.work.tile_rows)?;
        for (i, arg) in self.args.iter().enumerate() {
            writeln!(f, "  arg {i}: {arg}")?;
        }
        for (i, place) in self.places.iter().enumerate() {
            let (name, elements) = (place.dtype.name(), place.elements);
            write!(f, "  p{i}: {name} x {elements}, {} a row, in ", place.row_stride)?;
            match place.kind {
                PlaceKind::Arg(arg) => writeln!(f, "arg {arg}")?,
                PlaceKind::Temp(offset) => writeln!(f, "the tile at byte {offset} a row")?,
                PlaceKind::Constant(word) => {
                    let at = usize::try_from(word).unwrap_or(usize::MAX);
                    let first = self.constants.get(at).copied().unwrap_or(0);
                    writeln!(f, "the constants at word {word} ({first:#x} ..)")?;
                }
            }
        }
        self.steps.iter().try_for_each(|step| writeln!(f, "  {step}"))
    }
}

impl Display for ArgDecl {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let kind = match self.kind {
            ArgKind::Row => "row",
            ArgKind::Whole => "whole",
            ArgKind::Table => "table of rows",
        };
        let state = if self.state { ", a state" } else { "" };
        let written = if self.written { ", written" } else { "" };
        write!(f, "{kind} {} x {}{state}{written}", self.dtype.name(), self.elements)
    }
}

impl Display for RowStep {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        match self {
            Self::Map { op, nest, inputs, out } => {
                write!(f, "{nest} {out} = {op}")?;
                inputs.iter().try_for_each(|input| write!(f, " {input}"))
            }
            Self::Reduce { op, nest, kept, input, out } => {
                write!(f, "{nest} {out} = {} {input} over the loops after {kept}", op.mnemonic())
            }
            Self::TopK { nest, k, input, values, indices, .. } => {
                write!(f, "{nest} the {k} largest of {input}")?;
                if let Some(values) = values {
                    write!(f, ", values to {values}")?;
                }
                write!(f, ", indices to {indices}")
            }
            Self::Gather { table, offset, row, nest, indices, out, .. } => {
                write!(f, "{nest} p{out} = rows of {row} of p{table}+{offset} at {indices}")
            }
            Self::Scatter { table, row, nest, slots, rows: (place, first), .. } => {
                write!(f, "{nest} rows of {row} of p{table} at {slots} = p{place}+{first}")
            }
        }
    }
}
