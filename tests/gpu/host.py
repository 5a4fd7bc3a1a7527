#!/usr/bin/env python3
"""What the host path of a step costs, beside its bars, by the best of several runs:
  host.py RUN..    # reports of `piecewise bench --batch 1,128 --graph-mode full,piecewise --json`
A line a row, by tabs: what, result and text. One whose best is above its bar has FAILED, and the exit code is 1
then. Of a step in one graph it is microseconds beside the driver's launch of the graph; of one in pieces how many
times what the driver's calls take it takes to submit. Both are medians, the driver's of fewer calls that are
timed after the steps; a busy host only adds to either, so the least of each is taken over the runs."""

import json
import sys

MICROSECONDS = {1: 10.0, 128: 40.0}  # by sequences
TIMES = 1.3


def rows_of(runs):
    """The rows that have a bar and ran as their mode does, by model, sequences and mode."""
    found = {}
    for run in runs:
        for row in (row for mode in run["modes"] for row in mode["rows"]):
            if row["kind"] == "decode" and row["batch"] in MICROSECONDS and "chosen" not in row:
                found.setdefault((row["model"], row["batch"], row["mode"]), []).append(row)
    return found


def shown(values):
    return ", ".join(f"{value:.1f}" for value in values)


def held(mode, batch, rows):
    """The result of the rows of a step, and what it came from."""
    failures = [failure for row in rows for failure in row["failures"]]
    if failures:
        return "FAILED", failures[0]
    if any(row["driver_us"] is None for row in rows):
        return "none", "no driver is called"
    if mode == "full":
        costs, bar = [row["host_us"] for row in rows], MICROSECONDS[batch]
        text = f"{min(costs):.1f} us of {bar:.0f} ({shown(costs)})"
        return "ok" if min(costs) <= bar else "FAILED", text
    submits = [row["submit_us"]["median"] for row in rows]
    calls = [row["driver_us"] for row in rows]
    times = min(submits) / min(calls)
    text = f"{times:.2f} times of {TIMES} ({shown(submits)} us, the driver's calls {shown(calls)})"
    return "ok" if times <= TIMES else "FAILED", text


def main():
    runs = []
    for file in sys.argv[1:]:
        with open(file, encoding="utf-8") as opened:
            runs.append(json.load(opened))
    found, failed = rows_of(runs), False
    for model in dict.fromkeys(run["model"] for run in runs):
        for mode in ("full", "piecewise"):
            for batch in MICROSECONDS:
                rows = found.get((model, batch, mode), [])
                result, text = held(mode, batch, rows) if rows else ("FAILED", "no run has such a row")
                failed |= result == "FAILED"
                print(f"{model} submit {batch} {mode}", result, " ".join(text.split()), sep="\t")
    return int(failed or not runs)


if __name__ == "__main__":
    sys.exit(main())
