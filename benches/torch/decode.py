#!/usr/bin/env python3
"""Decodes and prompts of transformers, eager and compiled, in the rows of `piecewise bench --json`.

    python3 benches/torch/decode.py --preset qwen3-8b --batch 1,8 --context 512 > peer.json
    python3 benches/torch/decode.py --preset qwen3-8b --batch "" --prefill 512,2048 > prompts.json

The models have the shapes of the presets of `piecewise bench` and random weights made on the
device; the KV cache is transformers' StaticCache, every sequence of a batch has the same context,
and the sampled ids feed back on the device. A prompt keeps no keys and values, which ours does. The
host is a step ahead, as in `piecewise bench`.
What can't be measured is a row with a reason; the exit status is 0 all the same. With --in-turn it
says `ready` on stderr where a row is compiled, and times it when a line comes on stdin: so several
compile beside each other, and nothing is timed meanwhile.
"""

import argparse
import gc
import json
import sys
import time

PRESETS = {
    "qwen3-0.6b": dict(
        family="qwen3", hidden_size=1024, intermediate_size=3072, num_hidden_layers=28,
        num_attention_heads=16, head_dim=128, tie_word_embeddings=True,
    ),
    "qwen3-8b": dict(
        family="qwen3", hidden_size=4096, intermediate_size=12288, num_hidden_layers=36,
        num_attention_heads=32, head_dim=128, tie_word_embeddings=False,
    ),
    "llama-3.2-1b": dict(
        family="llama", hidden_size=2048, intermediate_size=8192, num_hidden_layers=16,
        num_attention_heads=32, head_dim=64, tie_word_embeddings=True, rope_factor=32.0,
    ),
    "llama-3.1-8b": dict(
        family="llama", hidden_size=4096, intermediate_size=14336, num_hidden_layers=32,
        num_attention_heads=32, head_dim=128, tie_word_embeddings=False, rope_factor=8.0,
    ),
    # To try this script without a GPU.
    "tiny": dict(
        family="qwen3", hidden_size=64, intermediate_size=128, num_hidden_layers=2,
        num_attention_heads=4, head_dim=16, tie_word_embeddings=True, vocab_size=512,
    ),
}

ROPE_LLAMA3 = dict(
    rope_type="llama3", low_freq_factor=1.0, high_freq_factor=4.0,
    original_max_position_embeddings=8192, rope_theta=500000.0,
)

# Calls before the timed ones: the first compiles, the next two record and replay a graph.
COMPILE_CALLS = 3

# What --in-turn says of a row that waits to be timed.
READY = "ready"


def note(text):
    print(text, file=sys.stderr, flush=True)


def numbers(text):
    return [int(part) for part in text.split(",") if part]


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--preset", choices=sorted(PRESETS), required=True)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--dtype", choices=["bf16", "f16", "f32"], default="bf16")
    parser.add_argument("--batch", type=numbers, default=[1, 8], metavar="N,..")
    parser.add_argument("--context", type=numbers, default=[512], metavar="N,..")
    parser.add_argument(
        "--prefill", type=numbers, default=[], metavar="N,..", help="one prompt of N tokens"
    )
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--warmup", type=int, default=10)
    parser.add_argument(
        "--modes", default="eager,reduce-overhead", help="eager, reduce-overhead or both"
    )
    parser.add_argument(
        "--budget", type=float, default=float("inf"), metavar="SECONDS",
        help="start no row after so many seconds, and say so",
    )
    parser.add_argument(
        "--compile-seconds", type=float, default=75.0, metavar="SECONDS",
        help="what a compiled row is expected to take, held against --budget",
    )
    parser.add_argument(
        "--in-turn", action="store_true", help="time each row when a line comes on stdin"
    )
    return parser.parse_args()


def config_of(preset):
    from transformers import LlamaConfig, Qwen3Config

    shape = dict(PRESETS[preset])
    family, factor = shape.pop("family"), shape.pop("rope_factor", None)
    if family == "llama":
        return LlamaConfig(**dict(
            vocab_size=128256, num_key_value_heads=8, rms_norm_eps=1e-5,
            max_position_embeddings=131072, rope_parameters=dict(ROPE_LLAMA3, factor=factor),
            initializer_range=0.02, bos_token_id=None, eos_token_id=None, pad_token_id=None,
        ) | shape)
    kv_heads = min(8, shape["num_attention_heads"])
    return Qwen3Config(**dict(
        vocab_size=151936, num_key_value_heads=kv_heads, rms_norm_eps=1e-6,
        max_position_embeddings=40960,
        rope_parameters=dict(rope_type="default", rope_theta=1000000.0),
        initializer_range=0.02, bos_token_id=None, eos_token_id=None, pad_token_id=None,
    ) | shape)


