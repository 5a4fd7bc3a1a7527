#!/usr/bin/env python3
"""Lines for the table of run.sh from a report of `piecewise bench --json` or of its torch peer:
what, result and figures, with tabs between them."""

import json
import sys


def figures(row):
    if "gpu_ms" not in row:
        return "; ".join(row["failures"])[:120]
    gpu, wall = row["gpu_ms"], row["wall_ms"]
    parts = [f"{gpu['median']:.3f} ms GPU ({gpu['p10']:.3f}-{gpu['p90']:.3f})"]
    parts.append(f"{wall['median']:.3f} wall, {row['submit_us']['median']:.0f} us submit")
    if row.get("read_share") is not None:
        parts.append(f"{100 * row['read_share']:.1f}% of read")
    if "graph_launches" in row:
        parts.append(f"{row['graph_launches']}+{row['plain_launches']} launches")
        parts.append(f"{row['nodes']} nodes, {row['programmatic_edges']} programmatic")
    if "chosen" in row:
        parts.append(f"{row['path']} by choice: {row['chosen']}")
    if "compile_s" in row:
        parts.append(f"{row['compile_s']:.0f} s to compile")
    return ", ".join(parts + row["failures"])


def step_of(row):
    of = f"{row['batch']}x{row['context']}" if row["kind"] == "decode" else row["tokens"]
    return f"{row['kind']} {of} {row['mode']}"


def captured(mode):
    found = mode.get("captured")
    if not found or not found["graphs"]:
        return []
    memory = "?" if found["bytes"] is None else f"{found['bytes'] / 2**20:.0f} MiB"
    text = (
        f"{found['graphs']} graphs in {found['capture_s']:.2f} s ({found['total_s']:.2f} with the "
        f"warm-up), {memory}, {found['launches']} launches, {found['nodes']} nodes"
    )
    return [("capture " + mode["mode"], "ok", text)]


def lines(report):
    # The peer's report has none, and that of a run on a processor has them empty.
    if report.get("versions"):
        versions = report["versions"].items()
        yield "versions", "ok", ", ".join(f"{name} {version}" for name, version in versions)
    if "read_bandwidth" in report:
        read = report["read_bandwidth"]
        text = f"{read['best'] / 1e9:.0f} GB/s at best, {read['median'] / 1e9:.0f} in the median"
        yield "read bandwidth", "ok", text
    start = report.get("start", {})
    if "compile_s" in start:
        parts = [f"{start[key + '_s']:.2f} s {key}" for key in ("plan", "open", "compile", "load")]
        if start.get("first_prompt"):
            first = start["first_prompt"]
            parts.append(f"first token {first['ms']:.1f} ms after {first['tokens']} tokens")
        for what in ("compiled", "reused"):
            counts = start["entries"][what]
            parts.append(f"{what} " + (" ".join(f"{n} {k}" for k, n in counts.items()) or "nothing"))
        yield "start", "ok", ", ".join(parts)
    if "captured" in report:
        yield from captured(report["captured"])
        seconds = report["start_without_load_s"]
        yield "start in all", "ok", f"{seconds:.2f} s without loading weights"
    if "reason" in report:
        yield report["engine"], "none", report["reason"][:120]
    for mode in report.get("modes", []):
        yield from captured(mode)
        for row in mode["rows"]:
            own = row["engine"] == "piecewise"
            result = "ok" if not row["failures"] else "FAILED" if own else "none"
            yield step_of(row), result, figures(row)


def main():
    with open(sys.argv[1], encoding="utf-8") as file:
        report = json.load(file)
    for what, result, text in lines(report):
        text = " ".join(text.split())
        print(f"{report['model']} {what}", result, text, sep="\t")


if __name__ == "__main__":
    main()
