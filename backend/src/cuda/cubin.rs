//! What machine code says of its kernels: an ELF file, read as far as that takes.
//!
//! Registers and stack are attributes of `.nv.info` (`EIATTR_REGCOUNT`, `EIATTR_FRAME_SIZE`), shared
//! memory is the size of a kernel's `.nv.shared` section, and what touches local memory is counted in
//! its instructions. `cuobjdump -res-usage` and `nvdisasm` show the same.

use serde::Serialize;

/// A kernel as its machine code has it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct CubinKernel {
    /// The name of its entry.
    pub name: String,
    /// Registers of a thread.
    pub registers: u32,
    /// Bytes of local memory that a thread has: what does not fit into registers (spills), and arrays that
    /// are indexed at run time.
    pub stack_bytes: u32,
    /// Instructions that read local memory.
    pub local_loads: u32,
    /// Instructions that write local memory.
    pub local_stores: u32,
    /// Bytes of shared memory that its source declares.
    pub static_shared: u32,
    /// Bytes of its instructions.
    pub code_bytes: u64,
}

/// Attributes of `.nv.info` whose value is the number of a symbol and a number.
const FRAME_SIZE: u8 = 0x11;
const REGISTERS: u8 = 0x2f;
/// The format of such an attribute: sized bytes follow.
const SIZED: u8 = 4;
/// Since Volta an instruction has 16 bytes, and its operation is in the first 12 bits.
const INSTRUCTION: usize = 16;
const LOAD_LOCAL: u64 = 0x983;
const STORE_LOCAL: u64 = 0x387;
/// What the system has of a block's shared memory, which newer files count to each kernel's own.
const RESERVED_SHARED: u64 = 1024;

/// The kernels of a file of machine code, by name.
///
/// # Errors
/// A sentence, when it is no such file or ends too early.
pub fn cubin_kernels(file: &[u8]) -> Result<Vec<CubinKernel>, String> {
    read(file).ok_or_else(|| "it is no complete file of CUDA machine code".to_owned())
}

/// A section of the file.
struct Section<'a> {
    name: &'a str,
    /// Bytes in memory, which some have and not in the file.
    size: u64,
    bytes: &'a [u8],
}

fn number<const N: usize>(bytes: &[u8], at: usize) -> Option<u64> {
    let part = bytes.get(at..at.checked_add(N)?)?;
    Some(part.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte)))
}

fn text(bytes: &[u8], at: usize) -> Option<&str> {
    let rest = bytes.get(at..)?;
    std::str::from_utf8(&rest[..rest.iter().position(|byte| *byte == 0)?]).ok()
}

fn sections(file: &[u8]) -> Option<Vec<Section<'_>>> {
    const HEADER: usize = 64;
    const EMPTY: u64 = 8;
    if !file.starts_with(b"\x7fELF\x02\x01") {
        return None;
    }
    let table = number::<8>(file, 0x28)? as usize;
    let (count, names) = (number::<2>(file, 0x3c)? as usize, number::<2>(file, 0x3e)? as usize);
    let raw = |index: usize| {
        let start = table.checked_add(index.checked_mul(HEADER)?)?;
        file.get(start..start.checked_add(HEADER)?)
    };
    let bytes = |header: &[u8]| {
        let (offset, size) = (number::<8>(header, 24)? as usize, number::<8>(header, 32)? as usize);
        match number::<4>(header, 4)? {
            EMPTY => Some(&[][..]),
            _ => file.get(offset..offset.checked_add(size)?),
        }
    };
    let names = bytes(raw(names)?)?;
    let section = |index| {
        let header = raw(index)?;
        Some(Section {
            name: text(names, number::<4>(header, 0)? as usize)?,
            size: number::<8>(header, 32)?,
            bytes: bytes(header)?,
        })
    };
    (0..count).map(section).collect()
}

/// The values of an attribute by symbol.
fn attributes(info: &[u8], wanted: u8) -> Option<Vec<(u64, u64)>> {
    let (mut found, mut at) = (Vec::new(), 0);
    while at < info.len() {
        let (format, attribute) = (*info.get(at)?, *info.get(at + 1)?);
        let size = number::<2>(info, at + 2)? as usize;
        if (format, attribute) == (SIZED, wanted) {
            found.push((number::<4>(info, at + 4)?, number::<4>(info, at + 8)?));
        }
        at += if format == SIZED { 4 + size } else { 4 };
    }
    Some(found)
}

