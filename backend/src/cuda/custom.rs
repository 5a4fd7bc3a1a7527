//! Custom ops as the CUDA compiler lowers them: each of their implementations is a way.

use super::absorb::role;
use super::alternatives::{Choice, Draft, HeldWays, Way};
use super::compiler::CudaCompiler;
use super::image::{CudaImage, HostImage};
use super::site::Site;
use crate::compiler::{CompileError, Compiler};
use crate::lowering::location;
use piecewise_ir::custom::CustomCall;
use piecewise_kernels::cuda::{BesideOp, LaunchRecipe, OpKernels, OperandRole};
use piecewise_kernels::lower::LowerError;
use piecewise_kernels::op::cuda::{CudaImplementation, CudaOpCall, CudaTarget};
use piecewise_kernels::step::CaptureSupport;

impl CudaCompiler {
    /// A custom op's implementations for a call that may be taken, each with its bytes of scratch.
    pub(super) fn implementations(
        &self,
        site: &Site<'_>,
        call: &CustomCall,
    ) -> Result<(Vec<(CudaImplementation, u64)>, CaptureSupport), CompileError> {
        let graph = &site.piece.graph;
        let Some(op) = self.registry.cuda(&call.name) else {
            return Err(CompileError::Unregistered {
                op: call.name.clone(),
                loc: location(graph, site.node),
                target: self.target(),
            });
        };
        let (operands, results) = (graph.operand_types(site.node), graph.result_types(site.node));
        let number = self.arch().number;
        let values = graph.node(site.node).operands.iter();
        let roles: Vec<OperandRole> = values.map(|&value| role(graph, value)).collect();
        let request = CudaOpCall {
            operands: &operands,
            roles: &roles,
            results: &results,
            attrs: &call.attrs,
            target: CudaTarget { capability: (number / 10, number % 10) },
            sizes: site.limits,
            query_length: site.size.query_length(),
        };
        let unsupported = |reason: String| self.unsupported(site, reason);
        let first = op.implementation(&request).map_err(|e| unsupported(e.to_string()))?;
        let mut found = vec![first];
        if self.held() == HeldWays::All {
            let others = op.other_implementations(&request);
            found.extend(others.map_err(|e| unsupported(e.to_string()))?);
        }
        let scratch = |implementation: &CudaImplementation| match implementation {
            CudaImplementation::Source(kernels) => kernels.scratch.eval(site.limits),
            CudaImplementation::Host => op.scratch_bytes(&request),
        };
        let found = found.into_iter().map(|implementation| {
            let scratch = scratch(&implementation);
            (implementation, scratch)
        });
        Ok((found.collect(), op.capture_support()))
    }

    pub(super) fn custom(
        &self,
        site: &Site<'_>,
        call: &CustomCall,
    ) -> Result<Vec<Choice>, CompileError> {
        let (implementations, capture) = self.implementations(site, call)?;
        let choices = implementations.into_iter().enumerate();
        let choices = choices.map(|(place, (implementation, scratch))| {
            let launches = match implementation {
                CudaImplementation::Source(kernels) => {
                    let kernels = beside(site, &kernels, &[]);
                    let kernels = kernels.map_err(|e| self.unsupported(site, e.to_string()))?;
                    self.launches_of(site, kernels)
                }
                CudaImplementation::Host => vec![(host_draft(site, call), None)],
            };
            Ok(Choice { way: Way::Implementation(place), launches, scratch, capture })
        });
        choices.collect()
    }

    /// Those of a custom op's implementations that take these regions in.
    pub(super) fn custom_beside(
        &self,
        site: &Site<'_>,
        call: &CustomCall,
        regions: &[BesideOp<'_>],
    ) -> Result<Vec<Choice>, CompileError> {
        let (implementations, capture) = self.implementations(site, call)?;
        let choices = implementations.into_iter().enumerate();
        let choices = choices.filter_map(|(place, (implementation, scratch))| {
            let CudaImplementation::Source(kernels) = implementation else { return None };
            let launches = self.launches_of(site, beside(site, &kernels, regions).ok()?);
            Some(Choice { way: Way::Implementation(place), launches, scratch, capture })
        });
        Ok(choices.collect())
    }

    /// A way of which kernels are those of this crate.
    pub(super) fn choice_of(&self, site: &Site<'_>, way: Way, kernels: OpKernels) -> Choice {
        let scratch = kernels.scratch.eval(site.limits);
        let launches = self.launches_of(site, kernels);
        Choice { way, launches, scratch, capture: CaptureSupport::Always }
    }

    /// What an implementation of a custom op launches.
    fn launches_of(&self, site: &Site<'_>, kernels: OpKernels) -> Vec<(Draft, Option<String>)> {
        let several = kernels.launches.len() > 1;
        let launch = |recipe: LaunchRecipe| {
            let part = several.then(|| recipe.entry.clone());
            (self.kernel(site, recipe), part)
        };
        kernels.launches.into_iter().map(launch).collect()
    }
}

/// The kernels of a custom op with regions in them.
fn beside(
    site: &Site<'_>,
    kernels: &OpKernels,
    regions: &[BesideOp<'_>],
) -> Result<OpKernels, LowerError> {
    let graph = &site.piece.graph;
    kernels.beside(&graph.operand_types(site.node), &graph.result_types(site.node), regions)
}

fn host_draft(site: &Site<'_>, call: &CustomCall) -> Draft {
    let graph = &site.piece.graph;
    let (operands, results) = (graph.operand_types(site.node), graph.result_types(site.node));
    let types = operands.into_iter().chain(results).collect();
    let image = HostImage { name: call.name.clone(), attrs: call.attrs.clone(), types };
    Draft::Ready(CudaImage::Host(image))
}
