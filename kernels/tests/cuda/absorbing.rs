//! A product with what is absorbed into it, run on the host and compared with the reference evaluator.

use crate::emulate::{Case, emulate, floats};
use crate::values::evaluate;
use piecewise_ir::dtype::DType::{self, BF16, E4M3, F16, F32, I4, I32};
use piecewise_ir::entity::{Entity, Node, Value};
use piecewise_ir::graph::{Graph, ValueDef};
use piecewise_ir::literal::Scalar;
use piecewise_ir::op::Op;
use piecewise_kernels::cuda::{
    AfterProduct, BeforeProduct, LaunchRecipe, MatMulSpec, OperandRole, PartParam, RegionPart,
    RingForm,
};
use piecewise_kernels::lower::LowerError;

/// A region's part and the values that its parameters are.
pub(crate) struct Part {
    pub(crate) part: RegionPart,
    pub(crate) operands: Vec<Value>,
    pub(crate) results: Vec<Value>,
}

impl Part {
    pub(crate) fn of(graph: &Graph, node: Node, wanted: &[usize], given: &[usize]) -> Option<Self> {
        let data = graph.node(node);
        let Op::Region(region) = &data.op else { return None };
        let part = RegionPart::of(region, wanted, given).ok()?;
        let value = |param: &PartParam| match *param {
            PartParam::Operand(i) => data.operands[i],
            PartParam::Result(i) => data.results[i],
        };
        let operands = part.params.iter().map(value).collect();
        let results = wanted.iter().map(|&i| data.results[i]).collect();
        Some(Self { part, operands, results })
    }

    pub(crate) fn roles(&self, graph: &Graph) -> Vec<OperandRole> {
        let role = |&value: &Value| OperandRole {
            state: matches!(graph.def(value), ValueDef::State(_)),
            weight: matches!(graph.def(value), ValueDef::Weight(_)),
            staged: false,
        };
        self.operands.iter().map(role).collect()
    }
}

/// A product with what is absorbed into it.
pub(crate) struct Absorbing<'a> {
    pub(crate) graph: &'a Graph,
    pub(crate) matmul: Node,
    pub(crate) before: Option<Part>,
    pub(crate) after: Option<Part>,
}

impl<'a> Absorbing<'a> {
    /// The product's regions: what makes its left operand, and the results `after` of what reads
    /// it. What the region before makes besides is in memory.
    pub(crate) fn of(
        graph: &'a Graph,
        matmul: Node,
        before: bool,
        after: &[usize],
    ) -> Option<Self> {
        let data = graph.node(matmul);
        let left = data.operands[0];
        let made = graph.defining_node(left).filter(|_| before).map(|node| {
            let results = &graph.node(node).results;
            let position = results.iter().position(|&v| v == left).unwrap();
            let others: Vec<_> = (0..results.len()).filter(|&i| i != position).collect();
            Part::of(graph, node, &[position], &others)
        });
        let made = match made {
            Some(None) => return None,
            made => made.flatten(),
        };
        let reader = graph.nodes().find(|&n| graph.node(n).operands.contains(&data.results[0]));
        let read = match after {
            [] => None,
            after => {
                let part = Part::of(graph, reader?, after, &[])?;
                Some(part).filter(|part| part.operands.contains(&data.results[0]))
            }
        };
        Some(Self { graph, matmul, before: made, after: read })
    }

    pub(crate) fn kernel(&self, rows: u64) -> Result<LaunchRecipe, LowerError> {
        self.with(|spec, before, after| spec.absorbing_kernel(rows, before, after))
    }

    pub(crate) fn ring(&self, rows: u64, form: RingForm) -> Result<LaunchRecipe, LowerError> {
        self.with(|spec, before, after| spec.ring_kernel(rows, before, after, form))
    }

    pub(crate) fn with<T>(
        &self,
        make: impl Fn(
            MatMulSpec,
            Option<BeforeProduct<'_>>,
            Option<AfterProduct<'_>>,
        ) -> Result<T, LowerError>,
    ) -> Result<T, LowerError> {
        let types = self.graph.operand_types(self.matmul);
        let out = &self.graph.result_types(self.matmul)[0];
        let spec = match self.graph.node(self.matmul).op {
            Op::MatMul { transpose_lhs, transpose_rhs } => {
                MatMulSpec::new(transpose_lhs, transpose_rhs, &types[0], &types[1], out)?
            }
            Op::ScaledMatMul { block } => MatMulSpec::scaled(block, &types, out)?,
            _ => return Err(LowerError("no product".to_owned())),
        };
        let [before, after] = [&self.before, &self.after]
            .map(|part| part.as_ref().map(|p| (p, &p.part.region, p.roles(self.graph))));
        let before = before.as_ref().map(|(_, region, roles)| BeforeProduct { region, roles });
        let product = self.graph.node(self.matmul).results[0];
        let after = after.as_ref().map(|(part, region, roles)| AfterProduct {
            region,
            roles,
            product: part.operands.iter().position(|&v| v == product).unwrap_or(usize::MAX),
        });
        make(spec.of_weight(), before, after)
    }

