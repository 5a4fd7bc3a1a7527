//! Kernels on the host: the generated source through a C++ compiler, with the prelude's machine
//! instructions replaced.

use crate::bounded::Bound as _;
use crate::skip::skipped;
use piecewise_ir::dtype::DType;
use piecewise_kernels::cuda::{LaunchRecipe, PRELUDE, Param, Scalar};
use std::fmt::Write as _;
use std::fs::File;
use std::hash::{Hash as _, Hasher as _};
use std::ops::Range;
use std::process::Command;
use std::sync::LazyLock;

/// Whether there is a compiler for it.
pub(crate) fn available() -> bool {
    static FOUND: LazyLock<bool> = LazyLock::new(|| {
        let found = Command::new("g++").arg("--version").bounded_output();
        found.is_ok_and(|output| output.status.success())
            && cfg!(all(target_os = "linux", target_arch = "x86_64"))
    });
    if !*FOUND {
        let reason = "kernels are not emulated, which needs g++ on x86-64 Linux";
        skipped("PIECEWISE_REQUIRE_GXX", reason);
    }
    *FOUND
}

const HOPPER: &str = include_str!("../../src/cuda/hopper.cuh");
const LOAD_IF: &str = r#"asm volatile("{.reg .pred p; setp.ne.u32 p, %5, 0;"
               " mov.u32 %0, 0; mov.u32 %1, 0; mov.u32 %2, 0; mov.u32 %3, 0;"
               " @p ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];}"
               : "=&r"(r.x), "=&r"(r.y), "=&r"(r.z), "=&r"(r.w)
               : "l"(from), "r"((u32)there));"#;
const COPY_IF: &str = r#"asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
               ::"r"((u32)__cvta_generic_to_shared(to)), "l"(from), "r"(there ? 16 : 0) : "memory");"#;
const MATRICES: &str = r#"asm volatile("ldmatrix.sync.aligned.m8n8.x4KIND.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"((u32)__cvta_generic_to_shared(row)) : "memory");"#;
const PAIR: &str = r#"asm("cvt.rn.TYPEx2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));"#;

const OF_CLUSTERS: &str = "#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900\n  asm volatile(";

/// What is done with a cluster by an instruction of this text, on the host.
fn of_cluster(text: &str, instruction: &str, on_host: &str) -> String {
    let at = text.find(&format!("{OF_CLUSTERS}\"{instruction}")).unwrap();
    let end = at + text[at..].find("#endif").unwrap() + "#endif".len();
    format!("{}  {on_host}{}", &text[..at], &text[end..])
}

/// The prelude for a host compiler.
fn prelude() -> String {
    let of_clusters = [
        ("barrier.cluster.arrive", ""),
        ("barrier.cluster.wait", "clusterbar.wait(blockDim.x * emu_cluster);"),
        (
            "{.reg .u32 there; mapa",
            "float pair[] = {x, y}; memcpy(emu_there((char*)to, rank), pair, 8);",
        ),
    ];
    of_clusters
        .into_iter()
        .fold(PRELUDE.to_owned(), |text, (found, on_host)| of_cluster(&text, found, on_host))
        .replace("#pragma once", "")
        .replace("#define PW_WAIT()\n", "#define PW_WAIT() emu_wait()\n")
        .replace("asm(\"cvt.rn.bf16.f32 %0, %1;\" : \"=h\"(r) : \"f\"(x));", "r = emu_bf16(x);")
        .replace("asm(\"cvt.rn.f16.f32 %0, %1;\" : \"=h\"(r) : \"f\"(x));", "r = emu_f16(x);")
        .replace("asm(\"cvt.f32.f16 %0, %1;\" : \"=f\"(r) : \"h\"(b));", "r = emu_unf16(b);")
        .replace("asm volatile(\"bar.sync %0, %1;\" ::\"r\"(group + 1), \"n\"(THREADS) : \"memory\");", "groupbar[group + 1].wait(THREADS);")
        .replace("asm volatile(\"ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];\"\n               : \"=r\"(r.x), \"=r\"(r.y), \"=r\"(r.z), \"=r\"(r.w)\n               : \"l\"(from));", "r = *(const Bytes16*)from;")
        .replace(LOAD_IF, "r = there ? *(const Bytes16*)from : Bytes16{0, 0, 0, 0};")
        .replace(COPY_IF, "emu_copy(to, from, there);")
        .replace("asm volatile(\"cp.async.wait_all;\" ::: \"memory\");", "emu_copies_done();")
        .replace("asm volatile(\"cp.async.commit_group;\" ::: \"memory\");", "emu_group_copies();")
        .replace("asm volatile(\"cp.async.wait_group %0;\" ::\"n\"(LEFT) : \"memory\");", "emu_groups_done_but(LEFT);")
        .replace("PW_MMA(\"bf16.bf16\");", "emu_mma(sum, a0, a1, a2, a3, b0, b1, [](unsigned short h) { return of_bf16_bits(h); });")
        .replace("PW_MMA(\"f16.f16\");", "emu_mma(sum, a0, a1, a2, a3, b0, b1, emu_unf16);")
        .replace(&MATRICES.replace("KIND", ""), "emu_matrices(to, row, false);")
        .replace(&MATRICES.replace("KIND", ".trans"), "emu_matrices(to, row, true);")
        .replace(&PAIR.replace("TYPE", "bf16"), "r = emu_bf16(low) | (u32)emu_bf16(high) << 16;")
        .replace(&PAIR.replace("TYPE", "f16"), "r = emu_f16(low) | (u32)emu_f16(high) << 16;")
        .replace("asm(\"rcp.approx.ftz.f32 %0, %1;\" : \"=f\"(r) : \"f\"(b * 0.25f));", "r = 1.0f / (b * 0.25f);")
        .replace("asm(\"ex2.approx.ftz.f32 %0, %1;\" : \"=f\"(r) : \"f\"(x));", "r = exp2f(x);")
}
/// What a kernel's source is for a host compiler.
fn on_host(source: &str) -> String {
    let element = if source.contains(" Q;\n") { "Q" } else { "X" };
    let mut text = source
        .replace("#include \"prelude.cuh\"", "")
        .replace("__shared__ alignas(16)", "__shared__")
        .replace(
            "extern __shared__ Bytes16 staged[];",
            "Bytes16* const staged = (Bytes16*)emu_dynamic;",
        )
        .replace(HOPPER, &format!("typedef {element} T16;\n{}", include_str!("hopper.h")));
    // The machine's products, which the host has as templates.
    while let Some(at) = text.find("DEVICE void multiply_add_tile") {
        let end = at + text[at..].find("\n}\n").unwrap() + 3;
        text.replace_range(at..end, "");
    }
    text
}

