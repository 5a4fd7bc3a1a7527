//! What every backend does first to bind an artifact: it holds artifact and binding against each
//! other and resolves the arguments of launches to addresses.

use crate::artifact::{Access, Arg, ArgRef, Artifact, Digest, Launch};
use crate::device::{Address, Binding, BoundAddress, BoundTo, DeviceError};
use piecewise_ir::entity::{Entity, Value};
use piecewise_ir::graph::ValueDef;
use piecewise_ir::types::TensorType;
use piecewise_kernels::step::CaptureSupport;
use rustc_hash::FxHashMap;
use std::sync::Arc;

/// Decoded images by digest, so that layers and sizes share them.
pub(crate) type Images<T> = FxHashMap<Digest, Arc<T>>;

/// An artifact and a binding that fit each other.
pub(crate) struct Fit<'a> {
    pub(crate) artifact: &'a Artifact,
    pub(crate) binding: &'a Binding<'a>,
    /// Bytes of scratch that the ways taken need.
    pub(crate) scratch: u64,
    /// The largest size of each symbol that may run.
    pub(crate) limits: Arc<[u64]>,
    pub(crate) label: Arc<str>,
    launches: Vec<&'a Launch>,
    operands: Vec<Operand<'a>>,
}

struct Operand<'a> {
    name: String,
    ty: &'a TensorType,
    is_state: bool,
    address: Option<Address>,
}

/// Memory that a launch uses.
#[derive(Debug)]
pub(crate) struct Argument {
    pub(crate) what: BoundTo,
    pub(crate) name: String,
    pub(crate) address: Address,
    /// What lies there at the largest sizes.
    pub(crate) bytes: u64,
    pub(crate) access: Access,
    pub(crate) is_state: bool,
}

impl Argument {
    /// That this and `other` share no byte that one of them is there to write.
    pub(crate) fn check_apart(&self, other: &Self) -> Result<(), String> {
        let end = |of: &Self| of.address.0.saturating_add(of.bytes);
        let are_read = [self, other].iter().all(|of| of.access.is_read_alone());
        let is_shared = self.address.0.max(other.address.0) < end(self).min(end(other));
        if are_read || !is_shared {
            return Ok(());
        }
        let named = |of: &Self| format!("{} at {} (+{} bytes)", of.name, of.address, of.bytes);
        Err(format!(
            "{} and {} overlap, and one is written; give each bytes of its own",
            named(other),
            named(self)
        ))
    }
}

impl<'a> Fit<'a> {
    /// `name` is what messages and audits call an operand.
    pub(crate) fn new(
        artifact: &'a Artifact,
        binding: &'a Binding<'a>,
        name: impl Fn(Value) -> String,
    ) -> Result<Self, DeviceError> {
        let fail = |reason: String| DeviceError::Bind { label: binding.label.to_owned(), reason };
        if artifact.piece != binding.piece.hash {
            return Err(fail("the artifact was made for another piece".to_owned()));
        }
        let ways = artifact.chosen(binding.choice).map_err(fail)?;
        let scratch = ways.iter().map(|way| way.scratch).max().unwrap_or(0);
        let has = binding.scratch_bytes;
        if scratch > has {
            return Err(fail(format!("needs {scratch} bytes of scratch, has {has}")));
        }
        let (graph, values) = (&binding.piece.graph, binding.piece.operands());
        if binding.operands.len() != values.len() {
            let (has, needs) = (binding.operands.len(), values.len());
            return Err(fail(format!("{has} addresses for {needs} operands")));
        }
        let (mut limits, symbols) = (binding.bounds.to_vec(), graph.symbols().len());
        if limits.len() < symbols {
            return Err(fail(format!("{} bounds for {symbols} symbols", limits.len())));
        }
        if let Some(over) = binding.piece.over {
            let limit = &mut limits[over.index()];
            *limit = artifact.size.rows().min(*limit);
        }
        let operand = |(value, address): (Value, &Option<Address>)| Operand {
            name: name(value),
            ty: graph.ty(value),
            is_state: matches!(graph.def(value), ValueDef::State(_)),
            address: *address,
        };
        Ok(Self {
            artifact,
            binding,
            scratch,
            limits: limits.into(),
            label: binding.label.into(),
            launches: ways.into_iter().flat_map(|way| &way.launches).collect(),
            operands: values.into_iter().zip(binding.operands).map(operand).collect(),
        })
    }

