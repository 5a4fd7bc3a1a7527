"""What a token through a worker costs more than one through the library, as CPU time of the whole process:

PYTHONPATH="$(.ci/install-zmq)" python3 tests/worker/cost.py [--release] [--bar]

With --bar it fails where more is added than may be: for a machine with nothing else to do.

Both sides are of one build, have the same model and settings, and one processor; they take turns. The model
is of one narrow layer, so that what it computes does not hide the difference. The worker's stand-in is
counted with it. The front end is one of libzmq in this process, which is not counted.
"""

import json
import math
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile

import msgspec

from faults import Nonsense
from fleet import MODEL, ROOT, Worker, until

SETTINGS = {"dtype": "f32", "max-num-tokens": "64", "max-num-seqs": "64", "max-seq-len": "1024"}
# By requests at once: tokens of each in a round, and microseconds a token that a worker may add.
ROUNDS = {1: (900, 100), 64: (400, 10)}
TURNS = 9


def spent(*processes):
    """Microseconds of CPU time of processes, all their threads together."""
    tasks = [task for process in processes for task in pathlib.Path(f"/proc/{process}/task").iterdir()]
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e3


def small_model(folder):
    """The tiny model's folder with one layer of 64 columns, and zeros for weights."""
    config = json.loads((MODEL / "config.json").read_text())
    config |= dict(num_hidden_layers=1, layer_types=["full_attention"], hidden_size=64, intermediate_size=64,
                   num_attention_heads=1, num_key_value_heads=1)
    (folder / "config.json").write_text(json.dumps(config))
    shutil.copy(MODEL / "tokenizer.json", folder)
    shapes = {"model.embed_tokens": [config["vocab_size"], 64], "model.norm": [64]}
    for name in ["input_layernorm", "post_attention_layernorm", "self_attn.q_norm", "self_attn.k_norm"]:
        shapes[f"model.layers.0.{name}"] = [64]
    for name in ["mlp.gate_proj", "mlp.up_proj", "mlp.down_proj", *(f"self_attn.{n}_proj" for n in "qkvo")]:
        shapes[f"model.layers.0.{name}"] = [64, 64]
    header, end = {}, 0
    for name, shape in shapes.items():
        start, end = end, end + 2 * math.prod(shape)
        header[f"{name}.weight"] = {"dtype": "BF16", "shape": shape, "data_offsets": [start, end]}
    header = json.dumps(header).encode()
    (folder / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(end))
    return folder


def built(profile):
    """Builds both sides, and says where they are."""
    command = ["cargo", "build", "--quiet", *profile, "--workspace", "--bin", "piecewise", "--bench", "tokens",
               "--message-format=json"]
    lines = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()
    made = (json.loads(line) for line in lines)
    programs = {each["target"]["name"]: each["executable"] for each in made if each.get("executable")}
    return programs["tokens"], programs["piecewise"]


class Library:
    def __init__(self, program, model):
        # A worker's graphs have what requests may ask for.
        settings = {**SETTINGS, "dtype": '"f32"', "sampling-controls": "true"}
        pairs = [f"{name.replace('-', '_')}={value}" for name, value in settings.items()]
        self.process = subprocess.Popen(
            [program, str(model), *pairs], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout.readline() == "ready\n"

    def cost(self, count, tokens):
        before = spent(self.process.pid)
        self.process.stdin.write(f"[{count}, {tokens}]\n")
        self.process.stdin.flush()
        made = int(self.process.stdout.readline())
        assert made == count * tokens, (made, count, tokens)
        return (spent(self.process.pid) - before) / made


class Through:
    def __init__(self, program, model, state):
        self.front, self.round = Nonsense(), 0
        flags = [word for name, value in SETTINGS.items() for word in (f"--{name}", value)]
        self.worker = Worker(self.front.port, 0, state, settings=flags, binary=program, model=model)
        self.front.join()
        worker = self.worker.process.pid
        children = pathlib.Path(f"/proc/{worker}/task/{worker}/children")
        self.processes = [worker, *until("its stand-in is there", lambda: children.read_text().split())]

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
    library, program = built(["--release"] if "--release" in sys.argv else [])
    every = os.sched_getaffinity(0)
    with tempfile.TemporaryDirectory() as folder:
        model = small_model(pathlib.Path(folder))
        # What is started now has one processor, and computes on one thread.
        os.sched_setaffinity(0, {max(every)})
        library, worker = Library(library, model), Through(program, model, folder)
        os.sched_setaffinity(0, every)
        above = []
        for count, (tokens, bound) in ROUNDS.items():
            library.cost(count, 20), worker.cost(count, 20)
            turns = [(library.cost(count, tokens), worker.cost(count, tokens)) for _ in range(TURNS)]
            own, through = (statistics.median(side) for side in zip(*turns))
            added = sorted(b - a for a, b in turns)
            print(f"{count} at once: {own:.1f} us a token through the library, {through:.1f} through the worker: "
                  f"{statistics.median(added):.1f} more ({added[0]:.1f} to {added[-1]:.1f}), at most {bound} may be",
                  flush=True)
            if statistics.median(added) > bound:
                above.append(count)
        worker.front.close()
        worker.worker.drop()
        library.process.kill()
    if "--bar" in sys.argv and above:
        sys.exit(f"more than may be at {above} requests at once")


if __name__ == "__main__":
    main()
