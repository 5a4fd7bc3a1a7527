"""Holds the ledger of a start against what the driver counts, on a GPU that nobody else uses:

    ledger.py PIECEWISE [PRESET..]

A row for each preset and part: what, result and text, by tabs. Arena (slots and scratch), weights and states
are exact in the driver's granules; context, code and graphs are each within 15% or 32 MiB.
"""

import json
import subprocess
import sys

GRANULE = 2 << 20
MIB = 1 << 20


def free():
    query = ["nvidia-smi", "--query-gpu=memory.free", "--format=csv,noheader,nounits", "-i", "0"]
    return int(subprocess.run(query, check=True, capture_output=True, text=True).stdout) * MIB


def rows(piecewise, preset):
    before = free()
    bench = [piecewise, "bench", "--startup", "--preset", preset, "--device", "cuda", "--json"]
    run = subprocess.run(bench, check=True, capture_output=True, text=True)
    report = json.loads(run.stdout)
    start, captured = report["start"], report["captured"]["captured"]
    said, held = start["memory"], start["held_bytes"]
    said["arena"] = said["slots"] + said["scratch"]
    for part in ("arena", "weights", "states"):
        expected = -(-said[part] // GRANULE) * GRANULE
        text = f"{held[part]} bytes, {expected} said in granules, {said[part]} needed"
        yield part, held[part] == expected, text
    opened, built = start["free_bytes"]
    found = {
        "context": before - opened,
        "modules": opened - built - sum(held.values()),
        "graphs": captured["bytes"],
    }
    found["all three"] = sum(found.values())
    said["all three"] = said["context"] + said["modules"] + said["graphs"]
    for part, count in found.items():
        good = abs(count - said[part]) <= max(32 * MIB, 0.15 * count)
        text = f"{count / MIB:.1f} MiB, {said[part] / MIB:.1f} said"
        if part == "graphs":
            text += "; {graphs} graphs, {launches} launches, {nodes} nodes".format(**captured)
        yield part, good, text


if __name__ == "__main__":
    piecewise, *presets = sys.argv[1:]
    failed = False
    for preset in presets or ["qwen3-0.6b", "llama-3.2-1b", "qwen3-8b"]:
        for part, good, text in rows(piecewise, preset):
            print(f"ledger_{preset} {part}", "ok" if good else "FAILED", text, sep="\t", flush=True)
            failed |= not good
    sys.exit(failed)
