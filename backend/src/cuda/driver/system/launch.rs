//! A kernel launch in the driver's terms.

use super::{SystemDriver, pointer};
use crate::cuda::driver::{KernelLaunch, Outcome};
use cudarc::driver::sys as cu;
use smallvec::SmallVec;
use std::ffi::{c_uint, c_void};
use std::ptr::null_mut;

impl SystemDriver {
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
        // The driver reads as many bytes at each pointer as the kernel declares: the low half of a
        // number on the little-endian machines that CUDA runs on.
        let mut parameters: SmallVec<[*mut c_void; 32]> = launch
            .parameters
            .iter()
            .map(|value| std::ptr::from_ref(value).cast_mut().cast())
            .collect();
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
}
