//! Attention alone to prompts on a real GPU: pages in shuffled order, a sample of rows against the f64
//! reference, and how long it takes. Skipped without one, unless PIECEWISE_REQUIRE_GPU=1.

use crate::harness::target::{Cuda, Target};
use crate::harness::{BenchOn, CANARY, decode, encode, norm_error, pattern, unique};
use piecewise_backend::artifact::PieceSize;
use piecewise_backend::compiler::{CompilerOptions, PieceAt};
use piecewise_backend::device::Device;
use piecewise_backend::store::MemoryStore;
use piecewise_ir::builder::Builder;
use piecewise_ir::custom::CustomOpDef;
use piecewise_ir::dim::Dim;
use piecewise_ir::dtype::DType::{BF16, I32};
use piecewise_ir::eval::Array;
use piecewise_ir::module::UniquePiece;
use piecewise_kernels::attention::{PAGE_ROWS, PagedAttention};
use piecewise_kernels::op::OpRegistry;
use std::sync::Arc;
use std::time::Duration;

const HEADS: u64 = 32;
const KV_HEADS: u64 = 8;
const SCALE: f64 = 0.1;
/// Pages of the pool past those of the prompt, which hold NaN.
const SPARE_PAGES: u64 = 5;
/// Attention in one graph, and graphs that are timed.
const LAUNCHES: u32 = 20;
const REPLAYS: usize = 7;

/// One causal prompt from its start, in bf16.
struct Prompt {
    tokens: u64,
    dim: u64,
}

fn ints(values: impl IntoIterator<Item = u64>) -> Array {
    let data: Vec<f64> = values.into_iter().map(|x| x as f64).collect();
    Array { dtype: I32, shape: vec![data.len()], data }
}

impl Prompt {
    fn pages(&self) -> u64 {
        self.tokens.div_ceil(PAGE_ROWS)
    }

    /// The page of each number, in an order without neighbours.
    fn table(&self) -> Vec<u64> {
        let mut table: Vec<u64> = (0..self.pages() + SPARE_PAGES).collect();
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        for i in (1..table.len()).rev() {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            table.swap(i, (state >> 33) as usize % (i + 1));
        }
        table.truncate(self.pages() as usize);
        table
    }

    /// Tokens, sequences and rows of the pool.
    fn sizes(&self) -> [u64; 3] {
        [self.tokens, 1, (self.pages() + SPARE_PAGES) * PAGE_ROWS]
    }

    fn piece(&self) -> UniquePiece {
        let b = Builder::new("prompt");
        let [t, s, p] =
            [("T", 0), ("S", 1), ("P", 2)].map(|(name, i)| b.symbol(name, 1, self.sizes()[i]));
        let shape =
            |rows, heads: u64| -> [Dim; 3] { [Dim::from(rows), heads.into(), self.dim.into()] };
        let table: [Dim; 2] = [Dim::from(s), self.pages().into()];
        let operands = [
            b.input("q", BF16, shape(t, HEADS)),
            b.input("k", BF16, shape(p, KV_HEADS)),
            b.input("v", BF16, shape(p, KV_HEADS)),
            b.input("table", I32, table),
            b.input("lengths", I32, [s]),
            b.input("starts", I32, [s]),
            b.input("query_lengths", I32, [s]),
        ];
        let out = b.custom_one(&PagedAttention, &operands, PagedAttention::attrs(SCALE, true));
        unique(b.finish([out]).unwrap(), Some(t))
    }

    /// Queries, and keys and values where their positions are.
    fn floats(&self) -> [Array; 3] {
        let (rows, width) = (self.sizes()[2], (KV_HEADS * self.dim) as usize);
        let queries = pattern(BF16, &[self.tokens, HEADS, self.dim], 1);
        let [keys, values] = [2, 3].map(|seed| {
            let mut pool = pattern(BF16, &[rows, KV_HEADS, self.dim], seed);
            let mut is_used = vec![false; rows as usize];
            for position in 0..self.tokens {
                is_used[self.row_of(position)] = true;
            }
            let unused = pool.data.chunks_mut(width).zip(is_used).filter(|(_, used)| !used);
            unused.for_each(|(row, _)| row.fill(f64::NAN));
            pool
        });
        [queries, keys, values]
    }

    fn row_of(&self, position: u64) -> usize {
        (self.table()[(position / PAGE_ROWS) as usize] * PAGE_ROWS + position % PAGE_ROWS) as usize
    }

    /// What a token's row is by the reference: a decode at its position.
    fn expected(&self, floats: &[Array; 3], token: u64) -> Vec<f64> {
        let [queries, keys, values] = floats;
        let width = (HEADS * self.dim) as usize;
        let query = Array {
            dtype: BF16,
            shape: vec![1, HEADS as usize, self.dim as usize],
            data: queries.data[token as usize * width..][..width].to_vec(),
        };
        let mut table = ints(self.table());
        table.shape.insert(0, 1);
        let operands =
            [query, keys.clone(), values.clone(), table, ints([token + 1]), ints([0]), ints([1])];
        let attrs = PagedAttention::attrs(SCALE, true);
        PagedAttention.evaluate(&operands, &attrs, &[]).unwrap().remove(0).data
    }

