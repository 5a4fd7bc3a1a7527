"""What a token through a worker costs more than one through the library, as CPU time of the whole process:

PYTHONPATH="$(.ci/install-zmq)" python3 tests/worker/cost.py [--release]

Both sides are of one build, have the same model and settings, and one processor; they take turns. The
worker's stand-in is counted with it. The front end is one of libzmq in this process, which is not counted.
"""

import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

import msgspec

from faults import Nonsense
from fleet import MODEL, ROOT, Worker

SETTINGS = {"dtype": "f32", "max-num-tokens": "64", "max-num-seqs": "64", "max-seq-len": "1024"}
# By requests at once: tokens of each in a round, and microseconds a token that a worker may add.
ROUNDS = {1: (900, 100), 64: (400, 10)}
TURNS = 9


def spent(*processes):
    """Microseconds of CPU time of processes, all their threads together."""
    tasks = [task for process in processes for task in pathlib.Path(f"/proc/{process}/task").iterdir()]
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e3


def built(profile):
    """Builds both sides, and says where the library's is."""
    cargo = ["cargo", "build", "--quiet", *profile]
    subprocess.run([*cargo, "-p", "piecewise-cli", "--bin", "piecewise"], cwd=ROOT, check=True)
    bench = [*cargo, "-p", "piecewise", "--bench", "tokens", "--message-format=json"]
    lines = subprocess.run(bench, cwd=ROOT, check=True, capture_output=True, text=True).stdout.splitlines()
    return next(name for name in (json.loads(line).get("executable") for line in lines) if name)


class Library:
    def __init__(self, program):
        # A worker's graphs have what requests may ask for.
        settings = {**SETTINGS, "dtype": '"f32"', "sampling-controls": "true"}
        pairs = [f"{name.replace('-', '_')}={value}" for name, value in settings.items()]
        self.process = subprocess.Popen(
            [program, str(MODEL), *pairs], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout.readline() == "ready\n"

    def cost(self, count, tokens):
        before = spent(self.process.pid)
        self.process.stdin.write(f"[{count}, {tokens}]\n")
        self.process.stdin.flush()
        made = int(self.process.stdout.readline())
        assert made == count * tokens, (made, count, tokens)
        return (spent(self.process.pid) - before) / made


class Through:
    def __init__(self, state, program):
        self.front, self.round = Nonsense(), 0
        flags = [word for name, value in SETTINGS.items() for word in (f"--{name}", value)]
        self.worker = Worker(self.front.port, 0, state, settings=flags, binary=program)
        self.front.join()
        worker = self.worker.process.pid
        children = pathlib.Path(f"/proc/{worker}/task/{worker}/children").read_text().split()
        self.processes = [worker, *children]
        assert len(children) == 1, "it has no stand-in"

    def cost(self, count, tokens):
        self.round += 1
        live = {f"{self.round}-{number}" for number in range(count)}
        before, made = spent(*self.processes), 0
        for name in live:
            self.front.add(name, prompt=[5, 6, 7], sampling={"max_tokens": tokens})
        while live:
            for output in msgspec.msgpack.decode(self.front.outputs.recv())[1]:
                made += len(output[1])
                if len(output) > 5 and output[5] is not None:
                    live.discard(output[0])
        assert made == count * tokens, (made, count, tokens)
        return (spent(*self.processes) - before) / made


def main():
    profile = ["--release"] if "--release" in sys.argv else []
    program = built(profile)
    every = os.sched_getaffinity(0)
    with tempfile.TemporaryDirectory() as state:
        # What is started now has one processor, and computes on one thread.
        os.sched_setaffinity(0, {max(every)})
        library = Library(program)
        worker = Through(state, ROOT / "target" / (profile and "release" or "debug") / "piecewise")
        os.sched_setaffinity(0, every)
        for count, (tokens, bound) in ROUNDS.items():
            library.cost(count, 20), worker.cost(count, 20)
            turns = [(library.cost(count, tokens), worker.cost(count, tokens)) for _ in range(TURNS)]
            own, through = (statistics.median(side) for side in zip(*turns))
            added = sorted(b - a for a, b in turns)
            print(f"{count} at once: {own:.1f} us a token through the library, {through:.1f} through the worker: "
                  f"{statistics.median(added):.1f} more ({added[0]:.1f} to {added[-1]:.1f}), at most {bound} may be",
                  flush=True)
        worker.front.close()
        worker.worker.drop()
        library.process.kill()


if __name__ == "__main__":
    main()
