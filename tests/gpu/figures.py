#!/usr/bin/env python3
"""Figures of `piecewise bench --json` in a file, and the next run beside them:
  figures.py compare FIGURES RUN..    # a line a row: what, result and figures, with tabs between them
  figures.py keep FIGURES RUN..       # puts the rows of the runs into the file
A row that takes longer than --slower allows has FAILED, and the exit code is 1 then; where a step has
prompts, --slower-prompts, since what power a device may draw differs from run to run. Ratios mean
something on the device that the file names, and on no other."""

import argparse
import json
import sys

from rows import step_of

KEY = ("model", "dtype", "kind", "mode", "batch", "context", "tokens")


def read(file):
    with open(file, encoding="utf-8") as opened:
        return json.load(opened)


def rows_of(report):
    """The rows of a run that count, by what they are of."""
    if report.get("without"):
        sys.exit("launches were left out of this run: its rows are no steps")
    rows = [row for mode in report["modes"] for row in mode["rows"]]
    counted = (row for row in rows if "gpu_ms" in row and not row["failures"])
    return {tuple(row[key] for key in KEY): row["gpu_ms"]["median"] for row in counted}


def kept_of(figures):
    return {tuple(row[key] for key in KEY): row["gpu_ms"] for row in figures["rows"]}


def name_of(key):
    row = dict(zip(KEY, key))
    return f"{row['model']} {step_of(row)}"


def is_of_device(run, figures):
    return figures["device"] in run["device"]


def compare(figures, runs, slower, slower_prompts):
    kept, failed = kept_of(figures), False
    for run in runs:
        if not is_of_device(run, figures):
            print("device", "none", f"{run['device']}, figures are of {figures['device']}", sep="\t")
            continue
        for key, now in rows_of(run).items():
            if key not in kept:
                print(name_of(key), "none", f"{now:.3f} ms, no figure is kept", sep="\t")
                continue
            ratio = now / kept[key]
            allowed = slower if dict(zip(KEY, key))["kind"] == "decode" else slower_prompts
            is_slower = ratio > 1 + allowed
            failed |= is_slower
            text = f"{now:.3f} of {kept[key]:.3f} ms, ratio {ratio:.3f}"
            print(name_of(key), "FAILED" if is_slower else "ok", text, sep="\t")
    return failed


def keep(file, figures, runs):
    kept = kept_of(figures)
    for run in runs:
        if not is_of_device(run, figures):
            sys.exit(f"the run is of {run['device']}, {file} of {figures['device']}")
        kept |= rows_of(run)
    rows = [dict(zip(KEY, key)) | {"gpu_ms": round(ms, 3)} for key, ms in sorted(kept.items())]
    lines = ",\n".join("    " + json.dumps(row) for row in rows)
    head = json.dumps({key: figures[key] for key in figures if key != "rows"}, indent=2)
    with open(file, "w", encoding="utf-8") as opened:
        opened.write(head.removesuffix("\n}") + ',\n  "rows": [\n' + lines + "\n  ]\n}\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["compare", "keep"])
    parser.add_argument("figures")
    parser.add_argument("runs", nargs="+")
    parser.add_argument("--slower", type=float, default=0.03, help="share that is no change")
    parser.add_argument("--slower-prompts", type=float, default=0.08, help="the same of steps with prompts")
    args = parser.parse_args()
    figures, runs = read(args.figures), [read(run) for run in args.runs]
    if args.what == "keep":
        keep(args.figures, figures, runs)
        return 0
    return int(compare(figures, runs, args.slower, args.slower_prompts))


if __name__ == "__main__":
    sys.exit(main())
