#!/usr/bin/env python3
"""Steps in pieces beside the same launched and in one graph:
  modes.py RUN..    # reports of `piecewise bench --graph-mode none,piecewise,full --json`
A line a step, by tabs: what, result and text, with milliseconds of wall time, the p10 of each: launching takes the
host about as long as the device, and one that is busy for a while moves the median. A step in pieces that takes more
than 2% longer than launched, or a decode of one row that takes more of the time of one graph than its bar allows,
has FAILED, and the exit code is 1 then."""

import json
import sys

from rows import step_of

# Two runs of one program differ by as much where the device is at its limit of power.
OVER_NONE = 1.02
# By model, of one row over one graph.
OVER_FULL = {"qwen3-8b": 1.02, "qwen3-0.6b": 1.05}
MODES = ("none", "piecewise", "full")


def walls_of(run):
    """Milliseconds of each step by mode."""
    found = {}
    for mode in run["modes"]:
        for row in mode["rows"]:
            if "wall_ms" in row and not row["failures"]:
                step = (row["kind"], row["batch"], row["context"], row["tokens"])
                # Of mode piecewise, launched because that was measured to be faster.
                name = "chosen" if "chosen" in row else mode["mode"]
                found.setdefault(step, {"row": row})[name] = row["wall_ms"]["p10"]
    return found


def held(model, row, walls):
    none, pieces, full = (walls[mode] for mode in MODES)
    is_one = row["kind"] == "decode" and row["batch"] == 1
    most = OVER_FULL.get(model) if is_one else None
    is_held = pieces <= none * OVER_NONE and (most is None or pieces <= full * most)
    text = f"{none:.3f} launched, {pieces:.3f} in pieces ({pieces / none:.3f}), {full:.3f} in one graph"
    return ("ok" if is_held else "FAILED"), f"{text} ({pieces / full:.3f})"


def main():
    failed, count = False, 0
    for file in sys.argv[1:]:
        with open(file, encoding="utf-8") as opened:
            run = json.load(opened)
        for walls in walls_of(run).values():
            row = walls.pop("row")
            what = f"{run['model']} {step_of(row | {'mode': 'in pieces'})}"
            if set(walls) == {"none", "chosen", "full"}:
                result, text = "ok", f"{walls['chosen']:.3f} launched by choice, {walls['none']:.3f} launched"
            elif set(walls) != set(MODES):
                result, text = "FAILED", f"measured in {', '.join(sorted(walls))} alone"
            else:
                result, text = held(run["model"], row, walls)
            failed |= result == "FAILED"
            count += 1
            print(what, result, text, sep="\t")
    return int(failed or count == 0)


if __name__ == "__main__":
    sys.exit(main())
