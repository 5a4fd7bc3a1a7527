#!/usr/bin/env python3
"""The compile cache on a machine with a GPU.

    cache.py pack BINARY FOLDER     # compiles for sm_90, with NVRTC and without a GPU
    cache.py run BINARY FOLDER      # rows for the table of run.sh: what, result, detail

`run` holds cold against warm runs and starts, the warm ones without NVRTC, and runs from what
`pack` compiled. The exit status of `run` is 1 where a row failed.
"""

import gzip
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

TARGET = "cuda:sm_90a"
MODEL = "examples/tiny-qwen3"
RUN = ["--max-num-tokens", "64", "--capture-num-tokens", "1,8,64", "--decode-batch-sizes", "1,2",
       "--max-num-seqs", "2", "--max-seq-len", "128", "--tune", "off"]
# Those of `piecewise bench --startup`.
START = ["--max-num-tokens", "8192", "--capture-num-tokens", ",".join(str(1 << i) for i in range(14)),
         "--decode-batch-sizes", ",".join(str(1 << i) for i in range(8)),
         "--max-num-seqs", "128", "--max-seq-len", "512", "--tune", "off"]
ARCHIVES = {
    "tiny-qwen3": ["--model", MODEL, "--dtype", "f32", *RUN],
    "qwen3-8b": ["--preset", "qwen3-8b", *START],
}
STARTS = {
    "tiny-qwen3": ["--model", MODEL],
    "qwen3-0.6b": ["--preset", "qwen3-0.6b"],
    "qwen3-8b": ["--preset", "qwen3-8b"],
}


def pack(binary, folder):
    for name, flags in ARCHIVES.items():
        with tempfile.TemporaryDirectory() as cache:
            there = ["--cache-dir", cache]
            subprocess.run([binary, "compile", "--device", TARGET, *flags, *there], check=True)
            out = pathlib.Path(cache) / "archive"
            subprocess.run([binary, "cache", "export", out, *there], check=True)
            with gzip.open(folder / f"{name}.archive.gz", "wb") as packed:
                packed.write(out.read_bytes())


class Refused(Exception):
    """A row's reason to fail."""


class Runs:
    def __init__(self, binary, folder, work):
        self.binary, self.folder, self.work = binary, folder, work
        self.device = os.environ.get("PIECEWISE_TEST_DEVICE", "cuda")
        self.failed = False
        # A library of the right name that is not NVRTC is found before any that is.
        self.no_nvrtc = work / "no-nvrtc"
        self.no_nvrtc.mkdir()
        shutil.copy(next(library_files("libm.so.6")), self.no_nvrtc / "libnvrtc.so.13")

    def call(self, args, nvrtc=True):
        env = dict(os.environ)
        if not nvrtc:
            name = "PIECEWISE_CUDA_LIBRARY_DIRS"
            env[name] = os.pathsep.join(filter(None, [str(self.no_nvrtc), env.get(name)]))
        return subprocess.run([self.binary, *args], env=env, capture_output=True, text=True)

    def checked(self, args, nvrtc=True):
        done = self.call(args, nvrtc)
        if done.returncode:
            raise Refused(" ".join(done.stderr.split())[-300:])
        return done

    def imported(self, name, cache):
        """A cache with what `pack` compiled."""
        archive = self.work / f"{name}.archive"
        with gzip.open(self.folder / f"{name}.archive.gz") as packed:
            archive.write_bytes(packed.read())
        self.checked(["cache", "import", archive, "--cache-dir", cache])
        return cache

    def generated(self, cache, nvrtc=True):
        """What a run prints, and what it compiled and reused."""
        done = self.checked(
            ["generate", "--model", MODEL, "--device", self.device, "--dtype", "f32", *RUN,
             "--prompt", "def __init__(self", "--prompt", "import os", "--max-tokens", "24",
             "--ignore-eos", "--json", "--stats", "--cache-dir", cache], nvrtc)
        stats = next(json.loads(line) for line in done.stderr.splitlines() if line.startswith("{"))
        return done.stdout, stats["statistics"]["compile"]

    def logits(self, cache, nvrtc=True):
        out = self.work / "logits.safetensors"
        self.checked(
            ["logits", "--model", MODEL, "--device", self.device, "--dtype", "f32", *RUN,
             "--ids", "326,680,596,12,7,91,200,33,4", "--out", out, "--cache-dir", cache], nvrtc)
        return out.read_bytes()

    def started(self, name, cache, nvrtc=True):
        done = self.checked(["bench", "--startup", *STARTS[name], "--device", self.device,
                             "--cache-dir", cache, "--json"], nvrtc)
        return json.loads(done.stdout)

    def row(self, what, check):
        try:
            result, detail = "ok", check()
        except Refused as reason:
            result, detail, self.failed = "FAILED", str(reason), True
        print(what, result, detail, sep="\t", flush=True)