    /// Arguments of the kernel, and the results among them.
    pub(crate) fn values(&self) -> (Vec<Value>, Vec<Value>) {
        let data = self.graph.node(self.matmul);
        let mut values = match &self.before {
            Some(part) => part.operands.clone(),
            None => vec![data.operands[0]],
        };
        values.extend(&data.operands[1..]);
        let results = match &self.after {
            Some(part) => {
                values.extend(part.operands.iter().filter(|&&v| v != data.results[0]));
                part.results.clone()
            }
            None => data.results.clone(),
        };
        values.extend(&results);
        (values, results)
    }
}

/// The elements in memory.
pub(crate) fn bytes(dtype: DType, data: &[f64]) -> Vec<u8> {
    let element = |&x: &f64| -> Vec<u8> {
        match dtype {
            F32 => (x as f32).to_ne_bytes().to_vec(),
            BF16 => half::bf16::from_f64(x).to_bits().to_ne_bytes().to_vec(),
            F16 => half::f16::from_f64(x).to_bits().to_ne_bytes().to_vec(),
            I32 => (x as i32).to_ne_bytes().to_vec(),
            E4M3 => vec![Scalar::new(dtype, x).bits() as u8],
            other => panic!("no {other} here"),
        }
    };
    if dtype == I4 {
        let code = |x: f64| x as i8 as u8 & 15;
        return data.chunks(2).map(|two| code(two[0]) | code(two[1]) << 4).collect();
    }
    data.iter().flat_map(element).collect()
}

/// Runs the streaming kernel at `rows` rows of which `real` are real, and compares its results.
pub(crate) fn check(name: &str, absorbing: &Absorbing<'_>, rows: u64, real: u64, seed: u64) {
    check_kernel(name, absorbing, absorbing.kernel(rows).unwrap(), [rows, real], seed);
}

pub(crate) fn check_kernel(
    name: &str,
    absorbing: &Absorbing<'_>,
    kernel: LaunchRecipe,
    [rows, real]: [u64; 2],
    seed: u64,
) {
    let graph = absorbing.graph;
    let (arguments, results) = absorbing.values();
    let sizes = vec![rows; graph.symbols().len()];
    let values = evaluate(graph, &vec![real; sizes.len()], seed);
    let memory = |&value: &Value| {
        let ty = graph.ty(value);
        let all = ty.bytes(&sizes) as usize;
        let array = values[value.index()].as_ref().unwrap();
        let mut held = if results.contains(&value) { vec![] } else { bytes(ty.dtype, &array.data) };
        // Floats of padding rows, and what is not written, are NaNs.
        held.resize(all, 0xff);
        held
    };
    let case = Case {
        launches: vec![kernel],
        args: arguments.iter().map(memory).collect(),
        sizes: sizes.clone(),
        counts: vec![real as i32; sizes.len()],
        scratch: 256,
    };
    let got = emulate(name, &case);
    for (value, got) in arguments.iter().zip(&got) {
        if !results.contains(value) {
            continue;
        }
        let ty = graph.ty(*value);
        let expected = &values[value.index()].as_ref().unwrap().data;
        let (made, padding) = got.split_at(expected.len() * ty.dtype.size());
        assert!(padding.iter().all(|&b| b == 0xff), "{name}: {value} has padding rows");
        let made = floats(ty.dtype, made);
        let norm = |x: &mut dyn Iterator<Item = f64>| x.map(|x| x * x).sum::<f64>().sqrt();
        let error = norm(&mut made.iter().zip(expected).map(|(a, b)| a - b));
        let limit = match ty.dtype {
            F32 => 1e-5,
            F16 => 2e-3,
            _ => 1e-2,
        };
        let size = norm(&mut expected.iter().copied());
        assert!(error <= limit * size, "{name}: {value} is off by {error:e} of {size:e}");
    }
}
