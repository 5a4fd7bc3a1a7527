//! How many blocks of a kernel a multiprocessor holds at once.
//!
//! The limits of a compute capability are those of the table "technical specifications" of NVIDIA's CUDA
//! C++ programming guide, and what is counted is as in the toolkit's `cuda_occupancy.h`: registers by
//! warp in units of 256 in each of four parts, shared memory in units of 128 bytes with 1 KiB of the
//! system's own for each block. Clusters are not counted.

use super::cubin::CubinKernel;
use super::nvrtc::Arch;
use crate::compiler::KernelResources;

/// The limits of a compute capability: threads and blocks that are held at once, bytes of shared memory.
struct Multiprocessor {
    threads: u64,
    blocks: u64,
    shared: u64,
}

const WARP: u64 = 32;
const REGISTERS: u64 = 64 << 10;
const REGISTER_UNIT: u64 = 256;
const PARTS: u64 = 4;
const SHARED_UNIT: u64 = 128;
const SHARED_OF_SYSTEM: u64 = 1 << 10;

/// The limits of an architecture; nothing of one that is not in the table.
fn multiprocessor(arch: Arch) -> Option<Multiprocessor> {
    let (threads, blocks, kib) = match arch.number {
        80 => (2048, 32, 164),
        86 => (1536, 16, 100),
        87 => (1536, 16, 164),
        89 => (1536, 24, 100),
        90 | 100 | 103 => (2048, 32, 228),
        110 => (1536, 24, 228),
        120 | 121 => (1536, 24, 100),
        _ => return None,
    };
    Some(Multiprocessor { threads, blocks, shared: kib << 10 })
}

/// What a kernel takes that is launched with so many threads and bytes of dynamic shared memory.
pub(super) fn resources(
    arch: Arch,
    kernel: &CubinKernel,
    threads: u32,
    dynamic_shared: u32,
) -> KernelResources {
    let shared_bytes = u64::from(kernel.static_shared) + u64::from(dynamic_shared);
    let mut resources = KernelResources {
        registers: kernel.registers,
        stack_bytes: kernel.stack_bytes,
        local_loads: kernel.local_loads,
        local_stores: kernel.local_stores,
        shared_bytes,
        code_bytes: kernel.code_bytes,
        threads,
        blocks_of_multiprocessor: None,
        occupancy_percent: None,
        limited_by: None,
    };
    let Some(multiprocessor) = multiprocessor(arch) else { return resources };
    let warps = u64::from(threads).div_ceil(WARP).max(1);
    let registers = (u64::from(kernel.registers).max(1) * WARP).next_multiple_of(REGISTER_UNIT);
    let warps_by_registers = REGISTERS / PARTS / registers * PARTS;
    let shared = (shared_bytes + SHARED_OF_SYSTEM).next_multiple_of(SHARED_UNIT);
    let limits = [
        ("threads", multiprocessor.threads / WARP / warps),
        ("registers", warps_by_registers / warps),
        ("shared memory", multiprocessor.shared / shared),
        ("blocks", multiprocessor.blocks),
    ];
    // Of equal ones the first.
    if let Some((limit, blocks)) = limits.into_iter().min_by_key(|(_, blocks)| *blocks) {
        let held = blocks * warps * WARP * 100 / multiprocessor.threads;
        resources.blocks_of_multiprocessor = Some(blocks);
        resources.occupancy_percent = Some(held);
        resources.limited_by = Some(limit);
    }
    resources
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kernel(registers: u32, static_shared: u32) -> CubinKernel {
        CubinKernel {
            name: "k".to_owned(),
            registers,
            stack_bytes: 0,
            local_loads: 0,
            local_stores: 0,
            static_shared,
            code_bytes: 128,
        }
    }

    /// By hand, of the rules that NVIDIA's occupancy calculator has.
    #[test]
    fn blocks_are_bound_by_what_runs_out_first() {
        let cases = [
            // registers, static, dynamic, threads: blocks, percent of threads, what binds
            (90, (32, 0, 0, 256), (8, 100, "threads")),
            (90, (64, 0, 0, 256), (4, 50, "registers")),
            // 72 registers are 2304 of a warp, so 7 warps of each part.
            (90, (72, 0, 0, 256), (3, 37, "registers")),
            // 227 KiB and the system's own are all there is.
            (90, (32, 0, 227 << 10, 128), (1, 6, "shared memory")),
            (90, (32, 1 << 10, 75 << 10, 128), (2, 12, "shared memory")),
            (90, (32, 0, 75 << 10, 128), (3, 18, "shared memory")),
            (90, (16, 0, 0, 32), (32, 50, "blocks")),
            (89, (16, 0, 0, 32), (24, 50, "blocks")),
            (86, (16, 0, 0, 1024), (1, 66, "threads")),
        ];
        for (number, (registers, fixed, dynamic, threads), (blocks, percent, limit)) in cases {
            let found = resources(Arch { number }, &kernel(registers, fixed), threads, dynamic);
            let held = (found.blocks_of_multiprocessor, found.occupancy_percent, found.limited_by);
            let case = (number, registers, fixed, dynamic, threads);
            assert_eq!(held, (Some(blocks), Some(percent), Some(limit)), "{case:?}");
            assert_eq!(found.shared_bytes, u64::from(fixed + dynamic));
        }
        let unknown = resources(Arch { number: 200 }, &kernel(32, 0), 128, 0);
        assert_eq!((unknown.registers, unknown.blocks_of_multiprocessor), (32, None));
    }
}