def spread(values):
    ordered = sorted(values)
    at = lambda percent: ordered[max(-(-len(ordered) * percent // 100) - 1, 0)]
    return dict(median=at(50), p10=at(10), p90=at(90))


class Clock:
    """Points in the stream; without CUDA the host's clock."""

    def __init__(self, torch, device):
        self.torch, self.is_cuda = torch, device.type == "cuda"

    def mark(self):
        if not self.is_cuda:
            return time.perf_counter()
        event = self.torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def wait(self, mark):
        if self.is_cuda:
            mark.synchronize()

    def milliseconds(self, start, end):
        if not self.is_cuda:
            return 1e3 * (end - start)
        return start.elapsed_time(end)


def timed_steps(clock, step, ids, count):
    """Marks, wall and submit times of `count` dependent steps; the host is one step ahead."""
    marks, walls, submits = [], [], []
    last_done = time.perf_counter()

    def finish():
        nonlocal last_done
        clock.wait(marks[len(walls)][1])
        now = time.perf_counter()
        walls.append(1e3 * (now - last_done))
        last_done = now

    for number in range(count):
        start = clock.mark()
        entered = time.perf_counter()
        ids = step(ids)
        submits.append(1e6 * (time.perf_counter() - entered))
        marks.append((start, clock.mark()))
        if number > 0:
            finish()
    finish()
    times = [clock.milliseconds(start, end) for start, end in marks]
    return ids, times, walls, submits


def sampled(out):
    return out.logits[:, -1].argmax(dim=-1, keepdim=True)


def decode_step(torch, model, device, batch, context, steps, warmup):
    """What makes a decode, and the ids that it starts from."""
    from transformers import StaticCache

    first = max(context - warmup - steps // 2, 1)
    length = first + warmup + steps
    cache = StaticCache(config=model.config, max_cache_len=-(-length // 16) * 16)

    def decode(ids):
        return sampled(model(input_ids=ids, past_key_values=cache, use_cache=True, logits_to_keep=1))

    prompt = torch.randint(0, model.config.vocab_size, (batch, first), device=device)
    return decode, decode(prompt)


def prompt_step(torch, model, device, tokens):
    """What takes a prompt, and its ids; the sampled one is put in its first place."""
    prompt = torch.randint(0, model.config.vocab_size, (1, tokens), device=device)

    def prefill(ids):
        sample = sampled(model(input_ids=ids, use_cache=False, logits_to_keep=1))
        return torch.cat([sample, ids[:, 1:]], dim=1)

    return prefill, prompt


def measure(torch, model, device, mode, row, args):
    warmup = args.warmup + (COMPILE_CALLS if mode != "eager" else 0)
    if row["kind"] == "decode":
        eager, ids = decode_step(
            torch, model, device, row["batch"], row["context"], args.steps, warmup
        )
    else:
        eager, ids = prompt_step(torch, model, device, row["tokens"])
    step, compile_s = eager, None
    if mode != "eager":
        compiled = torch.compile(eager, mode=mode, dynamic=False)

        def step(ids):
            torch.compiler.cudagraph_mark_step_begin()
            # The output of a replayed graph is overwritten by the next replay.
            return compiled(ids).clone()

        started = time.perf_counter()
        for _ in range(COMPILE_CALLS):
            ids = step(ids)
        if device.type == "cuda":
            torch.cuda.synchronize()
        compile_s = time.perf_counter() - started
        note(f"compiled in {compile_s:.1f} s")
    if args.in_turn:
        note(READY)
        sys.stdin.readline()
    clock = Clock(torch, device)
    if args.warmup > 0:
        ids, *_ = timed_steps(clock, step, ids, args.warmup)
    ids, times, walls, submits = timed_steps(clock, step, ids, args.steps)
    figures = dict(
        size=row["tokens"], steps=args.steps, gpu_ms=spread(times), wall_ms=spread(walls),
        submit_us=spread(submits),
    )
    if compile_s is not None:
        figures["compile_s"] = compile_s
    return figures


def wanted(args):
    """Kind, batch, context and tokens of each row."""
    for context in args.context:
        for batch in args.batch:
            yield dict(kind="decode", batch=batch, context=context, tokens=batch)
    for tokens in args.prefill:
        yield dict(kind="prefill", batch=1, context=0, tokens=tokens)


def expected_seconds(mode, args):
    return args.compile_seconds if mode != "eager" else 10.0


def run(args, report):
    import torch
    import transformers
    from transformers import AutoModelForCausalLM

    report["version"] = transformers.__version__
    report["versions"] = dict(
        torch=torch.__version__, transformers=transformers.__version__, cuda=torch.version.cuda,
        python=sys.version.split()[0],
    )
    note(json.dumps(report["versions"]))
    device = torch.device(args.device)
    report["device"] = (
        torch.cuda.get_device_name(device) if device.type == "cuda" else args.device
    )
    dtype = dict(bf16=torch.bfloat16, f16=torch.float16, f32=torch.float32)[args.dtype]
    torch.manual_seed(0)
    started = time.perf_counter()
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(
            config_of(args.preset), dtype=dtype, attn_implementation="sdpa"
        )
    model.eval()
    if device.type == "cuda":
        torch.cuda.synchronize()
    report["start"] = dict(load_s=time.perf_counter() - started)
    begun = args.begun
    for mode in args.modes.split(","):
        rows = []
        report["modes"].append(dict(mode=mode, rows=rows))
        for shape in wanted(args):
            row = dict(
                engine="transformers", model=args.preset, dtype=args.dtype,
                device=report["device"], mode=mode, failures=[], **shape,
            )
            rows.append(row)
            left = args.budget - (time.perf_counter() - begun)
            if left < expected_seconds(mode, args):
                row["failures"].append(f"not measured: {left:.0f} s of the budget were left")
                continue
            note(f"{args.preset} {mode} {shape}")
            try:
                with torch.no_grad():
                    row.update(measure(torch, model, device, mode, row, args))
            except Exception as error:
                text = f"{type(error).__name__}: {error}"
                row["failures"].append(text[:500])
                note(text)
            torch._dynamo.reset()
            gc.collect()
            if device.type == "cuda":
                torch.cuda.empty_cache()


def main():
    args = arguments()
    args.begun = time.perf_counter()
    report = dict(engine="transformers", model=args.preset, dtype=args.dtype, modes=[])
    try:
        run(args, report)
    except Exception as error:
        report["reason"] = f"{type(error).__name__}: {error}"[:500]
        note(f"nothing measured: {report['reason']}")
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
