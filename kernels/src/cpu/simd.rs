//! The instruction set, chosen once at run time, and the vector operations kernels are written in.
//!
//! A kernel is a struct that implements [`Kernel`]: its `run` is generic over [`Simd`] and always
//! inlined, so that [`Isa::dispatch`] compiles it once for each instruction set, inside a function
//! that enables that set. This is the only place that chooses.

/// Intrinsics on values, which need nothing but the instruction set.
#[cfg(target_arch = "x86_64")]
macro_rules! set {
    ($e:expr) => {{
        // SAFETY: the token proves that detection found the features this intrinsic needs.
        #[allow(unused_unsafe, reason = "some intrinsics are safe where the features are enabled")]
        unsafe {
            $e
        }
    }};
}

/// A token that a machine has an instruction set: where it is detected, kernels run with it enabled.
#[cfg(target_arch = "x86_64")]
macro_rules! instruction_set {
    ($(#[$doc:meta])* $set:ident: $enabled:literal, $($feature:tt),+) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub(super) struct $set(());

        impl $set {
            pub(super) fn detect() -> Option<Self> {
                let found = $(is_x86_feature_detected!($feature))&&+;
                found.then_some(Self(()))
            }

            /// Runs a kernel where the set is enabled.
            #[inline(always)]
            pub(super) fn enabled<K: Kernel>(self, kernel: K) -> K::Output {
                #[target_feature(enable = $enabled)]
                fn enabled<K: Kernel>(set: $set, kernel: K) -> K::Output {
                    kernel.run(set)
                }
                // SAFETY: the token proves that detection found these features.
                unsafe { enabled(self, kernel) }
            }
        }
    };
}

/// Operations of [`Simd`] that one intrinsic is.
#[cfg(target_arch = "x86_64")]
macro_rules! lane_ops {
    ($($name:ident($($operand:ident),+) = $intrinsic:ident;)+) => {
        $(
            #[inline(always)]
            fn $name(self, $($operand: V),+) -> V {
                set!($intrinsic($($operand),+))
            }
        )+
    };
}

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod codes;
mod portable;
mod vector;

use derive_more::Display;
use std::sync::OnceLock;

#[cfg(target_arch = "x86_64")]
use self::{avx2::Avx2, avx512::Avx512};
pub(crate) use codes::{e4m3, i4};
use portable::Portable;
pub(crate) use vector::{Kernel, MAX_LANES, Simd};

/// An instruction set that this machine was found to have.
///
/// The set is part of what identifies results: two sets may differ in the last bits (they sum in
/// different lanes), one set never does.
#[derive(Debug, Display, Clone, Copy, PartialEq, Eq)]
pub struct Isa(Level);

#[derive(Debug, Display, Clone, Copy, PartialEq, Eq)]
enum Level {
    #[cfg(target_arch = "x86_64")]
    #[display("avx512")]
    Avx512(Avx512),
    #[cfg(target_arch = "x86_64")]
    #[display("avx2")]
    Avx2(Avx2),
    #[display("portable")]
    Portable(Portable),
}

impl Isa {
    /// The widest instruction set of this machine; detected on the first call.
    pub fn detected() -> Isa {
        static DETECTED: OnceLock<Isa> = OnceLock::new();
        *DETECTED.get_or_init(|| Isa::available().next().unwrap_or(Isa::portable()))
    }

    /// Every instruction set this machine can run, widest first.
    pub fn available() -> impl Iterator<Item = Isa> {
        #[cfg(target_arch = "x86_64")]
        let vectors = [Avx512::detect().map(Level::Avx512), Avx2::detect().map(Level::Avx2)];
        #[cfg(not(target_arch = "x86_64"))]
        let vectors = [None];
        vectors.into_iter().flatten().map(Isa).chain([Isa::portable()])
    }

    /// Plain Rust without vector intrinsics, which every machine has.
    pub fn portable() -> Isa {
        Isa(Level::Portable(Portable))
    }

    /// Runs a kernel compiled for this instruction set.
    #[inline]
    pub(crate) fn dispatch<K: Kernel>(self, kernel: K) -> K::Output {
        match self.0 {
            #[cfg(target_arch = "x86_64")]
            Level::Avx512(set) => set.enabled(kernel),
            #[cfg(target_arch = "x86_64")]
            Level::Avx2(set) => set.enabled(kernel),
            Level::Portable(set) => kernel.run(set),
        }
    }
}