    /// What `bind` makes of each launch, and in which batches all of them may be captured.
    pub(crate) fn each<T>(
        &self,
        mut bind: impl FnMut(&'a Launch) -> Result<T, String>,
    ) -> Result<(Vec<Arc<T>>, CaptureSupport), DeviceError> {
        let bound = self.launches.iter().map(|launch| {
            let bound = bind(launch).and_then(|bound| self.check_apart(launch).map(|()| bound));
            bound.map(Arc::new).map_err(|reason| DeviceError::Bind {
                label: self.label.to_string(),
                reason: format!("launch `{}`: {reason}", launch.name),
            })
        });
        let support = self.launches.iter().map(|launch| launch.capture).min();
        Ok((bound.collect::<Result<_, _>>()?, support.unwrap_or(CaptureSupport::Always)))
    }

    /// That what a launch writes shares no byte with anything else that it uses: kernels take that for
    /// granted, and so do the references that a custom op is given.
    fn check_apart(&self, launch: &Launch) -> Result<(), String> {
        let implied = [Argument { access: Access::Read, ..self.counts() }, self.whole_scratch()];
        implied[0].check_apart(&implied[1])?;
        let mut used: Vec<Argument> = Vec::new();
        for (i, arg) in launch.args.iter().enumerate() {
            let argument = self.argument(i, arg)?;
            // What lies inside the scratch is held against the rest of it by who computes there.
            let outside = implied.iter().filter(|other| other.what != argument.what);
            outside.chain(&used).try_for_each(|other| argument.check_apart(other))?;
            used.push(argument);
        }
        Ok(())
    }

    /// The image of a launch: a known one, or what `decode` makes of its bytes.
    pub(crate) fn image<T>(
        &self,
        launch: &Launch,
        known: &mut Images<T>,
        decode: impl FnOnce(&[u8]) -> Result<T, String>,
    ) -> Result<Arc<T>, String> {
        if let Some(image) = known.get(&launch.image) {
            return Ok(image.clone());
        }
        let bytes = self.artifact.image(launch.image);
        let bytes = bytes.ok_or_else(|| format!("the artifact lacks image {}", launch.image))?;
        let image = Arc::new(decode(bytes)?);
        known.insert(launch.image, image.clone());
        Ok(image)
    }

    /// An argument of a launch, by its position there.
    pub(crate) fn argument(&self, i: usize, arg: &Arg) -> Result<Argument, String> {
        let access = arg.access;
        match arg.at {
            ArgRef::Operand(position) => {
                let Some(operand) = self.operands.get(position as usize) else {
                    return Err(format!("argument {i} is operand {position}, which is not there"));
                };
                let (name, is_state) = (operand.name.clone(), operand.is_state);
                let Some(address) = operand.address else {
                    return Err(format!("operand {name} has no slot but is used"));
                };
                let (what, bytes) = (BoundTo::Operand(position), operand.ty.bytes(&self.limits));
                Ok(Argument { what, name, address, bytes, access, is_state })
            }
            ArgRef::Scratch { offset, bytes } => {
                let end = offset.checked_add(bytes);
                if end.is_none_or(|end| end > self.scratch) {
                    let has = self.scratch;
                    return Err(format!(
                        "argument {i} is scratch {offset}..+{bytes}, outside its {has} bytes"
                    ));
                }
                let address = self.binding.scratch.offset(offset);
                let (what, name) = (BoundTo::Scratch, format!("scratch+{offset}"));
                Ok(Argument { what, name, address, bytes, access, is_state: false })
            }
        }
    }

    /// The whole scratch of the ways taken.
    pub(crate) fn whole_scratch(&self) -> Argument {
        self.implied(BoundTo::Scratch, "scratch", self.binding.scratch, self.scratch)
    }

    /// The true size of each symbol, an `i32` each.
    pub(crate) fn counts(&self) -> Argument {
        let bytes = 4 * self.binding.piece.graph.symbols().len() as u64;
        self.implied(BoundTo::Counts, "counts", self.binding.counts, bytes)
    }

    fn implied(&self, what: BoundTo, name: &str, address: Address, bytes: u64) -> Argument {
        let (name, access, is_state) = (name.to_owned(), Access::ReadWrite, false);
        Argument { what, name, address, bytes, access, is_state }
    }
}

/// The addresses of captured launches, each with its name and arguments; a program's launches end
/// at its place in `ends`.
pub(crate) fn addresses<'a, A: Iterator<Item = &'a Argument>>(
    launches: impl Iterator<Item = (&'a str, A)>,
    ends: &[usize],
) -> Vec<BoundAddress<'a>> {
    let mut found = Vec::new();
    for (i, (launch, arguments)) in launches.enumerate() {
        let program = ends.partition_point(|&end| end <= i);
        found.extend(arguments.map(|Argument { what, name, address, .. }| BoundAddress {
            program,
            launch,
            what: *what,
            name,
            address: *address,
        }));
    }
    found
}
