"""What each part of a decode costs: what a step takes less without its launches, on a GPU.

    account.py PIECEWISE [--batch 1,8,32,128] [--context 512] [--steps 24] [PRESET..]

A line a part and batch, by tabs: what, result and text, with milliseconds, the bytes that the part must move
and their share of the bandwidth that was read in the same run. Parts overlap, so that they add up to less
than the step, and a part can move its bytes while the launch before it ends: then its share is above 100%.
A part whose bytes nothing is known of has none.
"""

import argparse
import json
import subprocess
import sys

PRESETS = ["qwen3-0.6b", "llama-3.2-1b", "qwen3-8b"]
# A product by the layer of its weights; the last one has the embedding's where both are one.
PRODUCTS = {
    "gate and up": "gate_proj",
    "down": "down_proj",
    "q, k and v": "q_proj",
    "output": "o_proj",
    "head": "lm_head",
}
PARTS = {"attention": "attention*", "regions": "region", "sampling": "*sample*"}
PARTS |= {part: f"*@{layer}" for part, layer in PRODUCTS.items()}


def run(piecewise, verb, preset, *flags):
    always = ["--no-cache", "--tune", "off", "--graph-mode", "full", "--json"]
    command = [piecewise, verb, "--preset", preset, *always, *flags]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return json.loads(done.stdout)


def steps_ms(report):
    return [row["gpu_ms"]["median"] for row in report["modes"][0]["rows"]]


def launches_bytes(plan, batch, is_part):
    """Bytes of the operands of some launches of a step. A gather reads a row of its table for each token
    that it has, which is little; what a table has otherwise is not read."""
    unique, total = plan["unique"], 0
    for step in plan["steps"]:
        sizes = unique[step["unique"]]["sizes"]
        exact = [size for size in sizes if size["rows"] == batch and not size["general"]]
        launches = (exact or sizes[-1:])[-1]["launches"] if sizes else []
        for launch in filter(lambda launch: is_part(launch["name"]), launches):
            total += launch["bytes_read"] - launch["weight_bytes"] + launch["bytes_written"]
    return total


def layer_bytes(plan, layer):
    """Bytes of the weights of a layer of each name, of which merged ones name several."""
    weights = [value for value in plan["values"] if value["kind"] == "weight"]
    found = [value["bytes"] for value in weights if f"{layer}.weight" in value["from"]]
    embeddings = [value["bytes"] for value in weights if "embed_tokens" in value["from"]]
    return sum(found or (embeddings if layer == "lm_head" else []))


def part_bytes(part, plan, report, batch, context):
    if part in PRODUCTS:
        return layer_bytes(plan, PRODUCTS[part])
    if part == "attention":
        return report["traffic"]["per_position"] * context * batch
    if part == "regions":
        kept = report["traffic"]["per_position"] * batch
        return kept + launches_bytes(plan, batch, lambda name: name.startswith("region") and "matmul" not in name)
    return launches_bytes(plan, batch, lambda name: "sample" in name)


def lines(piecewise, preset, args):
    batches = [int(batch) for batch in args.batch.split(",")]
    rows = ["--batch", args.batch, "--context", str(args.context), "--steps", str(args.steps)]
    bench = ["bench", preset, "--device", args.device, *rows]
    whole = run(piecewise, *bench)
    read = whole["read_bandwidth"]["best"]
    plans = []
    for batch, ms in zip(batches, steps_ms(whole)):
        sizes = ["--decode-batch-sizes", str(batch), "--capture-num-tokens", str(batch)]
        bounds = ["--max-num-tokens", str(batch), "--max-num-seqs", str(batch)]
        plans.append(run(piecewise, "inspect", preset, "--device", args.plan, "--sizes", *sizes, *bounds))
        yield f"{preset} {batch} step", f"{ms:.3f} ms"
    for part, pattern in PARTS.items():
        rest = steps_ms(run(piecewise, *bench, "--without", pattern))
        for batch, plan, ms, left in zip(batches, plans, steps_ms(whole), rest):
            moved = part_bytes(part, plan, whole, batch, args.context)
            takes = ms - left
            share = f", {moved / 1e6:.1f} MB, {100 * moved / read / (takes * 1e-3):.0f}% of read" if takes > 0 else ""
            yield f"{preset} {batch} {part}", f"{takes:.3f} ms{share}"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("piecewise")
    parser.add_argument("presets", nargs="*", default=PRESETS)
    parser.add_argument("--batch", default="1,8,32,128")
    parser.add_argument("--context", type=int, default=512)
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--device", default="cuda", help="where steps are timed")
    parser.add_argument("--plan", default="cuda:sm_90a", help="the device that a plan is of")
    args = parser.parse_intermixed_args()
    for preset in args.presets:
        for what, text in lines(args.piecewise, preset, args):
            print(what, "ok", text, sep="\t", flush=True)


if __name__ == "__main__":
    sys.exit(main())
