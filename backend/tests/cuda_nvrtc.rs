//! Kernels compile without a GPU. Skipped where NVRTC is not installed: see `.ci/install-nvrtc`.

#![allow(clippy::print_stdout, reason = "a skipped test says why")]

use piecewise_backend::cuda::{Arch, Nvrtc, NvrtcError, Source, library_dirs};

const DOUBLE: &str = r#"
#include "scale.cuh"
extern "C" __global__ void scale(float *x, const int *counts) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < counts[0]) x[i] *= SCALE;
}
"#;

fn nvrtc() -> Option<Nvrtc> {
    match Nvrtc::open(&library_dirs(&[]), None) {
        Ok(nvrtc) => Some(nvrtc),
        Err(error) => {
            let required = std::env::var("PIECEWISE_REQUIRE_NVRTC").is_ok_and(|v| v == "1");
            assert!(!required, "PIECEWISE_REQUIRE_NVRTC=1, but {error}");
            println!("skipped: {error}");
            None
        }
    }
}

fn source<'a>(text: &'a str, headers: &'a [(&'a str, &'a str)]) -> Source<'a> {
    Source { name: "scale.cu", text, headers, options: &["--std=c++17"] }
}

#[test]
fn a_kernel_compiles_for_every_architecture_to_the_same_bytes() {
    let Some(nvrtc) = nvrtc() else { return };
    assert!(nvrtc.identity().starts_with("nvrtc "));
    for number in [80, 87, 89, 90, 100, 120] {
        let arch = Arch { number };
        if !nvrtc.archs().contains(&arch) {
            println!("skipped: {} does not know {arch}", nvrtc.identity());
            continue;
        }
        let headers = [("scale.cuh", "#define SCALE 2.0f\n")];
        let cubin = nvrtc.compile(&source(DOUBLE, &headers), arch).unwrap();
        assert_eq!(&cubin[..4], b"\x7fELF", "{arch}");
        assert_eq!(cubin, nvrtc.compile(&source(DOUBLE, &headers), arch).unwrap());
        let other = [("scale.cuh", "#define SCALE 3.0f\n")];
        assert_ne!(cubin, nvrtc.compile(&source(DOUBLE, &other), arch).unwrap());
    }
}

#[test]
fn mistakes_come_back_with_the_compilers_log() {
    let Some(nvrtc) = nvrtc() else { return };
    let arch = Arch { number: 90 };
    let error = nvrtc.compile(&source(DOUBLE, &[]), arch).unwrap_err();
    assert!(matches!(error, NvrtcError::Compile { call: "nvrtcCompileProgram", .. }));
    let text = error.to_string();
    assert!(text.contains("`scale.cu` does not compile for sm_90"), "{text}");
    assert!(text.contains("scale.cuh"), "{text}");

    let unknown = Arch { number: 60 };
    assert!(nvrtc.compile(&source("", &[]), unknown).is_err());

    let error = nvrtc.compile(&source("a\0b", &[]), arch).unwrap_err();
    assert_eq!(error.to_string(), "the text of kernel source `scale.cu` holds a NUL byte");
}

#[test]
fn several_threads_compile_at_once() {
    let Some(nvrtc) = nvrtc() else { return };
    let headers = [("scale.cuh", "#define SCALE 2.0f\n")];
    let compile = || nvrtc.compile(&source(DOUBLE, &headers), Arch { number: 90 }).unwrap();
    let first = compile();
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(compile)).collect();
        for thread in threads {
            assert_eq!(thread.join().unwrap(), first);
        }
    });
}

/// The kernels that make weights and measure bandwidth, for every architecture that models are
/// compiled for.
#[test]
fn the_kernels_of_the_device_itself_compile() {
    let Some(nvrtc) = nvrtc() else { return };
    let texts = [
        ("weights.cu", piecewise_backend::cuda::WEIGHT_KERNELS),
        ("bandwidth.cu", piecewise_backend::cuda::BANDWIDTH_KERNEL),
    ];
    for (name, text) in texts {
        let source = Source { name, text, headers: &[], options: &[] };
        for number in [80, 87, 89, 90, 100, 120] {
            nvrtc.compile(&source, Arch { number }).unwrap();
        }
    }
}
