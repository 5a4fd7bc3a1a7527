"""A worker's probes beside others who connect there and ask nothing.

PYTHONPATH="$(.ci/install-zmq)" python3 tests/worker/idle_probes.py
"""

import contextlib
import socket
import tempfile

from faults import Nonsense
from fleet import Worker, until


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
    probes_beside_idle_connections()
