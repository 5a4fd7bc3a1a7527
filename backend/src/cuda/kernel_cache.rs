//! Compiled kernels by source: each is compiled once in a process. Who waits for one compiles others
//! meanwhile, so that a piece of several long kernels is not compiled by one thread alone.

use super::code::Code;
use super::lazy_nvrtc::LazyNvrtc;
use super::nvrtc::{Arch, Source};
use super::stamps::TIMELINE;
use crate::artifact::Digest;
use crate::compiler::{Claim, Entry, Store, claim_or_wait};
use piecewise_kernels::cuda::{LaunchRecipe, PRELUDE, Param};
use rustc_hash::FxHashMap;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Instant;

/// The kind of entry that the store keeps machine code under.
pub const KIND: &str = "cubin";

/// Options of every kernel of a recipe.
const OPTIONS: [&str; 1] = ["--std=c++17"];

/// What sources of recipes include; the second where they note times.
static HEADERS: [(&str, &str); 2] = [("prelude.cuh", PRELUDE), TIMELINE];

type Compiled = Result<Arc<Code>, String>;

/// A kernel that is wanted: [`KernelCache::code`] gives its code.
#[derive(Debug)]
pub(super) struct WantedKernel {
    /// What errors and logs call it.
    what: String,
    text: String,
    headers: &'static [(&'static str, &'static str)],
    options: Vec<String>,
    key: Digest,
    code: OnceLock<Arc<Code>>,
    /// Held by who makes the code.
    making: Mutex<()>,
}

impl WantedKernel {
    /// The code, made by `make` if nobody has made it yet. A failure is not kept: what was missing may
    /// be there when it is wanted again.
    fn code(&self, make: impl FnOnce() -> Compiled) -> Compiled {
        if let Some(code) = self.code.get() {
            return Ok(Arc::clone(code));
        }
        let _making = self.making.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(code) = self.code.get() {
            return Ok(Arc::clone(code));
        }
        let code = make()?;
        Ok(Arc::clone(self.code.get_or_init(|| code)))
    }
}

/// The headers and options that a recipe's source is compiled with.
fn compiled_with(recipe: &LaunchRecipe) -> (&'static [(&'static str, &'static str)], Vec<&str>) {
    let notes = recipe.params.contains(&Param::Stamps);
    let headers = if notes { &HEADERS[..] } else { &HEADERS[..1] };
    (headers, recipe.options.iter().map(String::as_str).chain(OPTIONS).collect())
}

/// Machine code by the digest of everything that changes what it does: the version of NVRTC is
/// its provenance.
#[derive(Debug)]
pub(super) struct KernelCache {
    pub(super) nvrtc: LazyNvrtc,
    pub(super) arch: Arch,
    wanted: Mutex<FxHashMap<Digest, Arc<WantedKernel>>>,
    /// Those that nobody has begun, by the length of their source.
    waiting: Mutex<BTreeMap<(usize, Digest), Arc<WantedKernel>>>,
}

impl KernelCache {
    pub(super) fn new(nvrtc: LazyNvrtc, arch: Arch) -> Self {
        Self { nvrtc, arch, wanted: Mutex::default(), waiting: Mutex::default() }
    }

    /// The kernel of a recipe's source, to be compiled by whoever waits for some kernel first.
    pub(super) fn want(&self, recipe: &LaunchRecipe) -> Arc<WantedKernel> {
        let (headers, options) = compiled_with(recipe);
        self.wanted(&recipe.source, headers, &options, &recipe.entry)
    }

    /// The PTX of a recipe's source; it is kept nowhere.
    ///
    /// # Errors
    /// When there is no NVRTC here, or its log.
    pub(super) fn ptx(&self, recipe: &LaunchRecipe) -> Result<Vec<u8>, String> {
        let (headers, options) = compiled_with(recipe);
        let text = &recipe.source;
        let source = Source { name: "kernel.cu", text, headers, options: &options };
        let nvrtc = self.nvrtc.get().map_err(|error| error.to_string())?;
        nvrtc.ptx(&source, self.arch).map_err(|error| error.to_string())
    }

