#!/usr/bin/env python3
"""Encoders on a GPU: transformers, eager and compiled, and piecewise, in one run.

    cargo bench --bench items --no-run
    python3 benches/torch/items.py --ours target/release/deps/items-HASH [--device cuda] [--only bert]

Checkpoints with random weights are made in a temporary folder, so nothing is downloaded. Each side
takes inputs from the host and gives outputs to it in f32; "device" leaves the copies of the peer's
outputs out, so it favours the peer. Medians of --times calls; torch.compile takes one item of each
at the end, in mode reduce-overhead, and in the default mode what that cannot run.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
import transformers

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--ours", required=True)
parser.add_argument("--device", default="cuda")
parser.add_argument("--times", type=int, default=30)
parser.add_argument("--only", default="")
parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a setting of ours")
parser.add_argument("--no-compile", action="store_true")
parser.add_argument("--compile-until", type=float, default=1e9, help="seconds after which nothing is compiled any more")
parser.add_argument("--small", action="store_true", help="two layers each, for a try without a GPU")
args = parser.parse_args()
device, on_gpu = torch.device(args.device), args.device.startswith("cuda")
torch.manual_seed(0)
began = time.perf_counter()


def bert(**sizes):
    if args.small:
        sizes["num_hidden_layers"] = 2
    config = transformers.BertConfig(**sizes)
    return transformers.BertModel(config, add_pooling_layer=False)


def siglip():
    sizes = dict(hidden_size=1152, intermediate_size=4304, num_hidden_layers=27, num_attention_heads=16)
    if args.small:
        sizes["num_hidden_layers"] = 2
    config = transformers.SiglipVisionConfig(image_size=384, patch_size=14, **sizes)
    return transformers.SiglipVisionModel(config)


def qwen():
    from transformers.models.qwen2_5_vl import modeling_qwen2_5_vl as family
    from transformers.models.qwen2_5_vl.configuration_qwen2_5_vl import Qwen2_5_VLVisionConfig

    sizes = dict(depth=32, hidden_size=1280, intermediate_size=3420, num_heads=16, patch_size=14)
    sizes |= dict(out_hidden_size=3584, window_size=112, fullatt_block_indexes=[7, 15, 23, 31])
    if args.small:
        sizes |= dict(depth=2, fullatt_block_indexes=[1])
    config = Qwen2_5_VLVisionConfig(spatial_merge_size=2, temporal_patch_size=2, **sizes)
    return family.Qwen2_5_VisionTransformerPretrainedModel._from_config(config)


texts = [128, 32, 64, 96, 128, 17, 80, 51, 110, 25, 128, 73, 40, 99, 60, 12]
images = [[1, 27, 27]] * 16
grids = [[1, 32, 32], [1, 16, 24], [1, 24, 40], [1, 48, 32], [1, 20, 20], [1, 28, 44], [1, 36, 36], [1, 12, 18]]
grids = grids + [[1, 64, 48], [1, 26, 34], [1, 16, 16], [1, 30, 22], [1, 40, 40], [1, 24, 24], [1, 32, 20], [1, 18, 18]]
cases = {
    "MiniLM": (
        lambda: bert(hidden_size=384, num_hidden_layers=6, intermediate_size=1536, num_attention_heads=12),
        texts, (2048, 16, "16,32,64,128,256,512,1024,1280,2048"),
    ),
    "BERT-base": (lambda: bert(), texts, (2048, 16, "16,32,64,128,256,512,1024,1280,2048")),
    "SigLIP-so400m": (siglip, images, (16 * 729, 16, "729,1458,2916,5832,11664")),
    # Budgets count merged tokens.
    "Qwen2.5-VL-7B tower": (qwen, grids, (8192, 16, "64,128,256,512,1024,2048,4096,8192")),
}


def peer_inputs(name, sizes):
    """Padded batches as transformers' users make them."""
    if name in ("MiniLM", "BERT-base"):
        longest = max(sizes)
        ids = torch.randint(1000, 20000, (len(sizes), longest))
        mask = torch.tensor([[int(i < n) for i in range(longest)] for n in sizes])
        # A mask of ones alone would cost the peer its fastest attention.
        return dict(input_ids=ids) | ({} if len(set(sizes)) == 1 else dict(attention_mask=mask))
    if name == "SigLIP-so400m":
        return dict(pixel_values=torch.randn(len(sizes), 3, 384, 384).to(torch.bfloat16))
    patches = sum(t * h * w for t, h, w in sizes)
    return dict(hidden_states=torch.randn(patches, 1176).to(torch.bfloat16), grid_thw=torch.tensor(sizes))


