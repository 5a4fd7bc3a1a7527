"""CPU time of a token through a worker, beyond that of the same token through the library:

PYTHONPATH="$(.ci/install-zmq)" python3 tests/worker/cost.py

The whole process is counted, whatever thread it is, of `piecewise worker` and of `piecewise generate`,
which calls the library: once with few tokens and once with many, so that what a start or a prompt takes
is in neither. The front end is one of libzmq in this process, which is not counted.
"""

import pathlib
import resource
import statistics
import subprocess
import tempfile

import msgspec

from faults import Nonsense
from fleet import BINARY, MODEL, Worker

SETTINGS = ["--dtype", "f32", "--max-num-tokens", "64", "--max-num-seqs", "64", "--max-seq-len", "1024",
            "--no-prefix-cache", "--sampling-controls"]
FEW, MANY = 100, 800
BOUNDS = {1: 100, 64: 10}


def through_worker(front, worker, count, tokens):
    """Seconds of CPU time of so many requests at once."""
    def spent():
        tasks = pathlib.Path(f"/proc/{worker.process.pid}/task").iterdir()
        return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) * 1e-9

    before, made, live = spent(), 0, {f"{tokens}-{number}" for number in range(count)}
    for name in live:
        front.add(name, prompt=[5, 6, 7], sampling={"max_tokens": tokens})
    while live:
        for output in msgspec.msgpack.decode(front.outputs.recv())[1]:
            made += len(output[1])
            if len(output) > 5 and output[5] is not None:
                live.discard(output[0])
    assert made == count * tokens, (made, count, tokens)
    return spent() - before


def through_library(count, tokens):
    command = [BINARY, "generate", "--model", str(MODEL), *SETTINGS, "--max-tokens", str(tokens), "--ignore-eos"]
    for number in range(count):
        command += ["--prompt", f"import {number % 10}"]

    def spent():
        usage = resource.getrusage(resource.RUSAGE_CHILDREN)
        return usage.ru_utime + usage.ru_stime

    before = spent()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return spent() - before


def slope(measure, count):
    """Microseconds of a token."""
    return 1e6 * (measure(count, MANY) - measure(count, FEW)) / (count * (MANY - FEW))


def main():
    front = Nonsense()
    with tempfile.TemporaryDirectory() as state:
        worker = Worker(front.port, 0, state, settings=SETTINGS)
        front.join()
        for count, bound in BOUNDS.items():
            pairs = []
            for _ in range(5):
                library = slope(through_library, count)
                pairs.append((library, slope(lambda *of: through_worker(front, worker, *of), count)))
            library, through = (statistics.median(side) for side in zip(*pairs))
            more = statistics.median(b - a for a, b in pairs)
            print(f"concurrency {count}: {library:.1f} us a token through the library, {through:.1f} us through "
                  f"the worker: {more:.1f} us more, at most {bound} are allowed")
        front.close()
        worker.drop()


if __name__ == "__main__":
    main()
