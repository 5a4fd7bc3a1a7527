"""Decodes and prompts beside torch.compile on the same GPU, none timed while another runs or compiles.

    peer.py PIECEWISE [--batch 1,8,32,128] [--prefill 512,2048] [--context 512] [--steps 30] [PRESET..]

A line a step, by tabs: what, result and text, with both times in milliseconds, how many times ours the
peer's is, and what each took until its first step. A peer that can't be measured fails nothing.
"""

import argparse
import contextlib
import json
import subprocess
import sys
import threading
from pathlib import Path

from rows import step_of

# What decode.py says with --in-turn.
READY = "ready"
PRESETS = ["qwen3-0.6b", "llama-3.2-1b", "qwen3-8b"]
DECODE = Path(__file__).with_name("decode.py")
# What a row may take once it is compiled.
TIMED_SECONDS = 120
# What a device has room for, beside each other: models of 16 GB.
AT_ONCE = {"qwen3-8b": 3}


class Peer:
    """One step of the peer in a process of its own, which compiles and then waits for its turn."""

    def __init__(self, preset, flag, number, args):
        rows = {"--batch": "", flag: str(number)}
        flags = [text for row in rows.items() for text in row]
        always = ["--in-turn", "--modes", "reduce-overhead", "--context", str(args.context)]
        command = [sys.executable, str(DECODE), "--preset", preset, *always, "--steps", str(args.steps), *flags]
        pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        self.process = subprocess.Popen([*command, "--device", args.device], text=True, **pipes)
        self.can_go = threading.Event()
        self.failure, self.last = None, ""
        self.listener = threading.Thread(target=self.listen, daemon=True)
        self.listener.start()

    def listen(self):
        for line in self.process.stderr:
            if line.strip() == READY:
                self.can_go.set()
            self.last = line.strip() or self.last
        self.can_go.set()

    def compiled(self, seconds):
        """Waits until it is compiled or has failed. One that takes longer ends, so as not to compile beside what is
        timed."""
        if not self.can_go.wait(seconds):
            self.process.kill()
            self.failure = f"not compiled within {seconds:.0f} s"

    def row(self):
        """Its row, timed now."""
        if self.failure:
            return {"failures": [self.failure]}
        # One that has failed hears nothing any more, and says why by itself.
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.write("go\n")
            self.process.stdin.close()
        try:
            self.process.wait(timeout=TIMED_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return {"failures": [f"it did not end within {TIMED_SECONDS} s"]}
        self.listener.join()
        try:
            report = json.loads(self.process.stdout.read())
        except ValueError as error:
            return {"failures": [self.last or str(error)]}
        rows = [row for mode in report["modes"] for row in mode["rows"]]
        if len(rows) != 1:
            return {"failures": [report.get("reason", f"{len(rows)} rows")]}
        [row] = rows
        versions = report.get("versions", {})
        return row | {"versions": " ".join(f"{name} {version}" for name, version in versions.items())}


def ours(piecewise, preset, args):
    rows = ["--batch", args.batch, "--prefill", args.prefill, "--context", str(args.context)]
    steps = ["--steps", str(args.steps), "--mixed-steps", str(args.steps)]
    always = ["--graph-mode", "full", "--tune", "off", "--no-cache", "--device", args.device, "--json"]
    command = [piecewise, "bench", "--preset", preset, *rows, *steps, *always]
    report = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
    return report, report["modes"][0]["rows"]


def waves(peers, size):
    for first in range(0, len(peers), size):
        yield peers[first : first + size]


def lines(preset, args):
    report, rows = ours(args.piecewise, preset, args)
    start, seconds = report["start"], ("plan_s", "open_s", "compile_s")
    yield "versions", "ok", ", ".join(f"{name} {version}" for name, version in report["versions"].items())
    yield "start", "ok", f"{sum(start[key] for key in seconds):.1f} s to compile all rows"
    steps = [("--batch", row["batch"]) if row["kind"] == "decode" else ("--prefill", row["tokens"]) for row in rows]
    for wave in waves(list(zip(rows, steps)), AT_ONCE.get(preset, len(rows))):
        peers = [(row, Peer(preset, *step, args)) for row, step in wave]
        for _, peer in peers:
            peer.compiled(args.compile_seconds)
        for row, peer in peers:
            own = row["gpu_ms"]["median"]
            other = peer.row()
            if "gpu_ms" not in other:
                yield step_of(row), "none", f"{own:.3f} ms; {'; '.join(other['failures'])[:160]}"
                continue
            its = other["gpu_ms"]["median"]
            text = f"{its:.3f} / {own:.3f} ms, {its / own:.2f} times, {other['compile_s']:.0f} s to compile"
            yield step_of(row), "ok", f"{text}, {other['versions']}"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("piecewise")
    parser.add_argument("presets", nargs="*", default=PRESETS)
    parser.add_argument("--batch", default="1,8,32,128")
    parser.add_argument("--prefill", default="512,2048")
    parser.add_argument("--context", type=int, default=512)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--compile-seconds", type=float, default=180.0, help="what a peer may take to compile")
    args = parser.parse_intermixed_args()
    for preset in args.presets:
        for what, result, text in lines(preset, args):
            print(f"{preset} {what}", result, " ".join(text.split()), sep="\t", flush=True)


if __name__ == "__main__":
    sys.exit(main())