    /// The bytes of all rows, launched and replayed, and the median of what one takes.
    fn run(&self, floats: &[Array; 3], kernels: &MemoryStore) -> (Vec<u8>, Duration) {
        let registry = Arc::new(OpRegistry::builtin());
        let mut bench = BenchOn::<Cuda>::new(self.piece(), Arc::clone(&registry), 1);
        let sizes = self.sizes();
        let compiler = bench.device.compiler(registry, CompilerOptions::default());
        let exact = PieceSize::Exact(self.tokens);
        let at = PieceAt { piece: &bench.piece, size: exact, bounds: &sizes };
        let artifact = compiler.compile(at, &[], kernels).unwrap();
        let metadata = [ints(self.table()), ints([self.tokens]), ints([0]), ints([self.tokens])];
        let inputs = bench.piece.graph.inputs().iter().map(|input| input.value);
        let inputs = Vec::from_iter(inputs);
        for (value, array) in inputs.into_iter().zip(floats.iter().chain(&metadata)) {
            let address = bench.address(value);
            bench.device.write(address, &encode(array)).unwrap();
        }
        let program = bench.bind(&artifact).unwrap();
        bench.launch(&program, &sizes, &sizes);
        let launched = bench.outputs(&sizes).remove(0);
        bench.clear_results();
        let programs = vec![&program; LAUNCHES as usize];
        let graph = bench.device.capture("attention", &programs, &sizes).unwrap();
        let mut times = Vec::new();
        for _ in 0..REPLAYS {
            let start = bench.device.mark(None).unwrap();
            bench.device.replay(&graph).unwrap();
            let end = bench.device.mark(None).unwrap();
            times.push(bench.device.elapsed(&start, &end).unwrap() / LAUNCHES);
        }
        times.sort_unstable();
        assert!(bench.outputs(&sizes).remove(0) == launched, "replayed otherwise than launched");
        assert!(launched.iter().any(|&byte| byte != CANARY), "nothing was written");
        (launched, times[REPLAYS / 2])
    }

    /// Products and sums, of which causal attention does half.
    fn operations(&self) -> f64 {
        2.0 * (self.tokens as f64).powi(2) * (HEADS * self.dim) as f64
    }

    /// The first and the last tokens, those around pages and blocks of keys, and some between.
    fn sampled(&self) -> Vec<u64> {
        let mut tokens = vec![0, 1, 15, 16, 17, 63, 64, 127, 128, 129, self.tokens / 2];
        tokens.extend((1..8).map(|i| (i * self.tokens / 7).saturating_sub(i)));
        tokens.push(self.tokens - 1);
        tokens.retain(|&token| token < self.tokens);
        tokens.sort_unstable();
        tokens.dedup();
        tokens
    }
}

#[test]
fn attention_alone_to_prompts_equals_the_reference_and_is_timed() {
    if !Cuda::is_there() {
        return;
    }
    let kernels = MemoryStore::new();
    for dim in [128, 64] {
        for tokens in [512, 2048, 8192] {
            let prompt = Prompt { tokens, dim };
            let floats = prompt.floats();
            let (bytes, time) = prompt.run(&floats, &kernels);
            let row = (HEADS * dim) as usize * BF16.size();
            for token in prompt.sampled() {
                let found = decode(BF16, &bytes[token as usize * row..][..row]);
                let error = norm_error(&found, &prompt.expected(&floats, token));
                assert!(error < 8e-3, "{tokens} of {dim}, token {token}: off by {error}");
            }
            let (us, rate) = (time.as_secs_f64() * 1e6, prompt.operations() / time.as_secs_f64());
            println!(
                "cuda: attention alone, {tokens} tokens, {HEADS} heads over {KV_HEADS} of {dim}: \
                 {us:.1} us, {:.0} TFLOP/s",
                rate / 1e12
            );
        }
    }
}

/// What the test above relies on, without a GPU: pages are shuffled, each once, and a row of the reference
/// is that of the whole prompt.
#[test]
fn a_row_of_a_prompt_is_a_decode_at_its_position() {
    let prompt = Prompt { tokens: 40, dim: 16 };
    let mut table = prompt.table();
    assert!(table.windows(2).any(|pair| pair[1] != pair[0] + 1), "{table:?}");
    let floats = prompt.floats();
    let metadata = [ints([40]), ints([0]), ints([40])];
    let mut pages = ints(prompt.table());
    pages.shape.insert(0, 1);
    let operands: Vec<Array> = floats.iter().cloned().chain([pages]).chain(metadata).collect();
    let attrs = PagedAttention::attrs(SCALE, true);
    let whole = PagedAttention.evaluate(&operands, &attrs, &[]).unwrap().remove(0).data;
    let width = (HEADS * prompt.dim) as usize;
    for token in prompt.sampled() {
        let row = &whole[token as usize * width..][..width];
        assert!(norm_error(&prompt.expected(&floats, token), row) < 1e-12, "{token}");
    }
    assert_eq!(prompt.sampled(), [0, 1, 4, 9, 14, 15, 16, 17, 18, 20, 23, 28, 33, 39]);
    table.sort_unstable();
    table.dedup();
    assert_eq!(table.len() as u64, prompt.pages());
}