def timed_peer(model, inputs):
    walls, devices = [], []
    for _ in range(args.times + 3):
        if on_gpu:
            torch.cuda.synchronize()
        start = time.perf_counter()
        given = {name: value.to(device) for name, value in inputs.items()}
        if on_gpu:
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
        with torch.inference_mode():
            output = model(**given)
        rows = output if torch.is_tensor(output) else output[0]
        if on_gpu:
            end.record()
        rows.float().cpu()
        walls.append(time.perf_counter() - start)
        devices.append(begin.elapsed_time(end) / 1e3 if on_gpu else walls[-1])
    middle = args.times // 2
    return sorted(walls[3:])[middle], sorted(devices[3:])[middle]


name_of = torch.cuda.get_device_name() if on_gpu else "CPU"
print(f"{name_of}, torch {torch.__version__}, transformers {transformers.__version__}; ms, wall / device")
print(f"{'model':<22}{'items':>6}{'ours':>18}{'transformers':>18}{'ratio':>14}")
compiled = []
for name, (make, sizes, (rows, items, budgets)) in cases.items():
    if args.only not in name:
        continue
    with tempfile.TemporaryDirectory() as folder:
        model = make().to(torch.bfloat16).eval()
        model.save_pretrained(folder)
        if not (Path(folder) / "model.safetensors").exists():
            sys.exit(f"{name}: no model.safetensors was written")
        model.to(device)
        started = time.perf_counter()
        ours = subprocess.Popen(
            [args.ours, folder, f'device="{args.device}"', 'dtype="bf16"', f"max_num_tokens={rows}",
             f"max_num_seqs={items}", f"capture_num_tokens=[{budgets}]", *args.set],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )
        if ours.stdout.readline() != "ready\n":
            print(f"{name}: piecewise did not start")
            continue
        ready = time.perf_counter() - started
        measured = {}
        for count in (1, 4, 16):
            ours.stdin.write(json.dumps([args.times + 3, sizes[:count]]) + "\n")
            ours.stdin.flush()
            mine = json.loads(ours.stdout.readline())
            peer = timed_peer(model, peer_inputs(name, sizes[:count]))
            measured[count] = mine
            show = lambda pair: f"{pair[0] * 1e3:.3f} / {pair[1] * 1e3:.3f}"
            ratio = f"{peer[0] / mine[0]:.2f} / {peer[1] / mine[1]:.2f}"
            print(f"{name:<22}{count:>6}{show(mine):>18}{show(peer):>18}{ratio:>14}", flush=True)
        print(f"{name:<22} piecewise was ready in {ready:.2f} s")
        ours.stdin.close()
        ours.wait()
        compiled.append((name, model, sizes, measured[1]))


def compile_once(model, inputs):
    """Wall and device seconds and the mode: the one without launches of its own, where it can run the
    model, else the default one."""
    failure = None
    for mode in ("reduce-overhead", "default"):
        torch._dynamo.reset()
        try:
            return *timed_peer(torch.compile(model, mode=mode), inputs), mode, failure
        except Exception as error:  # what dynamo cannot trace is said, not hidden
            failure = f"{mode}: {type(error).__name__}: {str(error)[:160]}"
    raise RuntimeError(failure)


if not args.no_compile:
    for name, model, sizes, mine in compiled:
        if time.perf_counter() - began > args.compile_until:
            print(f"{name:<22} torch.compile: no time left")
            continue
        try:
            started = time.perf_counter()
            *peer, mode, failure = compile_once(model, peer_inputs(name, sizes[:1]))
            took = time.perf_counter() - started
        except Exception as error:
            print(f"{name:<22} torch.compile: {error}")
            continue
        if failure is not None:
            print(f"{name:<22} torch.compile, {failure}")
        ratio = f"{peer[0] / mine[0]:.2f} / {peer[1] / mine[1]:.2f}"
        shown = f"{peer[0] * 1e3:.3f} / {peer[1] * 1e3:.3f}, mode {mode}"
        print(f"{name:<22}{1:>6} torch.compile {shown}, ratio {ratio}, {took:.0f} s with compiling", flush=True)