    /// The machine code of a source without a recipe, whose entries are `what`.
    ///
    /// # Errors
    /// The compiler's log.
    pub(super) fn compiled(&self, text: &str, what: &str, store: &dyn Store) -> Compiled {
        self.code(&self.wanted(text, &[], &[], what), store)
    }

    fn wanted(
        &self,
        text: &str,
        headers: &'static [(&'static str, &'static str)],
        options: &[&str],
        what: &str,
    ) -> Arc<WantedKernel> {
        // The same name for all: that of one of several users must not reach the code.
        let key = self.key(&Source { name: "kernel.cu", text, headers, options });
        let mut known = self.wanted.lock().unwrap_or_else(PoisonError::into_inner);
        let wanted = known.entry(key).or_insert_with(|| {
            let wanted = Arc::new(WantedKernel {
                what: what.to_owned(),
                text: text.to_owned(),
                headers,
                options: options.iter().map(|&option| option.to_owned()).collect(),
                key,
                code: OnceLock::new(),
                making: Mutex::new(()),
            });
            let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
            waiting.insert((text.len(), key), Arc::clone(&wanted));
            wanted
        });
        Arc::clone(wanted)
    }

    /// The machine code of a kernel. While another thread compiles it, this one compiles what else
    /// is wanted, the longest source first.
    ///
    /// # Errors
    /// The compiler's log.
    pub(super) fn code(&self, wanted: &WantedKernel, store: &dyn Store) -> Compiled {
        while wanted.code.get().is_none() {
            let next = self.waiting.lock().unwrap_or_else(PoisonError::into_inner).pop_last();
            let Some((_, next)) = next else { break };
            let made = next.code(|| self.load_or_compile(&next, store));
            if std::ptr::eq(&*next, wanted) {
                return made;
            }
        }
        wanted.code(|| self.load_or_compile(wanted, store))
    }

    fn key(&self, source: &Source<'_>) -> Digest {
        let mut hasher = blake3::Hasher::new();
        let mut add = |text: &str| {
            hasher.update(&(text.len() as u64).to_le_bytes());
            hasher.update(text.as_bytes());
        };
        add(&self.arch.to_string());
        add(source.text);
        source.headers.iter().for_each(|(name, text)| {
            add(name);
            add(text);
        });
        source.options.iter().for_each(|option| add(option));
        Digest(*hasher.finalize().as_bytes())
    }

    fn load_or_compile(&self, wanted: &WantedKernel, store: &dyn Store) -> Compiled {
        let WantedKernel { what, text, headers, options, key, .. } = wanted;
        let (what, key) = (what.as_str(), *key);
        let options: Vec<&str> = options.iter().map(String::as_str).collect();
        let (mut stored, mut claim) = (self.stored(key, store), None);
        if let Ok(None) = stored {
            match claim_or_wait(store, KIND, key) {
                Claim::Made => stored = self.stored(key, store),
                mine => claim = Some(mine),
            }
        }
        match stored {
            Ok(Some(code)) => return Ok(code.into()),
            Ok(None) => {}
            Err(reason) => tracing::warn!(reason, "kernel `{what}` is compiled again"),
        }
        let nvrtc = self.nvrtc.get().map_err(|e| e.to_string())?;
        if !nvrtc.archs().contains(&self.arch) {
            let known: Vec<_> = nvrtc.archs().iter().map(Arch::to_string).collect();
            let (name, arch) = (nvrtc.identity(), self.arch);
            return Err(format!("{name} does not know {arch}; it knows {}", known.join(" ")));
        }
        let source = Source { name: "kernel.cu", text, headers, options: &options };
        let started = Instant::now();
        let cubin = nvrtc.compile(&source, self.arch).map_err(|e| e.to_string())?;
        tracing::debug!(kernel = what, source = text.len(), time = ?started.elapsed(), "compiled");
        let code = Code { nvrtc: nvrtc.version(), cubin };
        let digest = Digest::of(text.as_bytes()).to_string();
        let (arch, options) = (self.arch.to_string(), options.join(" "));
        let made_by = nvrtc.identity();
        let factors = [
            ("target", arch.as_str()),
            ("kernel", what),
            ("source", &digest),
            ("options", &options),
            ("made by", &made_by),
        ];
        let bytes = code.to_bytes()?;
        let entry = Entry { kind: KIND, key, factors: &factors, bytes: &bytes };
        if let Err(error) = store.put(entry) {
            tracing::warn!(%error, "a compiled kernel is not kept");
        }
        drop(claim);
        Ok(code.into())
    }

