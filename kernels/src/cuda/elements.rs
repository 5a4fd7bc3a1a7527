//! Arguments of custom ops element by element, so that a region beside the op can take the place of
//! an operand or of a result.
//!
//! The source of a launch with [`Param::Elements`] `N` has `PW_PARAMS_N` among its kernel's
//! parameters and `PW_ELEMENTS_N` as an expression inside of it: what it can `load` at a row and
//! a column from, or `store` at them to, one element or an array of neighbours. Both are macros that
//! are put before the source, for the memory of the argument or for the region. Either way the source
//! is compiled as regions are, so that a value has the same bits in both.

use super::recipe::{LaunchRecipe, OpKernels, Param, TensorBoxes, options};
use super::region::{OfThread, OperandRole};
use super::text::{lane, storage};
use crate::lower::{LowerError, fail};
use piecewise_ir::region::Region;
use piecewise_ir::types::TensorType;
use std::fmt::Write;

/// A region that becomes a part of a custom op's kernels.
#[derive(Clone, Copy, Debug)]
pub struct BesideOp<'a> {
    /// The op's argument that is in no memory then: the operand that is the region's one result, or
    /// the result that it reads. Operands are counted first, then results.
    pub position: usize,
    /// What computes elements of the operand, or takes those of the result.
    pub region: &'a Region,
    /// What each of its operands is.
    pub roles: &'a [OperandRole],
    /// The position of the op's result among its operands, where it is a result of the op.
    pub result: Option<usize>,
}

/// How the elements of an argument are had.
struct Elements {
    /// Goes before the source.
    text: String,
    /// Types of the parameters besides the counts, and whether these follow.
    params: Vec<String>,
    counts: bool,
}

