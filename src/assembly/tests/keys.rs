//! The methods of the keys.

use super::*;
use crate::assembly::keys::TYPED;
use piecewise_runtime::config::{RuntimeConfig, ShortSizeLists};

#[test]
fn every_key_has_a_method() {
    // What serves requests is no assembly's.
    let keys = Vec::from_iter(RuntimeConfig::keys().filter(|key| !key.starts_with("server.")));
    let lacking = Vec::from_iter(keys.iter().filter(|key| !TYPED.contains(key)));
    assert!(keys.len() > 50 && lacking.is_empty(), "{lacking:?}");
    assert!(TYPED.iter().all(|key| keys.contains(key)), "{TYPED:?}");
}

/// A method that named another key or gave a value of another kind would be found here.
#[test]
fn methods_set_what_their_keys_take() {
    let checks = Checks { poison: true, ..Checks::default() };
    let capture = tiny()
        .level(CompileLevel::Trace)
        .graph_mode(GraphMode::Full)
        .capture_sizes([8, 16])
        .decode_batch_sizes(vec![1, 2])
        .capture_query_lengths([1, 4])
        .capture_own_rows([("rows.windows", [2])])
        .split_at(["a", "b"])
        .passes_off(["fuse"])
        .compile_sizes([3])
        .launched_sizes([5])
        .lazy_sizes([8])
        .capture(CaptureWhen::Lazy)
        .on_capture_failure(OnCaptureFailure::Launch)
        .capture_attempts(7)
        .recapture_limit(9)
        .short_size_lists(ShortSizeLists::Extend)
        .probe_capture(false)
        .capture_exclude(["model.layers.0"])
        .capture_item_log("items.jsonl")
        .strict();
    let rest = tiny()
        .never_split()
        .max_num_tokens(16)
        .max_num_rows(8)
        .max_num_seqs(4)
        .max_num_frames(3)
        .max_seq_len(64)
        .memory_budget(1 << 30)
        .memory_fraction(0.5)
        .tune(TuneMode::Load)
        .tune_seconds(9)
        .batch_invariant(true)
        .padding(false)
        .measure_padding(true)
        .prefix_cache(false)
        .nvtx(true)
        .checks(checks)
        .sampling_controls(true)
        .stats_interval_seconds(11)
        .device(DeviceSpec::Cpu)
        .activations(DType::BF16)
        .quantize(Quantize::Fp8);
    let stored = tiny()
        .dump_dir("dumps")
        .dump_passes(["fuse"])
        .dump_pieces(["u2"])
        .dump_code(true)
        .cuda_synchronous(true)
        .cuda_serial(true)
        .cuda_dot_dir("graphs")
        .cuda_line_info(true)
        .no_cache()
        .cache_dir("kept")
        .cache_max_bytes(1 << 20)
        .cache_read_only(true)
        .cache_shared(true)
        .cache_checksum_key_file("key")
        .cache_remote_url("s3://bucket/prefix")
        .cache_remote_write(true)
        .cache_remote_trusted(true)
        .cache_remote_timeout_ms(250);
    let mut shown = String::new();
    for assembly in [capture, rest, stored] {
        for entry in assembly.layers().unwrap().finish().unwrap().entries() {
            if let (Source::Program, Some(value)) = (&entry.source, &entry.value) {
                shown += &format!("{} = {value}\n", entry.key);
            }
        }
    }
    insta::assert_snapshot!(shown);
}
