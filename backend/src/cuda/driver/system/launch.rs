//! A kernel launch and the maps among its parameters in the driver's terms.

// A new op or dtype must not compile before it is here.
#![warn(clippy::wildcard_enum_match_arm)]

use super::{SystemDriver, pointer};
use crate::cuda::driver::{KernelLaunch, Outcome, TensorMap};
use cudarc::driver::sys as cu;
use piecewise_ir::dtype::DType;
use piecewise_kernels::op::cuda::TensorBoxes;
use smallvec::SmallVec;
use std::ffi::{c_uint, c_void};
use std::ptr::null_mut;

/// Bytes of each row of a box.
const BOX_BYTES: u64 = 128;

impl SystemDriver {
    pub(super) fn encode_boxes(
        &self,
        address: u64,
        boxes: &TensorBoxes,
        rows: u64,
    ) -> Outcome<TensorMap> {
        use cu::CUtensorMapDataType as Type;
        let dtype = match boxes.dtype {
            DType::F16 => Type::CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
            DType::BF16 => Type::CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
            DType::F32 => Type::CU_TENSOR_MAP_DATA_TYPE_FLOAT32,
            DType::I32 => Type::CU_TENSOR_MAP_DATA_TYPE_INT32,
            DType::I64 => Type::CU_TENSOR_MAP_DATA_TYPE_INT64,
            DType::U8 | DType::Bool | DType::E4M3 | DType::I4 => {
                Type::CU_TENSOR_MAP_DATA_TYPE_UINT8
            }
        };
        let size = boxes.dtype.size() as u64;
        let mut map = cu::CUtensorMap { opaque: [0; 16] };
        let of_slice = BOX_BYTES / size;
        let several = boxes.box_slices > 1;
        let first = if several { of_slice } else { boxes.columns };
        call!(
            self,
            cuTensorMapEncodeTiled(
                &mut map,
                dtype,
                if several { 3 } else { 2 },
                pointer(address),
                [first, rows, boxes.columns / of_slice].as_ptr(),
                [boxes.columns * size, BOX_BYTES].as_ptr(),
                [of_slice as u32, boxes.box_rows, boxes.box_slices].as_ptr(),
                [1, 1, 1].as_ptr(),
                cu::CUtensorMapInterleave::CU_TENSOR_MAP_INTERLEAVE_NONE,
                cu::CUtensorMapSwizzle::CU_TENSOR_MAP_SWIZZLE_128B,
                cu::CUtensorMapL2promotion::CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                cu::CUtensorMapFloatOOBfill::CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
            )
        )?;
        Ok(TensorMap(map.opaque))
    }

    pub(super) fn launch_kernel(&self, launch: &KernelLaunch<'_>) -> Outcome<()> {
        let mut attributes: SmallVec<[cu::CUlaunchAttribute; 2]> = SmallVec::new();
        let mut attribute = |id, value| {
            attributes.push(cu::CUlaunchAttribute { id, pad: [0; 4], value });
        };
        let blank = || cu::CUlaunchAttributeValue { pad: [0; 64] };
        if launch.programmatic {
            let mut value = blank();
            value.programmaticStreamSerializationAllowed = 1;
            attribute(
                cu::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
                value,
            );
        }
        if launch.cluster != [1; 3] {
            let [x, y, z] = launch.cluster;
            let mut value = blank();
            value.clusterDim = cu::CUlaunchAttributeValue_union__bindgen_ty_1 { x, y, z };
            attribute(cu::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION, value);
        }
        let config = cu::CUlaunchConfig {
            gridDimX: launch.grid[0],
            gridDimY: launch.grid[1],
            gridDimZ: launch.grid[2],
            blockDimX: launch.block[0],
            blockDimY: launch.block[1],
            blockDimZ: launch.block[2],
            sharedMemBytes: launch.shared_bytes,
            hStream: pointer(launch.stream),
            attrs: if attributes.is_empty() { null_mut() } else { attributes.as_mut_ptr() },
            numAttrs: attributes.len() as c_uint,
        };
        let mut parameters = parameters(launch);
        call!(
            self,
            cuLaunchKernelEx(
                &config,
                pointer(launch.function),
                parameters.as_mut_ptr(),
                null_mut()
            )
        )
    }

    /// Sets a node of an executable graph to a launch. The driver copies the parameters.
    pub(super) fn set_kernel_node(
        &self,
        exec: cu::CUgraphExec,
        node: cu::CUgraphNode,
        launch: &KernelLaunch<'_>,
    ) -> Outcome<()> {
        let mut parameters = parameters(launch);
        let of_node = cu::CUDA_KERNEL_NODE_PARAMS {
            func: pointer(launch.function),
            gridDimX: launch.grid[0],
            gridDimY: launch.grid[1],
            gridDimZ: launch.grid[2],
            blockDimX: launch.block[0],
            blockDimY: launch.block[1],
            blockDimZ: launch.block[2],
            sharedMemBytes: launch.shared_bytes,
            kernelParams: parameters.as_mut_ptr(),
            extra: null_mut(),
            // No other than the function, in the context that is current.
            kern: null_mut(),
            ctx: null_mut(),
        };
        call!(self, cuGraphExecKernelNodeSetParams_v2(exec, node, &of_node))
    }
}

/// Where the driver finds each parameter of a launch. It reads as many bytes there as the kernel declares:
/// the low half of a number on the little-endian machines that CUDA runs on.
fn parameters(launch: &KernelLaunch<'_>) -> SmallVec<[*mut c_void; 32]> {
    let values = launch.parameters.iter();
    let mut parameters: SmallVec<[*mut c_void; 32]> =
        values.map(|value| std::ptr::from_ref(value).cast_mut().cast()).collect();
    for (position, map) in launch.maps {
        parameters[*position] = std::ptr::from_ref(map).cast_mut().cast();
    }
    parameters
}
