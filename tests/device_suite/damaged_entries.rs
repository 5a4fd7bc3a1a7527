//! A bit of an entry is wrong on the disk: what is computed is right all the same, the entry is made
//! again, and the build after that compiles nothing.

use crate::sequences::Left;
use crate::target::{Cpu, Cuda, Target};
use crate::warm_start::{build_planned, setup, steps};
use piecewise_ir::module::Module;
use piecewise_kernels::op::OpRegistry;
use piecewise_runtime::config::CacheConfig;
use piecewise_runtime::steps::CompiledModel;
use piecewise_runtime::store::CacheStore;
use piecewise_testing::{Rng, soak};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

fn made<T: Target>(module: &Arc<Module>, dir: &Path) -> CompiledModel {
    let config = CacheConfig { dir: Some(dir.to_owned()), ..CacheConfig::default() };
    let store = CacheStore::open(&config).unwrap();
    let (device, compiler) = T::make(&Arc::new(OpRegistry::builtin()), 1);
    build_planned(module, device, &*compiler, &store).unwrap()
}

/// The entries of a kind; what was set aside has a longer name.
fn entries(dir: &Path, kind: &str) -> Vec<PathBuf> {
    let Ok(folder) = fs::read_dir(dir.join("v1").join(kind)) else { return Vec::new() };
    let mut paths = Vec::from_iter(folder.map(|entry| entry.unwrap().path()));
    paths.retain(|path| path.extension().is_none());
    paths.sort();
    paths
}

const KINDS: [&str; 3] = ["piece", "image", "cubin"];

/// A cache that a build has filled, and what the steps of its model leave.
struct Filled {
    folder: tempfile::TempDir,
    module: Arc<Module>,
    expected: Vec<Left>,
}

impl Filled {
    fn new<T: Target>() -> Self {
        // An entry is synced each time that it is made again, which a disk takes milliseconds for.
        let folder = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
        let module = Arc::new(setup().module());
        let expected = steps(&mut made::<T>(&module, folder.path()));
        Self { folder, module, expected }
    }

    fn entries(&self, kind: &str) -> Vec<PathBuf> {
        entries(self.folder.path(), kind)
    }

    /// All that the cache has.
    fn read(&self) -> BTreeMap<PathBuf, Vec<u8>> {
        let paths = KINDS.into_iter().flat_map(|kind| self.entries(kind));
        paths.map(|path| (path.clone(), fs::read(path).unwrap())).collect()
    }

    /// With one bit of an entry wrong.
    fn check<T: Target>(&self, path: &Path, bit: usize) {
        let good = fs::read(path).unwrap();
        let mut bad = good.clone();
        bad[bit / 8] ^= 1 << (bit % 8);
        fs::write(path, bad).unwrap();
        let what = || format!("bit {bit} of {}", path.display());
        let found = steps(&mut made::<T>(&self.module, self.folder.path()));
        for (found, expected) in found.iter().zip(&self.expected) {
            assert_eq!(found.difference(expected), None, "{}", what());
        }
        assert!(fs::read(path).unwrap() == good, "{} was not made again", what());
    }

    /// The next build compiles nothing.
    fn check_healed<T: Target>(&self) {
        let healed = made::<T>(&self.module, self.folder.path());
        assert_eq!(healed.statistics().compile.total_compiled(), 0);
    }
}

/// Places of entries in a cache of its own, chosen by `seed`.
fn check_random<T: Target>(places: usize, seed: u64) {
    let filled = Filled::new::<T>();
    let mut rng = Rng::new(seed);
    for place in 0..places {
        let kinds = KINDS.map(|kind| filled.entries(kind));
        let there = kinds.iter().filter(|paths| !paths.is_empty()).count();
        let paths = &kinds[place % there];
        let path = &paths[rng.below(paths.len())];
        if kinds[2].contains(path) {
            // Machine code is looked for where a piece is lowered again.
            kinds[0].iter().for_each(|piece| fs::remove_file(piece).unwrap());
        }
        let bits = 8 * fs::metadata(path).unwrap().len() as usize;
        filled.check::<T>(path, rng.below(bits));
        filled.check_healed::<T>();
    }
}

/// Four caches at a time.
fn check<T: Target>(places: usize) {
    if !T::is_there() {
        return;
    }
    std::thread::scope(|scope| {
        for seed in 0..4 {
            scope.spawn(move || check_random::<T>(places / 4, seed));
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

/// One bit of each byte of the largest entry of a kind: of its head, and of one byte in five after that,
/// or, in a long run, of all.
fn check_every_byte(kind: &str) {
    let filled = Filled::new::<Cpu>();
    let len = |path: &PathBuf| fs::metadata(path).unwrap().len() as usize;
    let path = filled.entries(kind).into_iter().max_by_key(len).unwrap();
    let bytes = len(&path);
    assert!((1000..20_000).contains(&bytes), "{kind} of {bytes} bytes");
    let all = filled.read();
    let (head, stride) = (64, if soak(1) == 1 { 5 } else { 1 });
    let places = Vec::from_iter((0..head).chain((head..bytes).step_by(stride)));
    for (number, at) in places.iter().copied().enumerate() {
        filled.check::<Cpu>(&path, 8 * at + at % 8);
        assert!(filled.read() == all, "the cache is another after byte {at} was wrong");
        // So what it leads to need not be seen each time.
        if number % 16 == 0 {
            filled.check_healed::<Cpu>();
        }
    }
    filled.check_healed::<Cpu>();
    println!("{kind}: {} of {bytes} bytes were wrong in turn", places.len());
}

#[test]
fn no_wrong_byte_of_a_lowered_piece_changes_anything() {
    check_every_byte("piece");
}

#[test]
fn no_wrong_byte_of_an_image_changes_anything() {
    check_every_byte("image");
}
