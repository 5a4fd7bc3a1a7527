"""Reads the trace of a run by Perfetto's own protos: slices nest, and the parts of a step are the step.

    PYTHONPATH="$(.ci/install-perfetto)" python3 tests/perfetto/trace.py [--piecewise BINARY] [ARG..]
    PYTHONPATH="$(.ci/install-perfetto)" python3 tests/perfetto/trace.py --files TRACE LOG

ARGs go to `piecewise generate`, such as `--device cuda --graph-mode full_and_piecewise`. TRACE and
LOG are what a run elsewhere wrote with `generate --trace TRACE --iteration-log LOG`. Needs
`pip install perfetto`; without it this says so and succeeds, unless PIECEWISE_REQUIRE_PERFETTO=1.
"""

import argparse
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]


def skip(reason):
    if os.environ.get("PIECEWISE_REQUIRE_PERFETTO") == "1":
        sys.exit(f"PIECEWISE_REQUIRE_PERFETTO=1, but {reason}")
    print(f"skipped: {reason}")
    sys.exit(0)


def tracks(data):
    """The slices of each track by its name: (name, start, end, depth), in the order of their begins."""
    trace = protos.Trace()
    trace.ParseFromString(data)
    names, parents, open_slices, found, last = {}, {}, {}, {}, {}
    for packet in trace.packet:
        assert packet.trusted_packet_sequence_id, "a packet without a sequence"
        if packet.HasField("track_descriptor"):
            track = packet.track_descriptor
            name = track.process.process_name if track.HasField("process") else track.name
            assert name and track.uuid not in names, track
            names[track.uuid] = name
            if track.parent_uuid:
                assert track.parent_uuid in names, "a track before its process"
                names[track.uuid] = f"{names[track.parent_uuid]}/{name}"
                found[names[track.uuid]] = []
        if packet.HasField("track_event"):
            event, at = packet.track_event, packet.timestamp
            track = names[event.track_uuid]
            assert at >= last.get(track, 0), f"{track}: {at} after {last[track]}"
            last[track] = at
            stack = open_slices.setdefault(track, [])
            if event.type == protos.TrackEvent.TYPE_SLICE_BEGIN:
                stack.append(len(found[track]))
                found[track].append([event.name, at, None, len(stack)])
            else:
                assert event.type == protos.TrackEvent.TYPE_SLICE_END, event
                found[track][stack.pop()][2] = at
    assert not any(open_slices.values()), "a slice does not end"
    assert trace.packet and found
    return found


def run(piecewise, extra):
    with tempfile.TemporaryDirectory() as folder:
        trace, log = f"{folder}/steps.pftrace", f"{folder}/steps.jsonl"
        prompts = ["--prompt", "def __init__(self", "--prompt", "import numpy", "--max-tokens", "24"]
        command = [piecewise, "generate", "--model", "examples/tiny-qwen3", *prompts, "--ignore-eos"]
        command += ["--trace", trace, "--iteration-log", log, "--no-cache", *extra]
        subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
        check(trace, log)


def check(trace, log):
    found = tracks(pathlib.Path(trace).read_bytes())
    _head, *steps = [json.loads(line) for line in pathlib.Path(log).read_text().splitlines()]
    [device] = [slices for name, slices in found.items() if name.endswith("/steps")]
    whole = [slice for slice in device if slice[3] == 1]
    parts = [slice for slice in device if slice[3] == 2]
    assert len(whole) == len(steps), f"{len(whole)} of {len(steps)} steps are in the trace"
    names = {name for name, *_ in parts}
    assert {"stage", "read back"} <= names, names
    for (name, start, end, _), step in zip(whole, steps):
        assert name.startswith(step["mode"]), f"{name}: {step}"
        inside = [(what, s, e) for what, s, e, _ in parts if start <= s and e <= end]
        named = {what for what, *_ in inside} - {"stage", "read back"}
        pieces = {what for what in named if re.fullmatch(r"p\d+( to p\d+)?", what)}
        # Attention between pieces that replay as one is in their graph.
        between = set() if any(" to " in piece for piece in pieces) else {"piecewise.paged_attention"}
        of_mode = {"replay"} if step["mode"] == "full" else pieces | between
        assert named == of_mode and (pieces or step["mode"] == "full"), f"{name}: {named}"
        covered = sum(e - s for _, s, e in inside)
        assert abs(covered - (end - start)) <= 0.05 * (end - start), f"{name}: {covered}"
    spans = sum(end - start for _, start, end, _ in whole) / 1e3
    marked = sum(step["gpu_us"] for step in steps)
    assert abs(spans - marked) <= 0.05 * marked, f"{spans} us in spans, {marked} between marks"
    submits = [slice for name, slices in found.items() if name == "host/submits" for slice in slices]
    assert len(submits) == len(steps)
    print(f"{len(whole)} steps, {len(parts)} parts: {spans:.0f} us in spans, {marked:.0f} us between marks")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--piecewise", default=str(ROOT / "target/debug/piecewise"))
    parser.add_argument("--files", nargs=2, metavar=("TRACE", "LOG"))
    arguments, extra = parser.parse_known_args()
    try:
        from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as protos
    except ImportError as error:
        skip(f"perfetto: {error}")
    if arguments.files:
        check(*arguments.files)
    else:
        run(str(pathlib.Path(arguments.piecewise).resolve()), extra)
