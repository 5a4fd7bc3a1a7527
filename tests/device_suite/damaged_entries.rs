//! A bit of an entry is wrong on the disk: what is computed is right all the same, the entry is made
//! again, and the build after that compiles nothing.

use crate::target::{Cpu, Cuda, Target};
use crate::warm_start::{build, steps};
use piecewise_ir::testing::Rng;
use piecewise_kernels::op::OpRegistry;
use piecewise_runtime::artifact_store::CacheStore;
use piecewise_runtime::config::CacheConfig;
use piecewise_runtime::model::CompiledModel;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

fn made<T: Target>(dir: &Path) -> CompiledModel<T::Device> {
    let config = CacheConfig { dir: Some(dir.to_owned()), ..CacheConfig::default() };
    let store = CacheStore::open(&config).unwrap();
    let (device, compiler) = T::make(&Arc::new(OpRegistry::builtin()), 1);
    build(device, &*compiler, &store).unwrap()
}

/// The entries of a kind; what was set aside has a longer name.
fn entries(dir: &Path, kind: &str) -> Vec<PathBuf> {
    let Ok(folder) = fs::read_dir(dir.join("v1").join(kind)) else { return Vec::new() };
    let mut paths = Vec::from_iter(folder.map(|entry| entry.unwrap().path()));
    paths.retain(|path| path.extension().is_none());
    paths.sort();
    paths
}

/// Damages one place after another of entries in a cache of its own, chosen by `seed`.
fn damage_does_not_show<T: Target>(places: u64, seed: u64) {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path();
    let expected = steps(&mut made::<T>(dir));
    let mut rng = Rng::new(seed);
    for place in 0..places {
        let kinds = ["piece", "image", "cubin"].map(|kind| entries(dir, kind));
        let there = kinds.iter().filter(|paths| !paths.is_empty()).count() as u64;
        let paths = &kinds[(place % there) as usize];
        let path = &paths[rng.below(paths.len())];
        let good = fs::read(path).unwrap();
        let mut bad = good.clone();
        let bit = rng.below(8 * good.len());
        bad[bit / 8] ^= 1 << (bit % 8);
        fs::write(path, bad).unwrap();
        if kinds[2].contains(path) {
            // Machine code is looked for where a piece is lowered again.
            kinds[0].iter().for_each(|piece| fs::remove_file(piece).unwrap());
        }
        let what = || format!("bit {bit} of {}", path.display());
        for (found, expected) in steps(&mut made::<T>(dir)).iter().zip(&expected) {
            assert_eq!(found.difference(expected), None, "{}", what());
        }
        assert!(fs::read(path).unwrap() == good, "{} was not made again", what());
        let healed = made::<T>(dir);
        assert_eq!(healed.statistics().compile.total_compiled(), 0, "{}", what());
    }
}

/// Four caches at a time.
fn check<T: Target>(places: u64) {
    if !T::is_there() {
        return;
    }
    std::thread::scope(|scope| {
        for seed in 0..4 {
            scope.spawn(move || damage_does_not_show::<T>(places / 4, seed));
        }
    });
    println!("{}: {places} bits of entries were wrong in turn", T::NAME);
}

#[test]
fn cpu_wrong_bits_of_entries_change_nothing() {
    check::<Cpu>(60);
}

#[test]
fn cuda_wrong_bits_of_entries_change_nothing() {
    check::<Cuda>(500);
}