const FLAGS: [&str; 6] =
    ["-std=c++20", "-O1", "-w", "-ffp-contract=off", "-fno-strict-aliasing", "-mf16c"];

fn compile(files: &[&str]) {
    let out = Command::new("g++").args(FLAGS).args(files).bounded_output().unwrap();
    assert!(
        out.status.success(),
        "{}",
        String::from_utf8_lossy(&out.stderr).chars().take(3000).collect::<String>()
    );
}

/// What a program is made of beside its own text: one that was made of the same is not made again.
static MADE_OF: LazyLock<String> = LazyLock::new(|| {
    let version = Command::new("g++").arg("-v").bounded_output().unwrap();
    let mut hasher = std::hash::DefaultHasher::new();
    let parts = [include_str!("emulator.h"), include_str!("emulator.cpp"), &prelude()];
    (version.stderr, FLAGS, parts).hash(&mut hasher);
    format!("{:016x}", hasher.finish())
});

const FOLDER: &str = concat!(env!("CARGO_TARGET_TMPDIR"), "/emulated");
/// What every source begins with; where blocks have clusters, they swap what they share.
const HEADERS: [(&str, &str); 2] =
    [("machine.h", ""), ("clusters.h", "#define __shared__ EMU_BLOCK static\n")];

/// Keeps other processes that run these tests out of a folder while it lives.
fn alone_in(folder: &str) -> File {
    std::fs::create_dir_all(folder).unwrap();
    let file = File::create(format!("{folder}/lock")).unwrap();
    file.lock().unwrap();
    file
}

/// The folder of the object that all programs have in common, with their headers, made once.
static MACHINE: LazyLock<String> = LazyLock::new(|| {
    let folder = format!("{FOLDER}/{}", *MADE_OF);
    let _alone = alone_in(&folder);
    let object = format!("{folder}/emulator.o");
    if std::fs::exists(&object).unwrap() {
        return folder;
    }
    for (name, shared) in HEADERS {
        let path = format!("{folder}/{name}");
        std::fs::write(&path, [shared, include_str!("emulator.h"), &prelude()].concat()).unwrap();
        compile(&["-x", "c++-header", &path, "-o", &format!("{path}.gch")]);
    }
    // Last and whole: where it is, all is.
    let made = format!("{folder}/made.o");
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/cuda/emulator.cpp");
    compile(&["-c", source, "-o", &made]);
    std::fs::rename(made, object).unwrap();
    folder
});

