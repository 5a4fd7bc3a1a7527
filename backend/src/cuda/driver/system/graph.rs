//! What a captured graph consists of, and the node of what is captured now.

use super::SystemDriver;
use crate::cuda::driver::{GraphEdge, GraphNode, Outcome};
use cudarc::driver::sys as cu;
use std::ffi::{CStr, c_uchar, c_uint};
use std::mem::MaybeUninit;
use std::ptr::{null, null_mut};

impl SystemDriver {
    pub(super) fn nodes_of(&self, graph: cu::CUgraph) -> Outcome<Vec<GraphNode>> {
        self.node_handles(graph)?.into_iter().map(|node| self.node(node)).collect()
    }

    pub(super) fn edges_of(&self, graph: cu::CUgraph) -> Outcome<Vec<GraphEdge>> {
        let nodes = self.node_handles(graph)?;
        let index: rustc_hash::FxHashMap<_, _> =
            nodes.iter().enumerate().map(|(i, node)| (node.addr(), i)).collect();
        let mut count = 0;
        // Without a place for edge data, the driver refuses graphs with programmatic edges.
        call!(self, cuGraphGetEdges_v2(graph, null_mut(), null_mut(), null_mut(), &mut count))?;
        let blank = cu::CUgraphEdgeData { from_port: 0, to_port: 0, type_: 0, reserved: [0; 5] };
        let (mut from, mut to) = (vec![null_mut(); count], vec![null_mut(); count]);
        let mut data = vec![blank; count];
        if count > 0 {
            call!(
                self,
                cuGraphGetEdges_v2(
                    graph,
                    from.as_mut_ptr(),
                    to.as_mut_ptr(),
                    data.as_mut_ptr(),
                    &mut count
                )
            )?;
        }
        let programmatic =
            cu::CUgraphDependencyType::CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC as c_uchar;
        let edges = from.iter().zip(&to).zip(&data).take(count);
        Ok(edges
            .filter_map(|((from, to), data)| {
                Some(GraphEdge {
                    from: *index.get(&from.addr())?,
                    to: *index.get(&to.addr())?,
                    programmatic: data.type_ == programmatic,
                })
            })
            .collect())
    }

    /// The node that what is enqueued next would depend on. Where that is not one node, an error is made of
    /// what the driver says for an object that is not there.
    pub(super) fn last_captured(&self, stream: cu::CUstream) -> Outcome<cu::CUgraphNode> {
        let (mut status, mut id, mut graph): (c_uint, _, _) = (0, 0, null_mut());
        let (mut nodes, mut edges, mut count) = (null(), null(), 0);
        call!(
            self,
            cuStreamGetCaptureInfo_v3(
                stream,
                (&raw mut status).cast(),
                &mut id,
                &mut graph,
                &mut nodes,
                &mut edges,
                &mut count
            )
        )?;
        if count != 1 || nodes.is_null() {
            let code = cu::CUresult::CUDA_ERROR_NOT_FOUND as c_uint;
            return Err(self.error("cuStreamGetCaptureInfo_v3", code));
        }
        // SAFETY: the call succeeded, and says that there is one node; the list is the driver's own until
        // the next call on the stream, and is read before that.
        Ok(unsafe { *nodes })
    }

    fn node(&self, node: cu::CUgraphNode) -> Outcome<GraphNode> {
        let mut kind: c_uint = 0;
        // The type is written as a number: a newer driver may have types that the enum lacks.
        call!(self, cuGraphNodeGetType(node, (&raw mut kind).cast()))?;
        use cu::CUgraphNodeType as Type;
        let is = |ty: Type| kind == ty as c_uint;
        if is(Type::CU_GRAPH_NODE_TYPE_KERNEL) {
            return self.kernel_node(node);
        }
        if is(Type::CU_GRAPH_NODE_TYPE_GRAPH) {
            let mut child = null_mut();
            call!(self, cuGraphChildGraphNodeGetGraph(node, &mut child))?;
            return Ok(GraphNode::Child(self.nodes_of(child)?));
        }
        Ok(match () {
            () if is(Type::CU_GRAPH_NODE_TYPE_MEMCPY) => GraphNode::MemoryCopy,
            () if is(Type::CU_GRAPH_NODE_TYPE_MEMSET) => GraphNode::MemorySet,
            () if is(Type::CU_GRAPH_NODE_TYPE_HOST) => GraphNode::Host,
            () if is(Type::CU_GRAPH_NODE_TYPE_EMPTY) => GraphNode::Empty,
            () if is(Type::CU_GRAPH_NODE_TYPE_MEM_ALLOC) => GraphNode::Allocation,
            () if is(Type::CU_GRAPH_NODE_TYPE_MEM_FREE) => GraphNode::Free,
            () => GraphNode::Other(kind),
        })
    }

    fn kernel_node(&self, node: cu::CUgraphNode) -> Outcome<GraphNode> {
        let mut params = MaybeUninit::<cu::CUDA_KERNEL_NODE_PARAMS>::zeroed();
        call!(self, cuGraphKernelNodeGetParams_v2(node, params.as_mut_ptr()))?;
        // SAFETY: the call succeeded, and every bit pattern of the struct is a value.
        let params = unsafe { params.assume_init() };
        let mut name = null();
        // A library's kernel may have a context-free handle instead of a function.
        let named = !params.func.is_null()
            && call!(self, cuFuncGetName(&mut name, params.func)).is_ok()
            && !name.is_null();
        let name = match named {
            // SAFETY: the name ends with NUL and lives as long as its module.
            true => unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned(),
            false => "a library's kernel".to_owned(),
        };
        let grid = [params.gridDimX, params.gridDimY, params.gridDimZ];
        let block = [params.blockDimX, params.blockDimY, params.blockDimZ];
        Ok(GraphNode::Kernel { name, grid, block })
    }

    fn node_handles(&self, graph: cu::CUgraph) -> Outcome<Vec<cu::CUgraphNode>> {
        let mut count = 0;
        call!(self, cuGraphGetNodes(graph, null_mut(), &mut count))?;
        let mut nodes = vec![null_mut(); count];
        if count > 0 {
            call!(self, cuGraphGetNodes(graph, nodes.as_mut_ptr(), &mut count))?;
        }
        nodes.truncate(count);
        Ok(nodes)
    }
}