impl OpKernels {
    /// The kernels with these regions in them, and every [`Param::Elements`] replaced, for a call with
    /// such operands and results. Arguments are those of the op that are still in memory, in their
    /// order, then for each region its operands but the op's result, then, where it follows the op,
    /// its results.
    ///
    /// # Errors
    /// When a launch is said to have an argument element by element and its source does not name it,
    /// or needs an argument whole whose place a region takes; or when a region is none whose elements
    /// a thread computes by itself.
    pub fn beside(
        &self,
        operands: &[TensorType],
        results: &[TensorType],
        regions: &[BesideOp<'_>],
    ) -> Result<Self, LowerError> {
        let types = || operands.iter().chain(results).enumerate();
        let kept = |position: usize| regions.iter().all(|region| region.position != position);
        let mut places: Vec<Option<u32>> = Vec::with_capacity(operands.len() + results.len());
        let mut next = 0;
        for (position, _) in types() {
            places.push(kept(position).then_some(next));
            next += u32::from(kept(position));
        }
        let mut elements = Vec::with_capacity(places.len());
        for (position, ty) in types() {
            let found = regions.iter().find(|region| region.position == position);
            elements.push(match (found, position < operands.len()) {
                (Some(region), _) => (Elements::beside(region, ty), 0),
                (None, true) => (Elements::loaded(position, ty), places[position].unwrap_or(0)),
                (None, false) => (Elements::stored(position, ty), places[position].unwrap_or(0)),
            });
        }
        for region in regions {
            let (made, first) = elements.get_mut(region.position).ok_or_else(|| {
                LowerError(format!("argument {} of {}", region.position, places.len()))
            })?;
            *first = next;
            next += made.as_ref().map_err(Clone::clone)?.params.len() as u32;
            let is_element = |launch: &LaunchRecipe| {
                launch.params.contains(&Param::Elements(region.position as u32))
            };
            if !self.launches.iter().any(is_element) {
                return fail(format!(
                    "argument {} is none that a launch has element by element",
                    region.position
                ));
            }
        }
        let replaced = |launch: &LaunchRecipe| replaced(launch, &places, &elements);
        let launches = self.launches.iter().map(replaced).collect::<Result<_, _>>()?;
        Ok(Self { launches, scratch: self.scratch.clone() })
    }
}

/// Options by which arithmetic rounds otherwise than that of a region in a kernel of its own.
const OTHER_ROUNDING: [&str; 5] = ["fast", "fmad", "ftz", "prec-", "Xptxas"];

/// A launch for the new places of its arguments.
fn replaced(
    launch: &LaunchRecipe,
    places: &[Option<u32>],
    elements: &[(Result<Elements, LowerError>, u32)],
) -> Result<LaunchRecipe, LowerError> {
    let place = |arg: u32| match places.get(arg as usize) {
        Some(Some(place)) => Ok(*place),
        Some(None) => fail(format!(
            "`{}` takes argument {arg} whole, or before the launches ahead are done; a region can't \
             take its place",
            launch.entry
        )),
        None => fail(format!("`{}` takes argument {arg} of {}", launch.entry, places.len())),
    };
    let (mut text, mut params) = (String::new(), Vec::with_capacity(launch.params.len()));
    for param in &launch.params {
        match param {
            Param::Arg(arg) => params.push(Param::Arg(place(*arg)?)),
            Param::TensorMap(boxes) => params
                .push(Param::TensorMap(TensorBoxes { arg: place(boxes.arg)?, ..boxes.clone() })),
            Param::Elements(arg) => {
                let Some((made, first)) = elements.get(*arg as usize) else {
                    return place(*arg).map(|_| launch.clone());
                };
                check_names(launch, *arg)?;
                let made = made.as_ref().map_err(Clone::clone)?;
                text.push_str(&made.text);
                params.extend((*first..).take(made.params.len()).map(Param::Arg));
                params.extend(made.counts.then_some(Param::Counts));
            }
            Param::Scratch(_) | Param::Counts | Param::Scalar(_) | Param::Stamps => {
                params.push(param.clone());
            }
        }
    }
    let ahead = launch.ahead.iter().map(|&arg| place(arg)).collect::<Result<_, _>>()?;
    let launch = LaunchRecipe { params, ahead, ..launch.clone() };
    if text.is_empty() {
        return Ok(launch);
    }
    let other = |option: &&String| OTHER_ROUNDING.iter().any(|part| option.contains(part));
    if let Some(option) = launch.options.iter().find(other) {
        return fail(format!(
            "`{}` has an argument element by element and is compiled with `{option}`, by which a \
             region in it would round otherwise than alone; leave the option out",
            launch.entry
        ));
    }
    let more = options().into_iter().filter(|option| !launch.options.contains(option));
    let options = launch.options.iter().cloned().chain(more).collect();
    let source = format!("#include \"prelude.cuh\"\n{text}{}", launch.source);
    Ok(LaunchRecipe { source, options, ..launch })
}

/// That the source of a launch has an argument as its recipe says.
fn check_names(launch: &LaunchRecipe, arg: u32) -> Result<(), LowerError> {
    for name in [format!("PW_PARAMS_{arg}"), format!("PW_ELEMENTS_{arg}")] {
        let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
        if !launch.source.split(|c| !is_word(c)).any(|word| word == name) {
            return fail(format!(
                "`{}` is said to have argument {arg} element by element, but its source does not \
                 name `{name}`; load or store it through that, or say `Param::Arg({arg})`",
                launch.entry
            ));
        }
    }
    Ok(())
}

impl Elements {
    /// Those of an operand in memory.
    fn loaded(position: usize, ty: &TensorType) -> Result<Self, LowerError> {
        let (columns, lane) = (columns(position, ty)?, lane(ty.dtype));
        let (stored, piece) = (storage(ty.dtype), piece(ty, columns));
        let members = format!(
            "  DEVICE {lane} load(u32 row, u32 column) const {{ return widen(a0[(u64)row * {columns}ull + column]); }}\n  \
             template <int W> DEVICE void load(u32 row, u32 column, {lane} (&to)[W]) const {{\n    \
             Pack<{stored}, W> from;\n    \
             ::load<{piece}>(from, a0 + (u64)row * {columns}ull + column);\n    \
             for (int v = 0; v < W; ++v) to[v] = widen(from.at[v]);\n  }}\n"
        );
        let pointer = format!("const {stored}*");
        Ok(Self::text(position, "", vec![pointer], false, &members))
    }

