"""What keeps no worker from its work: a standard error that fails, and connections to its probes that say nothing:

PYTHONPATH="$(.ci/install-zmq)" python3 tests/worker/bounds.py
"""

import contextlib
import os
import socket
import tempfile

from fleet import Worker, total, until
from made_front_end import Nonsense


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


def probes_beside_idle_connections():
    """Whoever connects and says nothing, or half of it, keeps no probe waiting."""
    front = Nonsense()
    with tempfile.TemporaryDirectory() as state:
        worker = Worker(front.port, 0, state, "--admin")
        front.join()
        until("it has joined", worker.is_ready)
        idle = []
        for number in range(300):
            idle.append(socket.create_connection(("127.0.0.1", worker.port)))
            idle[-1].sendall(b"GET /health HT" * (number % 2))
            if number % 50 == 0:
                assert worker.is_ready() and worker.metrics()
        # The first have made room.
        for stream in idle[:100]:
            stream.settimeout(60)
            # A part of a head that nobody has read makes a reset of it.
            with contextlib.suppress(ConnectionResetError):
                assert stream.recv(1) == b""
        for stream in idle:
            stream.close()
        assert worker.end() == 0, worker.text()
        worker.drop()
    front.close()


if __name__ == "__main__":
    logs_that_fail()
    probes_beside_idle_connections()
