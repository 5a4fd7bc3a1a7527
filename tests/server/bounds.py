"""What one client may take of the server with requests that are as large as they may be: others are answered
meanwhile, it is told no by name, and the memory stays within its bounds and comes back."""

import contextlib
import json
import random
import socket
import tempfile
import threading

from encoders import FIXTURES, SETTINGS, with_words
from harness import Server, chat_template, timed
from openai_client import EXPECTED, PROMPTS

# Kilobytes above the idle server.
MOST = 1 << 20
EIGHT_MIB = (8 << 20) - 4096


@contextlib.contextmanager
def beside(server, asks):
    """Somebody else, who asks again and again and is answered; and who watches the memory."""
    done, idle, highest, answered, failures = threading.Event(), server.memory(), [0], [0], []

    def watch():
        while not done.wait(0.02):
            highest[0] = max(highest[0], server.memory() - idle)

    def ask():
        try:
            while not done.is_set():
                asks()
                assert server.get("/health")[0] == 200
                answered[0] += 1
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=each) for each in (watch, ask)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        done.set()
        for thread in threads:
            thread.join()
    assert not failures and answered[0] > 0, (failures, answered)
    assert highest[0] < MOST, f"{highest[0]} kB above the idle server"


def refused(answer, code, says):
    status, _, body = answer
    assert status == code and says in json.dumps(body), (status, body)


def lists_of_ids(server):
    def complete(code, says, **fields):
        body = {"prompt": [5, 6], "max_tokens": 16, "temperature": 0, "n": 128, **fields}
        refused(server.post("/v1/completions", body), code, says)

    ids = random.Random(1).choices(range(2048), k=1_000_000)
    complete(400, "stop_token_ids", stop_token_ids=ids)
    complete(400, "leave no room in the context", prompt=ids)
    complete(400, "logit_bias", logit_bias={str(id): 1 for id in range(400_000)})
    complete(413, "--max-body-values", prompt=[5] * 1_500_000)
    # As many ids as there are, each many times, are what they say: all.
    body = {"prompt": PROMPTS[0], "max_tokens": 8, "temperature": 0, "return_token_ids": True}
    status, _, answer = server.post("/v1/completions", {**body, "n": 32, "allowed_token_ids": ids})
    assert status == 200, answer
    found = [choice["token_ids"] for choice in answer["choices"]]
    assert found == [EXPECTED[PROMPTS[0]][:8]] * 32, found[:2]


def texts(server):
    digits = "7" * EIGHT_MIB
    refused(server.post("/tokenize", {"prompt": digits}), 400, "leave no room in the context")
    refused(server.post("/v1/completions", {"prompt": digits}), 400, "leave no room in the context")
    refused(server.post("/v1/chat/completions", {"messages": [{"role": "user", "content": digits}]}), 400, "leave no room")


def values(server):
    many = "[" + ",".join(['{"":0}'] * 900_000) + "]"
    body = ('{"messages": [{"role": "user", "content": "x", "else": %s}]}' % many).encode()
    answers = []
    ask = lambda: answers.append(server.post("/v1/chat/completions", body))
    threads = [threading.Thread(target=ask) for _ in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(answers) == 12
    for answer in answers:
        refused(answer, 413 if answer[0] == 413 else 503, "--max-body-")


def bodies_that_stand_still(server):
    """The memory of bodies is shared, and what is above it is told to come again."""
    head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {EIGHT_MIB}\r\n\r\n".encode()
    part = b'{"prompt": "' + b"x" * (6 << 20)
    with contextlib.ExitStack() as held:
        full = 0
        for _ in range(100):
            stream = held.enter_context(socket.create_connection(server.address, timeout=60))
            try:
                stream.sendall(head + part)
                stream.settimeout(0.01)
                full += stream.recv(12) == b"HTTP/1.1 503"
            except TimeoutError:
                pass
            except ConnectionError:
                full += 1
        assert full > 0


def others_are_asked_alone(server):
    refused(server.post("/v1/completions", {"prompt": "x", "priority": -1000}), 400, "--scheduling-policy")
    answer = server.post("/v1/completions", b"\x1f\x8b", [("Content-Encoding", "gzip")])
    refused(answer, 415, "Content-Encoding: gzip")


def writers():
    body = {"prompt": PROMPTS[0], "max_tokens": 8, "temperature": 0, "return_token_ids": True}

    def asks():
        status, _, answer = server.post("/v1/completions", body)
        assert status == 200 and answer["choices"][0]["token_ids"] == EXPECTED[PROMPTS[0]][:8], answer

    with chat_template() as template, Server("--max-num-seqs", "64", *template) as server:
        asks()
        for attack in [lists_of_ids, texts, values, bodies_that_stand_still, others_are_asked_alone]:
            with beside(server, asks):
                timed(attack, server)


def long_queries(server):
    """One query, however many documents, is read once, and not at all where it is too long."""
    query = "one two three " * 28_000
    for path, body in [
        ("/v1/rerank", {"query": query, "documents": ["one"] * 2000}),
        ("/v1/score", {"text_1": query, "text_2": ["one"] * 2000}),
    ]:
        answer = server.post(path, body)
        refused(answer, 400, "leave no room in the context")
        assert answer[2]["error"]["param"] in ("query", "text_1"), answer


def readers():
    with tempfile.TemporaryDirectory() as folder:
        folder = with_words(folder, "cross_encoder")
        with Server(source=("--model", folder), settings=SETTINGS) as server:
            small = {"query": "one", "documents": ["two", "three"]}

            def asks():
                assert server.post("/v1/rerank", small)[0] == 200

            asks()
            with beside(server, asks):
                timed(long_queries, server)


if __name__ == "__main__":
    writers()
    readers()
