"""What a token through a worker costs besides computing it, as CPU time:

PYTHONPATH="$(.ci/install-zmq)" python3 tests/worker/cost.py

Counted are all threads of the worker but those that compute. The engine's own thread is among them,
which the library has too: what the worker adds is less than the sum, and at least what its own threads
take. The front end is one of libzmq in this process, which is not counted.
"""

import pathlib
import statistics
import tempfile

import msgspec

from faults import Nonsense
from fleet import Worker

SETTINGS = ["--dtype", "f32", "--max-num-tokens", "64", "--max-num-seqs", "64", "--max-seq-len", "1024"]
# Microseconds a token that a worker may add, by requests at once.
BOUNDS = {1: 100, 64: 10}
OF_THE_ENGINE, OF_COMPUTING = "engine", "piecewise-cpu"


def spent(worker):
    """Microseconds of CPU time of the engine's thread, and of the worker's own."""
    engine, own = 0, 0
    for task in pathlib.Path(f"/proc/{worker.process.pid}/task").iterdir():
        name = (task / "comm").read_text().strip()
        time = int((task / "schedstat").read_text().split()[0]) / 1e3
        engine += time * (name == OF_THE_ENGINE)
        own += time * (name != OF_THE_ENGINE and not name.startswith(OF_COMPUTING))
    return engine, own


def run(front, run, count, tokens):
    made, live = 0, {f"{run}-{number}" for number in range(count)}
    for name in live:
        front.add(name, prompt=[5, 6, 7], sampling={"max_tokens": tokens})
    while live:
        for output in msgspec.msgpack.decode(front.outputs.recv())[1]:
            made += len(output[1])
            if len(output) > 5 and output[5] is not None:
                live.discard(output[0])
    assert made == count * tokens, (made, count, tokens)


def main():
    front = Nonsense()
    with tempfile.TemporaryDirectory() as state:
        worker = Worker(front.port, 0, state, settings=SETTINGS)
        front.join()
        for count, bound in BOUNDS.items():
            tokens, found = 12_800 // count // 5, []
            run(front, f"{count}-first", count, 20)
            for number in range(5):
                before = spent(worker)
                run(front, f"{count}-{number}", count, min(tokens, 900))
                made = count * min(tokens, 900)
                found.append([(b - a) / made for a, b in zip(before, spent(worker))])
            engine, own = (statistics.median(side) for side in zip(*found))
            print(f"concurrency {count}: {own:.1f} us a token in the worker's own threads, {engine:.1f} us in the "
                  f"engine's: {own + engine:.1f} us, and at most {bound} may be added")
        front.close()
        worker.drop()


if __name__ == "__main__":
    main()