    /// The code of the store, if it has it and it can be used.
    fn stored(&self, key: Digest, store: &dyn Store) -> Result<Option<Code>, String> {
        let stored = store.get(KIND, key).map_err(|error| error.to_string())?;
        stored.map(|bytes| Code::from_bytes(&bytes, self.nvrtc.driver_major)).transpose()
    }
}

#[cfg(test)]
mod tests {
    use super::super::compiler::CudaCompiler;
    use super::*;
    use crate::artifact::PieceSize;
    use crate::compiler::{Compiler, NoStore, PieceAt};
    use piecewise_ir::module::UniquePiece;
    use piecewise_ir::text::parse_graph;
    use piecewise_kernels::op::OpRegistry;
    use proptest::prelude::*;

    /// The key of a kernel with one header and two options.
    fn key(arch: u32, name: &str, [text, header, code, first, second]: [&str; 5]) -> Digest {
        let (headers, options) = ([(header, code)], [first, second]);
        let source = Source { name, text, headers: &headers, options: &options };
        KernelCache::new(LazyNvrtc::missing(), Arch { number: arch }).key(&source)
    }

    #[test]
    fn who_waits_compiles_longer_sources_first_and_each_is_compiled_once() {
        let cache = KernelCache::new(LazyNvrtc::missing(), Arch::HOPPER);
        let [short, asked, _long] =
            ["a", "bb", "ccc"].map(|text| cache.wanted(text, &[], &[], text));
        let missing = cache.code(&asked, &NoStore).unwrap_err();
        assert!(missing.contains("NVRTC"), "{missing}");
        let left = Vec::from_iter(cache.waiting.lock().unwrap().values().cloned());
        assert!(left.len() == 1 && Arc::ptr_eq(&left[0], &short), "the longer were done before");
        assert!(Arc::ptr_eq(&cache.wanted("bb", &[], &[], "another"), &asked));
        assert_eq!(cache.waiting.lock().unwrap().len(), 1);
        assert_eq!(cache.code(&short, &NoStore), Err(missing));
    }

    /// A piece of these nodes over `%x`, of which `v0` is the last.
    fn piece(nodes: &str) -> UniquePiece {
        let text =
            format!("graph @g {{\n dim T in [1..16]\n input %x: f32[T,8]\n {nodes}\n ret v0\n}}");
        let graph = parse_graph(&text).unwrap_or_else(|e| panic!("{text}: {e}"));
        UniquePiece { over: graph.symbols().keys().next(), graph, hash: [7; 32] }
    }