fn read(file: &[u8]) -> Option<Vec<CubinKernel>> {
    const SYMBOL: usize = 24;
    let sections = sections(file)?;
    let of = |name: &str| sections.iter().find(|section| section.name == name);
    let (info, symbols, names) = (of(".nv.info")?, of(".symtab")?, of(".strtab")?);
    let (registers, frames) =
        (attributes(info.bytes, REGISTERS)?, attributes(info.bytes, FRAME_SIZE)?);
    let reserved = match of(".nv.shared.reserved.0") {
        Some(_) => RESERVED_SHARED,
        None => 0,
    };
    let mut kernels = Vec::with_capacity(registers.len());
    for (symbol, registers) in registers {
        let entry = (symbol as usize).checked_mul(SYMBOL)?;
        let name = text(names.bytes, number::<4>(symbols.bytes, entry)? as usize)?;
        // Functions that kernels call have registers, too, and no section of shared memory.
        let Some(code) = of(&format!(".text.{name}")) else { continue };
        let frame = frames.iter().find(|(of, _)| *of == symbol).map_or(0, |(_, bytes)| *bytes);
        let shared = of(&format!(".nv.shared.{name}")).map_or(0, |section| section.size);
        let operations = code.bytes.chunks_exact(INSTRUCTION);
        let operations = operations.filter_map(|one| Some(number::<8>(one, 0)? & 0xfff));
        let (mut local_loads, mut local_stores) = (0, 0);
        for operation in operations {
            local_loads += u32::from(operation == LOAD_LOCAL);
            local_stores += u32::from(operation == STORE_LOCAL);
        }
        kernels.push(CubinKernel {
            name: name.to_owned(),
            registers: registers as u32,
            stack_bytes: frame as u32,
            local_loads,
            local_stores,
            static_shared: shared.saturating_sub(reserved) as u32,
            code_bytes: code.size,
        });
    }
    kernels.sort_by(|one, other| one.name.cmp(&other.name));
    Some(kernels)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cuda::tests::skip;
    use crate::cuda::{Arch, Nvrtc, Source, library_dirs};
    use proptest::prelude::*;

    /// `wide` holds 64 values at once that it can index at run time alone, `plain` a few.
    const SOURCE: &str = r#"
extern "C" __global__ void plain(float *x) { x[threadIdx.x] += 1.0f; }
extern "C" __global__ void wide(float *x, int n) {
    __shared__ float kept[123];
    float held[64];
    for (int i = 0; i < 64; i++) held[i] = x[i * n + threadIdx.x];
    kept[threadIdx.x % 123] = held[n & 63];
    __syncthreads();
    float sum = 0;
    for (int i = 0; i < 64; i++) sum += held[i] * held[(i * n) & 63];
    x[threadIdx.x] = sum + kept[0];
}"#;

    fn compiled(arch: Arch) -> Option<Vec<u8>> {
        let nvrtc = match Nvrtc::open(&library_dirs(&[]), None) {
            Ok(nvrtc) => nvrtc,
            Err(error) => {
                skip::skipped("PIECEWISE_REQUIRE_NVRTC", error);
                return None;
            }
        };
        let source = Source { name: "two.cu", text: SOURCE, headers: &[], options: &[] };
        Some(nvrtc.compile(&source, arch).unwrap())
    }

    #[test]
    fn machine_code_says_what_its_kernels_take() {
        for number in [80, 89, 90, 100, 120] {
            let Some(code) = compiled(Arch { number }) else { return };
            let found = cubin_kernels(&code).unwrap();
            let [plain, wide] = &found[..] else { panic!("{found:?}") };
            assert_eq!((plain.name.as_str(), wide.name.as_str()), ("plain", "wide"));
            assert_eq!((plain.stack_bytes, plain.local_loads, plain.local_stores), (0, 0, 0));
            assert_eq!((plain.static_shared, wide.static_shared), (0, 492), "sm_{number}");
            assert_eq!(wide.stack_bytes, 256, "sm_{number}: 64 floats of a thread");
            assert!(wide.local_loads > 0 && wide.local_stores > 0, "{wide:?}");
            assert!((4..=32).contains(&plain.registers), "{plain:?}");
            assert!(wide.registers > plain.registers && wide.registers <= 255, "{wide:?}");
            assert!(wide.code_bytes > plain.code_bytes, "{found:?}");
        }
    }

    #[test]
    fn what_is_cut_or_changed_is_an_error_or_other_numbers_and_no_panic() {
        let Some(code) = compiled(Arch::HOPPER) else { return };
        let whole = cubin_kernels(&code).unwrap();
        for end in (0..code.len()).step_by(97) {
            // What follows the sections is not read.
            let found = cubin_kernels(&code[..end]);
            assert!(found.is_err() || found == Ok(whole.clone()), "{end}: {found:?}");
        }
        assert!(cubin_kernels(&code[..code.len() / 2]).is_err());
        for at in (0..code.len()).step_by(13) {
            let mut changed = code.clone();
            changed[at] ^= 0xff;
            let _ = cubin_kernels(&changed);
        }
    }

    proptest! {
        #[test]
        fn no_bytes_are_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let with_magic = [b"\x7fELF\x02\x01".as_slice(), &bytes].concat();
            let _ = cubin_kernels(&bytes);
            let _ = cubin_kernels(&with_magic);
        }
    }
}