def library_files(name):
    for line in pathlib.Path("/proc/self/maps").read_text().splitlines():
        path = pathlib.Path(line.split()[-1])
        if path.name == name:
            yield path
    for root in ("/lib", "/usr/lib", "/lib64", "/usr/lib64"):
        yield from pathlib.Path(root).rglob(name)


def counts(entries):
    shown = lambda of: " ".join(f"{n} {kind}" for kind, n in of.items()) or "nothing"
    return f"compiled {shown(entries['compiled'])}, reused {shown(entries['reused'])}"


def compiled_nothing(entries):
    if entries["compiled"] or not entries["reused"]:
        raise Refused(counts(entries))


def run(runs):
    cold, warm = runs.work / "cold", runs.work / "cold"
    imported = runs.work / "imported"
    before = {}

    def cold_run():
        before["text"], entries = runs.generated(cold)
        before["logits"] = runs.logits(cold)
        if not entries["compiled"].get("cubin") and runs.device != "cpu":
            raise Refused(counts(entries))
        return counts(entries)

    def same(cache):
        text, entries = runs.generated(cache, nvrtc=False)
        compiled_nothing(entries)
        if text != before.get("text") or runs.logits(cache, nvrtc=False) != before.get("logits"):
            raise Refused("other bits than the cold run")
        return counts(entries) + ", the same tokens and logits"

    def without_either():
        done = runs.call(["generate", "--model", MODEL, "--device", runs.device, "--prompt", "x",
                          "--cache-dir", runs.work / "empty"], nvrtc=False)
        if done.returncode == 0 or "NVRTC" not in done.stderr:
            raise Refused(f"status {done.returncode}: " + " ".join(done.stderr.split())[-300:])
        return "fails, and names NVRTC"

    runs.row("cold run", cold_run)
    runs.row("warm run without NVRTC", lambda: same(warm))
    runs.row("imported run without NVRTC", lambda: same(runs.imported("tiny-qwen3", imported)))
    if runs.device != "cpu":
        runs.row("cold run without NVRTC", without_either)

    for name in STARTS:
        cache = runs.work / name

        def start(cache, nvrtc):
            report = runs.started(name, cache, nvrtc)
            entries = report["start"]["entries"]
            if not nvrtc:
                compiled_nothing(entries)
            parts = [f"{report['start_without_load_s']:.2f} s without weights"]
            for part in ("plan", "open", "compile", "bind"):
                parts.append(f"{part} {report['start'][part + '_s']:.2f}")
            parts.append(f"warm-up {report['start']['capture_s']:.2f}")
            parts.append(f"warm-up and capture {report['captured']['captured']['total_s']:.2f}")
            return ", ".join(parts) + "; " + counts(entries)

        def imported_start():
            return start(runs.imported(name, runs.work / f"{name}-imported"), False)

        runs.row(f"{name} cold start", lambda: start(cache, True))
        runs.row(f"{name} warm start", lambda: start(cache, False))
        if name == "qwen3-8b":
            runs.row(f"{name} imported start", imported_start)


def main():
    what, binary, folder = sys.argv[1:]
    folder = pathlib.Path(folder).resolve()
    if what == "pack":
        return pack(binary, folder)
    with tempfile.TemporaryDirectory() as work:
        runs = Runs(binary, folder, pathlib.Path(work))
        run(runs)
        return int(runs.failed)


if __name__ == "__main__":
    sys.exit(main())
