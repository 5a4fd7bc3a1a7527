"""Holds the ledger of a start against what the driver counts, on a GPU that nobody else uses:

    ledger.py PIECEWISE [PRESET..]

A row for each preset: what, result and text, by tabs. Weights, arena and states are exact but for the
driver's granules; what context, code and graphs take together is within 15% or 32 MiB.
"""

import json
import subprocess
import sys

GRANULE = 2 << 20
MIB = 1 << 20


def free():
    query = ["nvidia-smi", "--query-gpu=memory.free", "--format=csv,noheader,nounits", "-i", "0"]
    return int(subprocess.run(query, check=True, capture_output=True, text=True).stdout) * MIB


def backed(*parts):
    return -(-sum(parts) // GRANULE) * GRANULE


def row(piecewise, preset):
    before = free()
    bench = [piecewise, "bench", "--startup", "--preset", preset, "--device", "cuda", "--json"]
    run = subprocess.run(bench, check=True, capture_output=True, text=True)
    report = json.loads(run.stdout)
    said, captured = report["start"]["memory"], report["captured"]["captured"]
    opened, built = report["start"]["free_bytes"]
    data = backed(said["slots"], said["scratch"]) + backed(said["weights"]) + backed(said["states"])
    found = {
        "context": before - opened,
        "modules": opened - built - data,
        "graphs": captured["bytes"],
    }
    total, expected = sum(found.values()), sum(said[part] for part in found)
    off = abs(total - expected)
    good = off <= max(32 * MIB, 0.15 * total)
    parts = ", ".join(f"{part} {found[part] / MIB:.0f} ({said[part] / MIB:.0f})" for part in found)
    shape = f"{captured['graphs']} graphs, {captured['launches']} launches, {captured['nodes']} nodes"
    text = f"{total / MIB:.0f} MiB, {expected / MIB:.0f} said: {parts}; data {data / MIB:.0f}; {shape}"
    return f"ledger_{preset}", "ok" if good else "FAILED", text


if __name__ == "__main__":
    piecewise, *presets = sys.argv[1:]
    rows = [row(piecewise, preset) for preset in presets or ["qwen3-0.6b", "llama-3.2-1b", "qwen3-8b"]]
    print("\n".join("\t".join(row) for row in rows))
    sys.exit(any(result != "ok" for _, result, _ in rows))