    #[test]
    fn a_piece_that_was_said_ahead_has_its_kernels_in_line_with_those_of_others() {
        let kernels = Arc::new(KernelCache::new(LazyNvrtc::missing(), Arch::HOPPER));
        let compiler = CudaCompiler::over(Arc::new(OpRegistry::new()), kernels.clone(), false);
        let at = |piece| PieceAt { piece, size: PieceSize::Exact(4), bounds: &[16] };
        let region = |nodes: &str| {
            piece(&format!("v0: f32[T,8] = region over T (%a: row %x) {{\n{nodes}\n ret a0\n }}"))
        };
        let short = region("a0: f32[8] = neg %a");
        let long = region("a1: f32[8] = mul %a, %a\n a0: f32[8] = neg a1");
        compiler.want(at(&short));
        compiler.want(at(&long));
        // Who compiles it says that it has no implementation.
        let lost = piece("v0: f32[T,8] = custom \"any.turn\" %x rows independent");
        compiler.want(at(&lost));
        compiler.compile(at(&lost), &[], &NoStore).unwrap_err();
        let wanted = || Vec::from_iter(kernels.wanted.lock().unwrap().values().cloned());
        let said = wanted();
        assert_eq!(kernels.waiting.lock().unwrap().len(), said.len());
        compiler.compile(at(&short), &[], &NoStore).unwrap_err();
        let longest = said.iter().max_by_key(|wanted| wanted.text.len()).unwrap();
        let waits = |wanted: &Arc<WantedKernel>| {
            kernels.waiting.lock().unwrap().values().any(|waiting| Arc::ptr_eq(waiting, wanted))
        };
        assert!(!waits(longest), "it is of the other piece, and comes first");
        compiler.compile(at(&long), &[], &NoStore).unwrap_err();
        assert_eq!(wanted().len(), said.len(), "what is compiled is what was said");
    }

    proptest! {
        #[test]
        fn any_change_of_source_header_or_options_changes_the_key(
            texts in proptest::array::uniform5("[ab ]{0,6}"),
            others in proptest::array::uniform5("[ab ]{0,6}"),
        ) {
            let texts = texts.each_ref().map(String::as_str);
            let others = others.each_ref().map(String::as_str);
            let expected = key(90, "kernel", texts);
            prop_assert_eq!(key(90, "kernel", others) == expected, others == texts);
            prop_assert_ne!(key(100, "kernel", texts), expected);
            prop_assert_eq!(key(90, "another", texts), expected);
        }
    }

    /// A store to which another process is bringing every kernel.
    #[derive(Default)]
    struct Awaited {
        kept: crate::store::MemoryStore,
        asked: Mutex<u64>,
    }

    impl Store for Awaited {
        fn get(
            &self,
            kind: &'static str,
            key: Digest,
        ) -> Result<Option<Vec<u8>>, crate::store::StoreError> {
            self.kept.get(kind, key)
        }

        fn put(&self, entry: Entry<'_>) -> Result<(), crate::store::StoreError> {
            self.kept.put(entry)
        }

        fn claim(&self, kind: &'static str, key: Digest) -> Claim {
            let mut asked = self.asked.lock().unwrap();
            *asked += 1;
            if *asked < 3 {
                return Claim::Taken;
            }
            let code = Code { nvrtc: (13, 0), cubin: b"\x7fELF".to_vec() };
            let bytes = code.to_bytes().unwrap();
            self.kept.put(Entry { kind, key, factors: &[], bytes: &bytes }).unwrap();
            Claim::Made
        }
    }

    /// What was missing at the first try may be there at the next; what was made is made once.
    #[test]
    fn a_kernel_that_did_not_compile_is_compiled_when_it_is_wanted_again() {
        let cache = KernelCache::new(LazyNvrtc::missing(), Arch::HOPPER);
        let wanted = cache.wanted("code", &[], &[], "kernel");
        cache.code(&wanted, &NoStore).unwrap_err();
        let store = Awaited::default();
        let code = cache.code(&wanted, &store).unwrap();
        assert!(Arc::ptr_eq(&cache.code(&wanted, &NoStore).unwrap(), &code));
    }

    #[test]
    fn a_kernel_that_another_process_compiles_is_waited_for() {
        let cache = KernelCache::new(LazyNvrtc::missing(), Arch::HOPPER);
        let store = Awaited::default();
        let code = cache.compiled("code", "kernel", &store).unwrap();
        assert_eq!((code.nvrtc, *store.asked.lock().unwrap()), ((13, 0), 3));
    }
}
