#!/usr/bin/env python3
"""Times starts from a checkpoint: from the process's start to its first token.

    start.py PIECEWISE [--shape qwen3-8b|tiny] [--device cuda] [--times 3] [--packs FOLDER] [--folder FOLDER]

Makes a checkpoint of random bf16 weights of the published shape (16.4 GB of qwen3-8b) in FOLDER, so that it lies in
the page cache, then starts a new process so often: with an empty compile cache, with an empty one beside the
kernel packs of --packs (PIECEWISE_PACK_DIR by default), and with a filled one. The driver's own cache of kernels is off. A row each: what, result
and detail, by tabs; the seconds of each start, and what was compiled.
"""

import argparse
import json
import os
import pathlib
import random
import shutil
import struct
import subprocess
import sys
import tempfile
import time

TOKENIZER = pathlib.Path("examples/tiny-qwen3/tokenizer.json")
QWEN3 = {
    "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "dtype": "bfloat16", "hidden_act": "silu",
    "rms_norm_eps": 1e-06, "rope_theta": 1000000, "attention_bias": False, "tie_word_embeddings": False,
    "max_position_embeddings": 40960, "bos_token_id": 0, "eos_token_id": 0,
}
SHAPES = {
    "qwen3-8b": QWEN3 | {
        "hidden_size": 4096, "intermediate_size": 12288, "num_hidden_layers": 36, "num_attention_heads": 32,
        "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936,
    },
    "tiny": QWEN3 | {
        "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2,
        "num_key_value_heads": 1, "head_dim": 32, "vocab_size": 2048,
    },
}
# A file has so many bytes at most, as published ones have.
SHARD = 5 << 30


def tensors(shape):
    """Names and dimensions of all weights, in the order of the file."""
    hidden, between, head = shape["hidden_size"], shape["intermediate_size"], shape["head_dim"]
    queries, keys = (shape[name] * head for name in ("num_attention_heads", "num_key_value_heads"))
    yield "model.embed_tokens.weight", [shape["vocab_size"], hidden]
    for layer in range(shape["num_hidden_layers"]):
        of_layer = {
            "input_layernorm": [hidden], "post_attention_layernorm": [hidden],
            "self_attn.q_proj": [queries, hidden], "self_attn.k_proj": [keys, hidden], "self_attn.v_proj": [keys, hidden],
            "self_attn.o_proj": [hidden, queries], "self_attn.q_norm": [head], "self_attn.k_norm": [head],
            "mlp.gate_proj": [between, hidden], "mlp.up_proj": [between, hidden], "mlp.down_proj": [hidden, between],
        }
        for name, dims in of_layer.items():
            yield f"model.layers.{layer}.{name}.weight", dims
    yield "model.norm.weight", [hidden]
    yield "lm_head.weight", [shape["vocab_size"], hidden]


def size(dims):
    count = 2
    for dim in dims:
        count *= dim
    return count


def write(shape, folder):
    """The checkpoint; weights are numbers of some hundredths, a block of which comes again and again."""
    chance = random.Random(0)
    block = b"".join(struct.pack("<f", chance.gauss(0, 0.02))[2:] for _ in range(1 << 19))
    shards = [[]]
    for name, dims in tensors(shape):
        if shards[-1] and sum(size(dims) for _, dims in shards[-1]) + size(dims) > SHARD:
            shards.append([])
        shards[-1].append((name, dims))
    places = {}
    for number, shard in enumerate(shards, 1):
        file = f"model-{number:05}-of-{len(shards):05}.safetensors"
        head, end = {}, 0
        for name, dims in shard:
            head[name] = {"dtype": "BF16", "shape": dims, "data_offsets": [end, end + size(dims)]}
            end += size(dims)
            places[name] = file
        text = json.dumps(head).encode()
        text += b" " * (-len(text) % 8)
        with open(folder / file, "wb") as out:
            out.write(struct.pack("<Q", len(text)) + text)
            for at in range(0, end, len(block)):
                out.write(block[:end - at])
    index = {"metadata": {"total_size": sum(size(dims) for shard in shards for _, dims in shard)}, "weight_map": places}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    (folder / "config.json").write_text(json.dumps(shape))
    shutil.copy(TOKENIZER, folder / "tokenizer.json")
    return index["metadata"]["total_size"]


def start(arguments, model, cache, packs):
    """Seconds up to the first token, and what was compiled."""
    # A folder without packs is asked where none are wanted, not those beside the program.
    environment = os.environ | {"CUDA_CACHE_DISABLE": "1", "PIECEWISE_PACK_DIR": str(packs or cache / "no-packs")}
    command = [
        arguments.piecewise, "generate", "--model", model, "--device", arguments.device, "--cache-dir", cache,
        "--prompt", "def __init__(self", "--max-tokens", "1", "--ignore-eos", "--json", "--stats",
    ]
    begun = time.monotonic()
    with tempfile.TemporaryFile("w+") as said:
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=said, env=environment, text=True) as process:
            reply = process.stdout.readline()
            took = time.monotonic() - begun
            process.stdout.read()
        said.seek(0)
        lines = said.read()
    if process.returncode or len(json.loads(reply)["ids"]) != 1:
        raise RuntimeError(" ".join(lines.split())[-400:])
    counts = json.loads(lines.splitlines()[-1])["statistics"]["compile"]
    return took, f"{sum(counts['compiled'].values())} compiled, {counts['from_packs']} of packs"


def rows(arguments, model, work):
    kinds = {"empty cache": None} | ({"empty cache, packs": arguments.packs} if arguments.packs else {}) | {"filled cache": None}
    cache = None
    for kind, packs in kinds.items():
        seconds, details = [], []
        for number in range(arguments.times):
            if kind != "filled cache":
                cache = work / f"{kind} {number}"
            took, detail = start(arguments, model, cache, packs)
            seconds.append(took)
            details.append(detail)
        yield kind, f"{', '.join(f'{took:.2f}' for took in seconds)} s ({details[-1]})"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("piecewise")
    parser.add_argument("--shape", choices=SHAPES, default="qwen3-8b")
    parser.add_argument("--device", default=os.environ.get("PIECEWISE_TEST_DEVICE", "cuda"))
    parser.add_argument("--times", type=int, default=3)
    parser.add_argument("--packs", type=pathlib.Path, default=os.environ.get("PIECEWISE_PACK_DIR"))
    parser.add_argument("--folder", type=pathlib.Path, help="where the checkpoint is made; a temporary folder by default")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.folder) as work:
        work = pathlib.Path(work)
        model = work / "model"
        model.mkdir()
        begun = time.monotonic()
        total = write(SHAPES[arguments.shape], model)
        what = f"start_{arguments.shape}"
        print(f"{what} checkpoint", "ok", f"{total / 1e9:.1f} GB in {time.monotonic() - begun:.0f} s", sep="\t", flush=True)
        try:
            for kind, text in rows(arguments, model, work):
                print(f"{what} {kind}", "ok", text, sep="\t", flush=True)
        except (RuntimeError, ValueError, KeyError) as error:
            print(f"{what}", "FAILED", error, sep="\t", flush=True)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
