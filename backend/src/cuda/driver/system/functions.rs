//! The functions of the driver's library, with the signatures of the bindings.

use crate::cuda::library::library_api;
use cudarc::driver::sys as cu;
use std::ffi::{c_char, c_int, c_uchar, c_uint, c_ulonglong, c_ushort, c_void};

library_api! {
    /// The driver functions that are used.
    struct DriverApi from cudarc::driver::sys, status CUresult {
        fn cuGetErrorName(cu::CUresult, *mut *const c_char);
        fn cuGetErrorString(cu::CUresult, *mut *const c_char);
        fn cuDeviceGetCount(*mut c_int);
        fn cuDeviceGet(*mut cu::CUdevice, c_int);
        fn cuDeviceGetName(*mut c_char, c_int, cu::CUdevice);
        fn cuDeviceGetAttribute(*mut c_int, cu::CUdevice_attribute, cu::CUdevice);
        fn cuDeviceTotalMem_v2(*mut usize, cu::CUdevice);
        fn cuDevicePrimaryCtxRetain(*mut cu::CUcontext, cu::CUdevice);
        fn cuDevicePrimaryCtxRelease_v2(cu::CUdevice);
        fn cuDevicePrimaryCtxReset_v2(cu::CUdevice);
        fn cuCtxSetCurrent(cu::CUcontext);
        fn cuMemGetInfo_v2(*mut usize, *mut usize);
        fn cuMemGetAllocationGranularity(
            *mut usize, *const cu::CUmemAllocationProp, cu::CUmemAllocationGranularity_flags,
        );
        fn cuMemAddressReserve(
            *mut cu::CUdeviceptr, usize, usize, cu::CUdeviceptr, c_ulonglong,
        );
        fn cuMemAddressFree(cu::CUdeviceptr, usize);
        fn cuMemCreate(
            *mut cu::CUmemGenericAllocationHandle, usize, *const cu::CUmemAllocationProp,
            c_ulonglong,
        );
        fn cuMemRelease(cu::CUmemGenericAllocationHandle);
        fn cuMemMap(
            cu::CUdeviceptr, usize, usize, cu::CUmemGenericAllocationHandle, c_ulonglong,
        );
        fn cuMemUnmap(cu::CUdeviceptr, usize);
        fn cuMemSetAccess(cu::CUdeviceptr, usize, *const cu::CUmemAccessDesc, usize);
        fn cuMemAlloc_v2(*mut cu::CUdeviceptr, usize);
        fn cuMemFree_v2(cu::CUdeviceptr);
        fn cuMemHostRegister_v2(*mut c_void, usize, c_uint);
        fn cuMemHostUnregister(*mut c_void);
        fn cuMemcpyHtoDAsync_v2(cu::CUdeviceptr, *const c_void, usize, cu::CUstream);
        fn cuMemcpyDtoDAsync_v2(cu::CUdeviceptr, cu::CUdeviceptr, usize, cu::CUstream);
        fn cuMemcpy2DAsync_v2(*const cu::CUDA_MEMCPY2D, cu::CUstream);
        fn cuMemcpyDtoHAsync_v2(*mut c_void, cu::CUdeviceptr, usize, cu::CUstream);
        fn cuMemsetD8Async(cu::CUdeviceptr, c_uchar, usize, cu::CUstream);
        fn cuMemsetD16Async(cu::CUdeviceptr, c_ushort, usize, cu::CUstream);
        fn cuMemsetD32Async(cu::CUdeviceptr, c_uint, usize, cu::CUstream);
        fn cuStreamCreate(*mut cu::CUstream, c_uint);
        fn cuStreamDestroy_v2(cu::CUstream);
        fn cuStreamSynchronize(cu::CUstream);
        fn cuEventCreate(*mut cu::CUevent, c_uint);
        fn cuEventDestroy_v2(cu::CUevent);
        fn cuEventRecord(cu::CUevent, cu::CUstream);
        fn cuEventSynchronize(cu::CUevent);
        fn cuEventElapsedTime(*mut f32, cu::CUevent, cu::CUevent);
        fn cuModuleLoadData(*mut cu::CUmodule, *const c_void);
        fn cuModuleUnload(cu::CUmodule);
        fn cuModuleGetFunction(*mut cu::CUfunction, cu::CUmodule, *const c_char);
        fn cuFuncLoad(cu::CUfunction);
        fn cuFuncSetAttribute(cu::CUfunction, cu::CUfunction_attribute, c_int);
        fn cuFuncGetName(*mut *const c_char, cu::CUfunction);
        fn cuTensorMapEncodeTiled(
            *mut cu::CUtensorMap, cu::CUtensorMapDataType, cu::cuuint32_t, *mut c_void,
            *const cu::cuuint64_t, *const cu::cuuint64_t, *const cu::cuuint32_t,
            *const cu::cuuint32_t, cu::CUtensorMapInterleave, cu::CUtensorMapSwizzle,
            cu::CUtensorMapL2promotion, cu::CUtensorMapFloatOOBfill,
        );
        fn cuLaunchKernelEx(
            *const cu::CUlaunchConfig, cu::CUfunction, *mut *mut c_void, *mut *mut c_void,
        );
        fn cuStreamBeginCapture_v2(cu::CUstream, cu::CUstreamCaptureMode);
        fn cuStreamEndCapture(cu::CUstream, *mut cu::CUgraph);
        fn cuStreamIsCapturing(cu::CUstream, *mut cu::CUstreamCaptureStatus);
        fn cuStreamGetCaptureInfo_v3(
            cu::CUstream, *mut cu::CUstreamCaptureStatus, *mut cu::cuuint64_t, *mut cu::CUgraph,
            *mut *const cu::CUgraphNode, *mut *const cu::CUgraphEdgeData, *mut usize,
        );
        fn cuGraphGetNodes(cu::CUgraph, *mut cu::CUgraphNode, *mut usize);
        fn cuGraphNodeGetType(cu::CUgraphNode, *mut cu::CUgraphNodeType);
        fn cuGraphKernelNodeGetParams_v2(cu::CUgraphNode, *mut cu::CUDA_KERNEL_NODE_PARAMS);
        fn cuGraphChildGraphNodeGetGraph(cu::CUgraphNode, *mut cu::CUgraph);
        fn cuGraphGetEdges_v2(
            cu::CUgraph, *mut cu::CUgraphNode, *mut cu::CUgraphNode, *mut cu::CUgraphEdgeData,
            *mut usize,
        );
        fn cuGraphDebugDotPrint(cu::CUgraph, *const c_char, c_uint);
        fn cuGraphInstantiateWithFlags(*mut cu::CUgraphExec, cu::CUgraph, c_ulonglong);
        fn cuGraphExecKernelNodeSetParams_v2(
            cu::CUgraphExec, cu::CUgraphNode, *const cu::CUDA_KERNEL_NODE_PARAMS,
        );
        fn cuGraphUpload(cu::CUgraphExec, cu::CUstream);
        fn cuGraphLaunch(cu::CUgraphExec, cu::CUstream);
        fn cuGraphExecDestroy(cu::CUgraphExec);
        fn cuGraphDestroy(cu::CUgraph);
    }
}
