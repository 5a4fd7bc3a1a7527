"""A worker whose standard error is full, closed or read by nobody: requests are answered, a metric counts the lines
that are lost, and it ends when it is told to.

PYTHONPATH="$(.ci/install-zmq)" python3 tests/worker/failing_logs.py
"""

import os
import tempfile

from faults import Nonsense
from fleet import Worker, total, until


def serves_with(stderr, closes=lambda: None):
    """A worker with this standard error answers requests and probes and ends in time; the lines it has lost."""
    front = Nonsense()
    with tempfile.TemporaryDirectory() as state:
        worker = Worker(front.port, 0, state, "--log-level", "debug", stderr=stderr)
        closes()
        front.join()
        until("it has joined", worker.is_ready)
        for number in range(20):
            front.add(f"r{number}")
            assert len(front.answer(f"r{number}")[0]) == 4
        # What is refused is said, too.
        front.send(b"\7", b"x")
        front.add("last")
        assert len(front.answer("last")[0]) == 4
        lost = total(worker.metrics(), "piecewise_log_lines_lost_total")
        assert worker.end() == 0
        worker.drop()
    front.close()
    return lost


def logs_that_fail():
    """Standard error that is full, closed, or read by nobody."""
    with open("/dev/full", "w") as full:
        assert serves_with(full) > 0
    out, into = os.pipe()
    os.close(out)
    assert serves_with(into) > 0
    os.close(into)
    # Whoever reads has stopped, and no line has room.
    out, into = os.pipe()
    os.set_blocking(into, False)
    try:
        while True:
            os.write(into, b"x" * 4096)
    except BlockingIOError:
        os.set_blocking(into, True)
    serves_with(into)
    os.close(out)
    os.close(into)


if __name__ == "__main__":
    logs_that_fail()
