"""A front end that says what a test wants."""

import collections

import msgspec
import zmq


def answer(**addresses):
    """What vLLM 0.33.0 answers to HELLO, with other addresses."""
    return {"addresses": {
        "inputs": ["tcp://127.0.0.1:1"], "outputs": ["tcp://127.0.0.1:3"], "coordinator_input": None,
        "coordinator_output": None, "frontend_stats_publish_address": None, **addresses}, "parallel_config": {}}


class Nonsense:
    """A front end of libzmq that sends what it likes."""

    def __init__(self, init=None):
        self.context = zmq.Context()
        self.handshake, self.inputs = self.context.socket(zmq.ROUTER), self.context.socket(zmq.ROUTER)
        self.outputs = self.context.socket(zmq.PULL)
        self.port = self.handshake.bind_to_random_port("tcp://127.0.0.1")
        inputs, outputs = (s.bind_to_random_port("tcp://127.0.0.1") for s in [self.inputs, self.outputs])
        # Outputs that came while something else was waited for.
        self.kept = collections.deque()
        self.init = init or answer(
            inputs=[f"tcp://127.0.0.1:{inputs}"], outputs=[f"tcp://127.0.0.1:{outputs}"])
        for s in [self.handshake, self.inputs, self.outputs]:
            s.setsockopt(zmq.RCVTIMEO, 60_000)
            s.linger = 0

    def greet(self):
        identity, hello = self.handshake.recv_multipart()
        assert msgspec.msgpack.decode(hello)["status"] == "HELLO" and identity == b"\0\0"
        self.handshake.send_multipart([identity, msgspec.msgpack.encode(self.init)])

    def join(self):
        self.greet()
        ready = msgspec.msgpack.decode(self.inputs.recv_multipart()[1])
        status = msgspec.msgpack.decode(self.handshake.recv_multipart()[1])["status"]
        assert status == "READY"
        return ready

    def send(self, *frames):
        self.inputs.send_multipart([b"\0\0", *frames])

    def add(self, name, prompt=(1, 2, 3), sampling=None, more=()):
        sampling = {"temperature": 0.0, "max_tokens": 4, **(sampling or {})}
        request = [name, list(prompt), None, sampling, None, 1.0, None, None, None, *more]
        self.send(b"\0", msgspec.msgpack.encode(request))

    def next_outputs(self):
        return self.kept.popleft() if self.kept else msgspec.msgpack.decode(self.outputs.recv())[1]

    def answer(self, wanted):
        """What comes for a request until its end: ids, why it ended, and the error."""
        ids = []
        while True:
            for output in self.next_outputs():
                if output[0] != wanted:
                    continue
                ids += output[1]
                if len(output) > 5 and output[5] is not None:
                    return ids, output[5], output[18] if len(output) > 18 else None

    def answers(self, wanted):
        """The same of several requests, by their names."""
        ids, ends = {name: [] for name in wanted}, {}
        while len(ends) < len(ids):
            for output in self.next_outputs():
                if output[0] in ids:
                    ids[output[0]] += output[1]
                    if len(output) > 5 and output[5] is not None:
                        ends[output[0]] = ids[output[0]], output[5], output[18] if len(output) > 18 else None
        return ends

    def heard(self):
        """What the scheduler says of itself, in the next message that has it."""
        while True:
            message = msgspec.msgpack.decode(self.outputs.recv())
            if message[2] is not None:
                return message[2]

    def call(self, number, method, *arguments):
        self.ask(number, method, *arguments)
        return self.told(number)

    def ask(self, number, method, *arguments):
        self.send(b"\3", msgspec.msgpack.encode([0, number, method, list(arguments)]))

    def told(self, number):
        while True:
            message = msgspec.msgpack.decode(self.outputs.recv())
            self.kept.extend([message[1]] if message[1] else [])
            if len(message) > 4 and message[4] and message[4][0] == number:
                return message[4]

    def close(self):
        self.context.destroy(linger=0)
