//! Custom ops with the regions beside them in their kernels.
//!
//! The source of a launch with [`Param::Elements`] `N` has `PW_PARAMS_N` among its kernel's
//! parameters and `PW_ELEMENTS_N` as an expression inside of it: what it can `load` at a row and
//! a column from, or `store` at them to, one element or an array of neighbours. With [`Param::Rows`]
//! `N` the expression is `PW_ROWS_N`, whose `row` gives a block a row that it can read. All are macros
//! that are put before the source, for the memory of the argument or for the region. Either way the
//! source is compiled as regions are, so that an element has the same bits in both; so has a row, where
//! the block has as many threads as the region's own kernel has for it.

mod argument;
mod elements;
mod rows;

use crate::lower::{LowerError, fail};
use crate::op::cuda::{LaunchRecipe, OpKernels, OperandRole, Param, TensorBoxes};
use crate::op::options;
use argument::Argument;
use piecewise_ir::region::Region;
use piecewise_ir::types::TensorType;

/// A region that becomes a part of a custom op's kernels.
#[derive(Clone, Copy, Debug)]
pub struct BesideOp<'a> {
    /// The op's argument that is in no memory then: the operand that is the region's one result, or
    /// the result that it reads. Operands are counted first, then results.
    pub position: usize,
    /// What computes elements or rows of the operand, or takes elements of the result.
    pub region: &'a Region,
    /// What each of its operands is.
    pub roles: &'a [OperandRole],
    /// The position of the op's result among its operands, where it is a result of the op.
    pub result: Option<usize>,
}

impl BesideOp<'_> {
    /// How many arguments of its own a launch has for it: its operands but the op's result, and its
    /// results where they are not the op's operand.
    fn arguments(&self) -> u32 {
        (self.region.params.len() + self.region.body.outputs().len()).saturating_sub(1) as u32
    }
}

/// An argument of the op, and what a launch has in its place.
struct Place<'a> {
    position: usize,
    ty: &'a TensorType,
    is_operand: bool,
    region: Option<&'a BesideOp<'a>>,
    /// The argument of the launch that it is, or the first of its region's.
    first: u32,
}

impl OpKernels {
    /// The kernels with these regions in them, and every [`Param::Elements`] and [`Param::Rows`]
    /// replaced, for a call with such operands and results. Arguments are those of the op that are
    /// still in memory, in their order, then for each region its operands but the op's result, then,
    /// where it follows the op, its results.
    ///
    /// # Errors
    /// When a launch is said to have an argument by elements or rows and its source does not name it,
    /// or needs an argument whole whose place a region takes; or when a region is none whose elements
    /// a thread, or whose rows a block computes by itself.
    pub fn beside(
        &self,
        operands: &[TensorType],
        results: &[TensorType],
        regions: &[BesideOp<'_>],
    ) -> Result<Self, LowerError> {
        let region = |position| regions.iter().find(|region| region.position == position);
        let mut next = 0;
        let mut places: Vec<Place<'_>> = Vec::with_capacity(operands.len() + results.len());
        for (position, ty) in operands.iter().chain(results).enumerate() {
            let (is_operand, region) = (position < operands.len(), region(position));
            places.push(Place { position, ty, is_operand, region, first: next });
            next += u32::from(region.is_none());
        }
        for region in regions {
            let count = places.len();
            let place = places
                .get_mut(region.position)
                .ok_or_else(|| LowerError(format!("argument {} of {count}", region.position)))?;
            place.first = next;
            next += region.arguments();
            let position = region.position as u32;
            let is_taken = |param: &Param| match param {
                Param::Elements(arg) | Param::Rows(arg) => *arg == position,
                Param::Arg(_) | Param::TensorMap(_) | Param::Scratch(_) | Param::Counts => false,
                Param::Scalar(_) | Param::Stamps => false,
            };
            if !self.launches.iter().any(|launch| launch.params.iter().any(is_taken)) {
                return fail(format!(
                    "argument {position} is none that a launch has element by element or row by row"
                ));
            }
        }
        let replaced = |launch: &LaunchRecipe| replaced(launch, &places);
        let launches = self.launches.iter().map(replaced).collect::<Result<_, _>>()?;
        Ok(Self { launches, scratch: self.scratch.clone() })
    }
}

/// Options by which arithmetic rounds otherwise than that of a region in a kernel of its own.
const OTHER_ROUNDING: [&str; 5] = ["fast", "fmad", "ftz", "prec-", "Xptxas"];

/// A launch for the new places of its arguments.
fn replaced(launch: &LaunchRecipe, places: &[Place<'_>]) -> Result<LaunchRecipe, LowerError> {
    let at = |arg: u32| {
        places.get(arg as usize).ok_or_else(|| {
            LowerError(format!("`{}` takes argument {arg} of {}", launch.entry, places.len()))
        })
    };
    let whole = |arg: u32| match at(arg)? {
        Place { region: None, first, .. } => Ok(*first),
        _ => fail(format!(
            "`{}` takes argument {arg} whole, or before the launches ahead are done; a region can't \
             take its place",
            launch.entry
        )),
    };
    let (mut text, mut params) = (String::new(), Vec::with_capacity(launch.params.len()));
    let mut shared = launch.dynamic_shared;
    for param in &launch.params {
        let made = match param {
            Param::Arg(arg) => {
                params.push(Param::Arg(whole(*arg)?));
                continue;
            }
            Param::TensorMap(boxes) => {
                let arg = whole(boxes.arg)?;
                params.push(Param::TensorMap(TensorBoxes { arg, ..boxes.clone() }));
                continue;
            }
            Param::Scratch(_) | Param::Counts | Param::Scalar(_) | Param::Stamps => {
                params.push(param.clone());
                continue;
            }
            Param::Elements(arg) => {
                let place = at(*arg)?;
                check_names(launch, place, "ELEMENTS", "element by element")?;
                (Argument::elements(place)?, place)
            }
            Param::Rows(arg) => {
                if launch.params.contains(&Param::Elements(*arg)) {
                    return fail(format!(
                        "`{}` has argument {arg} by elements and by rows; say one of both",
                        launch.entry
                    ));
                }
                let place = at(*arg)?;
                check_names(launch, place, "ROWS", "row by row")?;
                (Argument::rows(place, launch, shared)?, place)
            }
        };
        let (made, place) = made;
        text.push_str(&made.text);
        shared += made.shared;
        params.extend((place.first..).take(made.params.len()).map(Param::Arg));
        params.extend(made.counts.then_some(Param::Counts));
    }
    let ahead = launch.ahead.iter().map(|&arg| whole(arg)).collect::<Result<_, _>>()?;
    let launch = LaunchRecipe { params, ahead, dynamic_shared: shared, ..launch.clone() };
    if text.is_empty() {
        return Ok(launch);
    }
    let other = |option: &&String| OTHER_ROUNDING.iter().any(|part| option.contains(part));
    if let Some(option) = launch.options.iter().find(other) {
        return fail(format!(
            "`{}` has an argument by elements or rows and is compiled with `{option}`, by which a \
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
fn check_names(
    launch: &LaunchRecipe,
    place: &Place<'_>,
    name: &str,
    how: &str,
) -> Result<(), LowerError> {
    let arg = place.position;
    for name in [format!("PW_PARAMS_{arg}"), format!("PW_{name}_{arg}")] {
        let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
        if !launch.source.split(|c| !is_word(c)).any(|word| word == name) {
            return fail(format!(
                "`{}` is said to have argument {arg} {how}, but its source does not name `{name}`; \
                 have it through that, or say `Param::Arg({arg})`",
                launch.entry
            ));
        }
    }
    Ok(())
}