/// A text without lines that a condition leaves out.
fn chosen(text: &str, macros: &[(&str, &str)]) -> String {
    let mut is_in = true;
    let lines = text.lines().filter(|line| match line.strip_prefix("#if ") {
        Some(name) => {
            is_in = macros.iter().any(|(macro_name, value)| *macro_name == name && *value != "0");
            false
        }
        None if *line == "#endif" => {
            is_in = true;
            false
        }
        None => is_in,
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// Launches and what they work on.
pub(crate) struct Case {
    pub(crate) launches: Vec<LaunchRecipe>,
    pub(crate) args: Vec<Vec<u8>>,
    pub(crate) sizes: Vec<u64>,
    pub(crate) counts: Vec<i32>,
    pub(crate) scratch: u64,
}
/// The arguments after the launches, each of which sees before its wait only those that its recipe
/// names ahead.
pub(crate) fn emulate(name: &str, case: &Case) -> Vec<Vec<u8>> {
    try_emulate(name, case).unwrap_or_else(|refused| panic!("{name} {refused}"))
}
/// The same, or what the launches did wrong.
pub(crate) fn try_emulate(name: &str, case: &Case) -> Result<Vec<Vec<u8>>, String> {
    try_emulate_hiding(name, case, &[])
}
/// The same, where of arguments that are named ahead some bytes, too, are not there before the wait: what a
/// step writes of a state.
pub(crate) fn try_emulate_hiding(
    name: &str,
    case: &Case,
    written: &[(usize, Range<usize>)],
) -> Result<Vec<Vec<u8>>, String> {
    let dir = format!("{FOLDER}/{name}");
    let _alone = alone_in(&dir);
    let has_clusters = case.launches.iter().any(|launch| launch.cluster[0] > 1);
    let (header, _) = HEADERS[usize::from(has_clusters)];
    let mut main = format!("#include \"{}/{header}\"\n", *MACHINE);
    let mut sources: Vec<String> = case.launches.iter().map(|l| l.source.clone()).collect();
    sources.sort();
    sources.dedup();
    for (i, s) in sources.iter().enumerate() {
        let _ = writeln!(main, "namespace source_{i} {{");
        main.push_str(&on_host(s));
        main.push_str("\n}\n");
        for name in s.lines().filter_map(|l| l.strip_prefix("#define ")?.split([' ', '(']).next()) {
            let _ = writeln!(main, "#undef {name}");
        }
    }
    let main = main
        .replace("static u8 pool", "alignas(16) static u8 pool")
        .replace("__shared__ u8 pool", "alignas(16) static u8 pool");
    let mut main = main;
    main.push_str("\nint main(){\n");
    for (i, a) in case.args.iter().enumerate() {
        std::fs::write(format!("{dir}/a{i}"), a).unwrap();
        let _ = writeln!(main, "char*A{i}=read_file(\"{dir}/a{i}\");");
    }
    let _ = writeln!(
        main,
        "int C[]={{{}}};char*SCRATCH=emu_memory({});",
        case.counts.iter().map(|c| c.to_string()).collect::<Vec<_>>().join(","),
        case.scratch
    );
    for l in &case.launches {
        let g = l.grid_at(&case.sizes, 3).unwrap();
        let macros = l.source.lines().filter_map(|l| l.strip_prefix("#define ")?.split_once(' '));
        let macros: Vec<(&str, &str)> = macros.collect();
        let entry = macros.iter().find(|(_, name)| *name == l.entry);
        let entry = entry.map_or(l.entry.as_str(), |(entry, _)| entry);
        let sig = l.source.split(&format!(" {entry}(")).nth(1).unwrap();
        // Some are lists that a macro stands for.
        let named = |part: &str| macros.iter().find(|(name, _)| *name == part.trim());
        let sig = chosen(sig.split(") {").next().unwrap(), &macros);
        let sig = sig.split(',');
        let sig: Vec<&str> = sig.map(|part| named(part).map_or(part, |(_, list)| list)).collect();
        let sig = sig.join(",");
        let types: Vec<String> = sig
            .split(',')
            .map(|p| {
                let p = p.trim();
                let at = p.rfind([' ', '*']).unwrap();
                p[..=at].trim().to_owned()
            })
            .collect();
        let args: Vec<String> = l
            .params
            .iter()
            .zip(&types)
            .map(|(p, t)| match p {
                Param::Arg(i) => format!("({t})A{i}"),
                Param::Elements(i) | Param::Rows(i) => panic!("argument {i} has no memory"),
                Param::Scratch(o) => format!("({t})(SCRATCH+{o})"),
                Param::Counts => "C".to_owned(),
                Param::Stamps => "nullptr".to_owned(),
                Param::Scalar(Scalar::U32(d) | Scalar::U64(d)) => d.eval(&case.sizes).to_string(),
                Param::Scalar(Scalar::F32(x)) => format!("{x:e}f"),
                Param::TensorMap(boxes) => format!(
                    "{{A{},{},{},{},{}}}",
                    boxes.arg,
                    boxes.rows.eval(&case.sizes),
                    boxes.columns,
                    boxes.box_rows,
                    boxes.box_slices
                ),
            })
            .collect();
        assert_eq!(types.len(), l.params.len());
        for i in (0..case.args.len()).filter(|&i| l.programmatic && !l.ahead.contains(&(i as u32)))
        {
            let bytes = case.args[i].len();
            let _ = write!(main, "emu_hide(A{i},{bytes},\"argument {i}\");");
        }
        for (i, bytes) in written.iter().filter(|_| l.programmatic) {
            let (at, len) = (bytes.start, bytes.len());
            let _ =
                write!(main, "emu_hide_part(A{i}+{at},{len},\"what is written of argument {i}\");");
        }
        if l.programmatic {
            let _ = write!(main, "emu_hide(SCRATCH,{},\"scratch\");", case.scratch);
        }
        let _ = writeln!(
            main,
            "emu_guard({});emu_launch({},{{{},{},{}}},{{{},1,1}},{},{},[&]{{using namespace source_{};{}({});}});emu_guarded({});",
            l.dynamic_shared,
            l.programmatic,
            g[0],
            g[1],
            g[2],
            l.block[0],
            l.cluster[0],
            l.dynamic_shared,
            sources.iter().position(|s| *s == l.source).unwrap(),
            l.entry,
            args.join(","),
            l.dynamic_shared,
        );
    }
    for (i, a) in case.args.iter().enumerate() {
        let _ = writeln!(main, "write_file(\"{dir}/o{i}\",A{i},{});", a.len());
    }
    main.push_str("}\n");
    let (text, made) = (format!("{dir}/main.cpp"), format!("{dir}/made.cpp"));
    if std::fs::read_to_string(&made).ok().as_ref() != Some(&main) {
        let _ = std::fs::remove_file(&made);
        std::fs::write(&text, main).unwrap();
        compile(&[&text, &format!("{}/emulator.o", *MACHINE), "-o", &format!("{dir}/main")]);
        std::fs::rename(text, made).unwrap();
    }
    let out = Command::new(format!("{dir}/main")).bounded_output().unwrap();
    if !out.status.success() {
        return Err(format!("{}: {}", out.status, String::from_utf8_lossy(&out.stderr)));
    }
    Ok((0..case.args.len()).map(|i| std::fs::read(format!("{dir}/o{i}")).unwrap()).collect())
}
pub(crate) struct Rng(pub(crate) u64);
impl Rng {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        self.0 >> 33
    }
    pub(crate) fn f(&mut self) -> f32 {
        (self.next() % 2001) as f32 / 1000.0 - 1.0
    }
}
/// Random elements; integers are distinct, from -1 on.
pub(crate) fn fill(d: DType, n: usize, r: &mut Rng) -> Vec<u8> {
    let mut b = Vec::new();
    for i in 0..n {
        match d {
            DType::F32 => b.extend(r.f().to_ne_bytes()),
            DType::BF16 => b.extend(half::bf16::from_f32(r.f()).to_bits().to_ne_bytes()),
            DType::F16 => b.extend(half::f16::from_f32(r.f()).to_bits().to_ne_bytes()),
            DType::I32 => b.extend((((i * 7 + 3) % 23) as i32 - 1).to_ne_bytes()),
            DType::I64 => b.extend((((i * 7 + 3) % 23) as i64 - 1).to_ne_bytes()),
            _ => b.push((r.next() % 2) as u8),
        }
    }
    b
}
pub(crate) fn floats(d: DType, b: &[u8]) -> Vec<f64> {
    b.chunks_exact(d.size())
        .map(|c| match d {
            DType::F32 => f32::from_ne_bytes(c.try_into().unwrap()) as f64,
            DType::BF16 => {
                half::bf16::from_bits(u16::from_ne_bytes(c.try_into().unwrap())).to_f64()
            }
            DType::F16 => half::f16::from_bits(u16::from_ne_bytes(c.try_into().unwrap())).to_f64(),
            DType::I32 => i32::from_ne_bytes(c.try_into().unwrap()) as f64,
            DType::I64 => i64::from_ne_bytes(c.try_into().unwrap()) as f64,
            _ => c[0] as f64,
        })
        .collect()
}
/// The largest difference, relative to numbers above 1.
pub(crate) fn worst(d: DType, a: &[u8], b: &[u8]) -> f64 {
    floats(d, a)
        .iter()
        .zip(floats(d, b))
        .map(|(x, y)| {
            if *x == y || (x.is_nan() && y.is_nan()) {
                0.0
            } else {
                (x - y).abs() / y.abs().max(1.0)
            }
        })
        .map(|e| if e.is_nan() { 9e9 } else { e })
        .fold(0.0, f64::max)
}
