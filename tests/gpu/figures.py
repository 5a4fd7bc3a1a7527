#!/usr/bin/env python3
"""Figures of `piecewise bench --json` in a file, and the next run beside them:
  figures.py compare FIGURES RUN..    # a line a row: what, result and figures, with tabs between them
  figures.py keep FIGURES RUN..       # puts the rows of the runs into the file
A row that takes longer than --slower allows has FAILED, and the exit code is 1 then; a step with prompts is
compared by its p10 with --slower-prompts, since what power a device may draw differs from run to run and
moves the median most, or by the median with --slower-medians where no p10 is kept. Rows are of a model, a
mode and a step: any mode and any prompt can be kept. Ratios mean something on the device that the file
names, and on no other."""

import argparse
import json
import sys

from rows import step_of

KEY = ("model", "dtype", "kind", "mode", "batch", "context", "tokens")


def read(file):
    with open(file, encoding="utf-8") as opened:
        return json.load(opened)


def key_of(row):
    return tuple(row[key] for key in KEY)


def figures_of(row):
    """What is kept of a row: milliseconds of the median and of p10, and what the host path costs."""
    figures = {"gpu_ms": round(row["gpu_ms"]["median"], 3), "p10_ms": round(row["gpu_ms"]["p10"], 3)}
    if row.get("host_us") is not None:
        figures["host_us"] = round(row["host_us"], 1)
    return figures


def rows_of(report):
    """The rows of a run that count, by what they are of; one whose steps went another way is none of its mode."""
    if report.get("without"):
        sys.exit("launches were left out of this run: its rows are no steps")
    rows = [row for mode in report["modes"] for row in mode["rows"]]
    counted = (row for row in rows if "gpu_ms" in row and not row["failures"] and "chosen" not in row)
    return {key_of(row): figures_of(row) for row in counted}


def kept_of(figures):
    return {key_of(row): {k: row[k] for k in row if k not in KEY} for row in figures["rows"]}


def name_of(key):
    row = dict(zip(KEY, key))
    return f"{row['model']} {step_of(row)}"


def is_of_device(run, figures):
    return figures["device"] in run["device"]


def held_by(key, kept, args):
    """The figure that a row is compared by, and the share that it may take more."""
    if dict(zip(KEY, key))["kind"] == "decode":
        return "gpu_ms", args.slower
    return ("p10_ms", args.slower_prompts) if "p10_ms" in kept else ("gpu_ms", args.slower_medians)


def compare(figures, runs, args):
    kept, failed = kept_of(figures), False
    for run in runs:
        if not is_of_device(run, figures):
            print("device", "none", f"{run['device']}, figures are of {figures['device']}", sep="\t")
            continue
        for key, now in rows_of(run).items():
            if key not in kept:
                print(name_of(key), "none", f"{now['gpu_ms']:.3f} ms, no figure is kept", sep="\t")
                continue
            then = kept[key]
            by, allowed = held_by(key, then, args)
            ratio = now[by] / then[by]
            is_slower = ratio > 1 + allowed
            failed |= is_slower
            what = "p10 " if by == "p10_ms" else ""
            text = f"{what}{now[by]:.3f} of {then[by]:.3f} ms, ratio {ratio:.3f}"
            if "host_us" in now and "host_us" in then:
                text += f", host {now['host_us']:.1f} of {then['host_us']:.1f} us"
            print(name_of(key), "FAILED" if is_slower else "ok", text, sep="\t")
    return failed


def keep(file, figures, runs):
    kept = kept_of(figures)
    for run in runs:
        if not is_of_device(run, figures):
            sys.exit(f"the run is of {run['device']}, {file} of {figures['device']}")
        kept |= rows_of(run)
    rows = [dict(zip(KEY, key)) | figures for key, figures in sorted(kept.items())]
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
    prompts = "the same of the p10 of steps with prompts"
    parser.add_argument("--slower-prompts", type=float, default=0.04, help=prompts)
    medians = "the same of their medians, where no p10 is kept"
    parser.add_argument("--slower-medians", type=float, default=0.08, help=medians)
    args = parser.parse_args()
    figures, runs = read(args.figures), [read(run) for run in args.runs]
    if args.what == "keep":
        keep(args.figures, figures, runs)
        return 0
    return int(compare(figures, runs, args))


if __name__ == "__main__":
    sys.exit(main())