    /// Those of a result in memory.
    fn stored(position: usize, ty: &TensorType) -> Result<Self, LowerError> {
        let (columns, lane) = (columns(position, ty)?, lane(ty.dtype));
        let (stored, piece) = (storage(ty.dtype), piece(ty, columns));
        let members = format!(
            "  DEVICE void store(u32 row, u32 column, {lane} value) const {{ narrow(a0[(u64)row * {columns}ull + column], value); }}\n  \
             template <int W> DEVICE void store(u32 row, u32 column, const {lane} (&from)[W]) const {{\n    \
             Pack<{stored}, W> to;\n    \
             for (int v = 0; v < W; ++v) narrow(to.at[v], from[v]);\n    \
             ::store<{piece}>(a0 + (u64)row * {columns}ull + column, to);\n  }}\n"
        );
        let pointer = format!("{stored}*");
        Ok(Self::text(position, "", vec![pointer], false, &members))
    }

    /// Those of an argument whose place a region takes.
    fn beside(beside: &BesideOp<'_>, ty: &TensorType) -> Result<Self, LowerError> {
        let BesideOp { position, region, roles, result } = *beside;
        let columns = columns(position, ty)?;
        let (stored, lane) = (storage(ty.dtype), lane(ty.dtype));
        match result {
            None => {
                let OfThread { text, arguments } = OfThread::before(region, roles)?;
                let members = format!(
                    "  DEVICE {lane} load(u32 row, u32 column) const {{\n    Before before;\n    \
                     return before.load({}counts, row, column);\n  }}\n  \
                     template <int W> DEVICE void load(u32 row, u32 column, {lane} (&to)[W]) const {{\n    \
                     for (int v = 0; v < W; ++v) to[v] = load(row, column + v);\n  }}\n",
                    names(&arguments)
                );
                Ok(Self::text(position, &text, arguments, true, &members))
            }
            Some(product) => {
                let OfThread { text, arguments } =
                    OfThread::after(region, roles, product, [columns, 1])?;
                let list = names(&arguments);
                let members = format!(
                    "  DEVICE void store(u32 row, u32 column, {lane} value) const {{\n    After after;\n    \
                     after.ahead({list}row, column);\n    {stored} rounded;\n    \
                     narrow(rounded, value);\n    \
                     after.store({list}counts, row, column, widen(rounded));\n  }}\n  \
                     template <int W> DEVICE void store(u32 row, u32 column, const {lane} (&from)[W]) const {{\n    \
                     for (int v = 0; v < W; ++v) store(row, column + v, from[v]);\n  }}\n"
                );
                Ok(Self::text(position, &text, arguments, true, &members))
            }
        }
    }

    fn text(
        position: usize,
        region: &str,
        params: Vec<String>,
        counts: bool,
        members: &str,
    ) -> Self {
        let mut text = format!("namespace elements_{position} {{\n{region}struct Elements {{\n");
        let named: Vec<(String, String)> =
            (0..).zip(&params).map(|(i, ty)| (ty.clone(), format!("a{i}"))).collect();
        let counted = counts.then(|| ("const i32*".to_owned(), "counts".to_owned()));
        let all: Vec<(String, String)> = named.into_iter().chain(counted).collect();
        for (ty, name) in &all {
            let _ = writeln!(text, "  {ty} {name};");
        }
        let list = |of: &dyn Fn(&(String, String)) -> String| {
            all.iter().map(of).collect::<Vec<_>>().join(", ")
        };
        let declared = list(&|(ty, name)| format!("{ty} e{position}_{name}"));
        let given = list(&|(_, name)| format!("e{position}_{name}"));
        let _ = write!(
            text,
            "{members}}};\n}}\n#define PW_PARAMS_{position} {declared}\n\
             #define PW_ELEMENTS_{position} elements_{position}::Elements{{{given}}}\n\n"
        );
        Self { text, params, counts }
    }
}

/// The names of so many members, each with a comma after it.
fn names(params: &[String]) -> String {
    (0..params.len()).map(|i| format!("a{i}, ")).collect()
}

/// Bytes that move at once of `W` neighbours, a power of two, from a column on that is a multiple of
/// it: an expression of `W`.
fn piece(ty: &TensorType, columns: u64) -> String {
    let size = ty.dtype.size();
    format!("({columns} % W != 0 ? {size} : W * {size} < 16 ? W * {size} : 16)")
}

/// Elements of a row.
fn columns(position: usize, ty: &TensorType) -> Result<u64, LowerError> {
    let elements = Some(ty).filter(|ty| ty.rank() > 0).and_then(|ty| ty.row().static_elements());
    elements.ok_or_else(|| {
        LowerError(format!("argument {position} has no rows of one length; take it whole"))
    })
}
