"""What one client may do to a server, while others ask it for little: each attack that is known comes from an
address of its own. The others get the tokens that they get alone, /health answers, and the memory stays within its
bound and comes back, with the descriptors.

    python3 tests/server/siege.py [attack ..]                   # each once
    python3 tests/server/siege.py --seconds 10 [attack ..]      # tests/soak.sh abuse: for so long, and by the clock
"""

import argparse
import concurrent.futures
import contextlib
import copy
import gzip
import http.client
import json
import multiprocessing
import os
import random
import shutil
import socket
import tempfile
import threading
import time

import crowd
import logs
from abuse import descriptors, malformed
from bounds import EIGHT_MIB, MOST
from encoders import SETTINGS, with_words
from harness import GOLDEN, MODEL, Server, chat_template, until
from hostile import BOUNDED, REFUSED
from prompts import (
    APPENDING, long_lists_of_ids, long_texts, many_small_texts, messages_without_an_end, refused, spaces_without_an_end,
    values_without_an_end,
)

# Seconds that others wait at most, where the clock is looked at.
ANSWER, HEALTH = 2.0, 0.5
MIXED = 200
# Kilobytes that may stay of an attack: what the allocator keeps, and what a later one uses again.
STAYS = 400_000


# Of a process that has no threads yet and knows all that this one does.
FORKED = multiprocessing.get_context("fork")


class Attacker:
    """Asks a server from an address that nobody else has, in a process of its own: what it computes keeps the others' clocks
    from nothing."""

    def __init__(self, server, attack, seconds, most):
        """It goes on for so many seconds, and until so many requests of others have begun."""
        self.server, self.attack, self.seconds, self.most = server, attack, seconds, most
        # How many requests of others have begun, and how many times the attack was made.
        self.asked, self.rounds = FORKED.Value("q", 0), FORKED.Value("q", 0)
        self.process = FORKED.Process(target=self.run, daemon=True)
        self.address = ("127.0.0.2", 0)
        # What else a request may get: nothing where nobody else attacks.
        self.crowded = set()

    def run(self):
        until("others ask", lambda: self.asked.value, 600)
        started = time.monotonic()
        while not self.rounds.value or time.monotonic() - started < self.seconds or self.asked.value < self.most:
            self.attack(self)
            self.rounds.value += 1

    def at(self, number):
        """The same, from another address, among others that attack."""
        other = copy.copy(self)
        other.address, other.crowded = (f"127.0.0.{number}", 0), {None, 429, 503}
        return other

    def hold(self):
        """Goes on until some others were answered."""
        asked = self.asked.value
        until("others are answered", lambda: self.asked.value >= asked + 6, 600)

    def connect(self, sends=b""):
        stream = socket.create_connection(self.server.address, timeout=120, source_address=self.address)
        try:
            stream.sendall(sends)
        except OSError:
            stream.close()
            raise
        return stream

    def post(self, path, body, headers=()):
        """The status of the answer; none where the connection was closed."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        connection = http.client.HTTPConnection(*self.server.address, timeout=120, source_address=self.address)
        try:
            connection.request("POST", path, data, dict(headers))
            answer = connection.getresponse()
            answer.read()
            return answer.status
        except (ConnectionError, http.client.HTTPException):
            return None
        finally:
            connection.close()

    def leave(self, path, body):
        """Asks, and is gone before the answer."""
        with contextlib.suppress(ConnectionError), self.connect(request(path, body)) as stream:
            stream.sendall(b"G")

    def together(self, count, ask, at_once=8):
        """What `ask` gives for each number."""
        with concurrent.futures.ThreadPoolExecutor(at_once) as pool:
            return list(pool.map(ask, range(count)))


def request(path, body):
    body = body if isinstance(body, bytes) else json.dumps(body).encode()
    return f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


def status_in(line):
    """None where the connection was closed."""
    return int(line.removeprefix(b"HTTP/1.1 ")) if line else None


def bodies_that_stand_still(attacker):
    head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {EIGHT_MIB}\r\n\r\n".encode()
    part = b'{"prompt": "' + b"x" * (6 << 20)
    with contextlib.ExitStack() as held:
        full = 0
        for _ in range(150):
            try:
                stream = held.enter_context(attacker.connect(head))
                stream.settimeout(2)
                stream.sendall(part)
                stream.settimeout(0.01)
                full += stream.recv(12) == b"HTTP/1.1 503"
            except TimeoutError:
                pass
            except ConnectionError:
                full += 1
        assert full > 0


def requests_that_are_left(attacker):
    body = {"prompt": "x", "max_tokens": 400, "n": 32, "ignore_eos": True}
    attacker.together(64, lambda _: attacker.leave("/v1/completions", body))


def half_closed_requests(attacker):
    """Of whom it can't be told whether they wait for an answer: they are taken to have left."""
    body = {"prompt": "x", "max_tokens": 400, "n": 16, "ignore_eos": True}

    def ask(_):
        with contextlib.suppress(ConnectionError), attacker.connect(request("/v1/completions", body)) as stream:
            stream.shutdown(socket.SHUT_WR)
            assert status_in(stream.recv(12)) in {None} | attacker.crowded

    attacker.together(32, ask, 16)


def encoded_bodies(attacker):
    """Which would become larger than they are."""
    bomb = gzip.compress(b" " * EIGHT_MIB)
    for encoding in ("gzip", "deflate", "br", "zstd"):
        statuses = attacker.together(8, lambda _: attacker.post("/v1/completions", bomb, {"Content-Encoding": encoding}))
        assert set(statuses) <= {415} | attacker.crowded, (encoding, statuses)


def requests_that_fill_the_queue(attacker):
    """Each of them long: as many run as may, and as many wait."""
    body = {"prompt": "x", "max_tokens": 1500, "n": 128, "ignore_eos": True}
    with contextlib.ExitStack() as held:
        for _ in range(16):
            held.enter_context(attacker.connect(request("/v1/completions", body)))
        attacker.hold()


def idle_connections(attacker):
    with contextlib.ExitStack() as held:
        for i in range(3000):
            # One that makes room for the next is reset.
            with contextlib.suppress(ConnectionError):
                held.enter_context(attacker.connect(b"GET / HT" if i % 2 else b""))


def slow_readers(attacker):
    """Half of whom read a little now and then."""
    with contextlib.ExitStack() as held:
        readers = [held.enter_context(crowd.asks_for_much(attacker.server.address, True, attacker.address)) for _ in range(8)]
        for _ in range(4):
            attacker.hold()
            for reader in readers[::2]:
                with contextlib.suppress(ConnectionError):
                    reader.recv(1000)


def priorities(attacker):
    body = {"prompt": "x", "max_tokens": 64, "priority": -1000}
    statuses = attacker.together(40, lambda _: attacker.post("/v1/completions", body), 20)
    assert set(statuses) <= {400} | attacker.crowded, statuses


def structures(attacker):
    def ask(i):
        kind, structure = (REFUSED + BOUNDED)[i]
        return attacker.post("/v1/completions", {"prompt": "x", "max_tokens": 4, "n": 64, "structured_outputs": {kind: structure}})

    statuses = attacker.together(len(REFUSED + BOUNDED), ask)
    assert set(statuses) <= {200, 400, 429, 503} | attacker.crowded, statuses


def stops_and_bad_words(attacker):
    nearly = ["a" * 40 + chr(98 + i % 20) + str(i) for i in range(64)]
    body = {"prompt": "a", "max_tokens": 64, "n": 64, "ignore_eos": True, "stop": nearly, "bad_words": nearly}
    statuses = attacker.together(3, lambda _: attacker.post("/v1/completions", body))
    assert set(statuses) <= {200, 429} | attacker.crowded, statuses


def malformed_requests(attacker):
    chance = random.Random(11)
    requests = [malformed(chance, chance.randrange(10)) for _ in range(1500)]

    def ask(i):
        with contextlib.suppress(OSError), attacker.connect(requests[i]) as stream:
            status = status_in(stream.recv(12))
            assert status in {None, *range(400, 500)} | attacker.crowded, (status, requests[i][:300])

    attacker.together(len(requests), ask, 32)


def many_log_probabilities(attacker):
    """Of every token and the likeliest ids beside it, in answers that come as a whole."""
    prompt = [5] * 2000
    asked = [
        {"prompt": prompt, "prompt_logprobs": 20, "n": 128, "max_tokens": 1}, {"prompt": prompt, "echo": True, "logprobs": 20, "n": 128, "max_tokens": 1},
        {"prompt": [5, 6], "logprobs": 20, "n": 128, "max_tokens": 2000, "ignore_eos": True}, {"prompt": [5] * 500, "prompt_logprobs": 20, "n": 4, "max_tokens": 1},
    ]
    statuses = attacker.together(12, lambda i: attacker.post("/v1/completions", asked[i % 4]))
    assert set(statuses) <= {200, 400, 429, 503} | attacker.crowded and 400 in statuses, statuses


def foreign_pages(attacker):
    """Of whoever looks at a page on the operator's machine."""
    for headers in [{"Origin": "https://evil.example"}, {"Host": "evil.example"}, {"Sec-Fetch-Site": "cross-site"}]:
        for path in ("/sleep?level=2&mode=abort", "/v1/completions"):
            statuses = attacker.together(20, lambda _: attacker.post(path, {"prompt": "x"}, headers))
            assert set(statuses) <= {403} | attacker.crowded, (headers, path, statuses)


def subscribers(attacker):
    """Of KV events: 500 that say nothing, and 500 that begin to talk."""
    greeting = b"\xff" + b"\0" * 8 + b"\x7f\x03\x00NULL" + b"\0" * 48
    with contextlib.ExitStack() as held:
        for i in range(1000):
            with contextlib.suppress(ConnectionError):
                stream = held.enter_context(socket.create_connection(("127.0.0.1", attacker.server.events), source_address=attacker.address))
                stream.sendall(greeting if i % 2 else b"")


def rerank_bombs(attacker):
    query = "one two three " * 28_000
    for path, body in [("/v1/rerank", {"query": query, "documents": ["one"] * 2000}), ("/v1/score", {"text_1": query, "text_2": ["one"] * 2000})]:
        refused(attacker.together(8, lambda _: attacker.post(path, body)))
        attacker.together(8, lambda _: attacker.leave(path, body))


def log_lines(attacker):
    """More than a pipe and the queue of lines hold."""

    def ask(_):
        connection = http.client.HTTPConnection(*attacker.server.address, timeout=120, source_address=attacker.address)
        for _ in range(2000):
            connection.request("GET", "/" + "x" * 300)
            connection.getresponse().read()
        connection.close()

    attacker.together(4, ask)


def all_at_once(attacker):
    """Each attack from an address of its own."""
    with concurrent.futures.ThreadPoolExecutor(len(EACH)) as pool:
        list(pool.map(lambda number: EACH[number](attacker.at(10 + number)), range(len(EACH))))


EACH = [
    long_lists_of_ids, long_texts, many_small_texts, values_without_an_end, bodies_that_stand_still, requests_that_are_left,
    requests_that_fill_the_queue, idle_connections, slow_readers, priorities, structures, stops_and_bad_words,
    malformed_requests, many_log_probabilities, foreign_pages, subscribers, half_closed_requests, encoded_bodies,
    messages_without_an_end,
]
OF_A_WRITER = [*EACH, all_at_once]
# What has a server of its own that ends, or none of whose clients wait for another: tried alone, there and here.
ALONE = [
    crowd.more_connections_than_descriptors, crowd.requests_hold_their_places, crowd.unfinished_requests_do_not_keep_a_server,
    crowd.who_reads_too_slowly_is_given_up, crowd.slow_readers_do_not_keep_a_server, crowd.heads_that_drip_are_closed,
    logs.nowhere_to_write, logs.a_reader_that_has_gone, logs.a_reader_that_stands_still, logs.nobody_reads_where_it_listens,
    logs.long_paths_are_cut,
]
# Tried where the program's other commands are (cli/tests/program, cli/src/serve.rs):
# - `serve --max-body 0`: server_settings,
# - lines for `chat` and `embed` that are no text: a_line_that_is_no_text_is_named_and_left_out,
#   lines_beside_one_that_is_no_text_are_embedded.


def mixed():
    """Requests of every kind."""
    chance = random.Random(5)
    schema = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"enum": ["x", "y"]}}, "required": ["a", "b"]}
    kinds = [
        {"n": 3}, {"logprobs": 3}, {"structured_outputs": {"regex": "[a-z ]{1,20}"}}, {"structured_outputs": {"json": schema}},
        {"presence_penalty": 1.0, "frequency_penalty": 0.5, "repetition_penalty": 1.2}, {"stop": ["e", "\n"]}, {"min_p": 0.05},
        {"logit_bias": {"5": 4, "300": -10}}, {"bad_words": ["self", "return"]}, {"echo": True}, {"ignore_eos": True},
        {"top_k": 20, "top_p": 0.9}, {"min_tokens": 3}, {"allowed_token_ids": list(range(1000))},
    ]
    for number in range(MIXED):
        body = {"prompt": chance.choice(GOLDEN)["prompt"], "max_tokens": chance.randint(3, 24), "seed": number, "temperature": chance.choice([0, 0.8, 1.2]), "return_token_ids": True}
        for more in chance.sample(kinds, chance.randint(1, 3)):
            body |= more
        yield body


class Others:
    """Those who ask for little beside an attack, and what they saw."""

    def __init__(self, server, cases, asked):
        self.server, self.cases, self.asked = server, cases, asked
        self.done, self.lock = threading.Event(), threading.Lock()
        self.idle, self.highest, self.answers, self.healths, self.failures = server.memory(), 0, [], [], []

    def again(self, ask):
        try:
            while not self.done.is_set():
                ask()
        except BaseException as error:
            self.failures.append(error)
            self.done.set()

    def watch(self):
        self.highest = max(self.highest, self.server.memory() - self.idle)
        self.done.wait(0.02)

    def health(self):
        started = time.monotonic()
        assert self.server.get("/health")[0] == 200
        self.healths.append(time.monotonic() - started)
        self.done.wait(0.02)

    def answer(self):
        with self.lock:
            path, body, expected = self.cases[self.asked.value % len(self.cases)]
            self.asked.value += 1
        started = time.monotonic()
        status, _, answer = self.server.post(path, body)
        self.answers.append(time.monotonic() - started)
        assert status == 200 and told(answer) == expected, (body, answer, expected)

    def __enter__(self):
        self.threads = [threading.Thread(target=self.again, args=(ask,)) for ask in (self.watch, self.health, self.answer, self.answer)]
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self.done.set()
        for thread in self.threads:
            thread.join()
        assert not self.failures, self.failures[0]


def told(answer):
    return answer["choices"] if "choices" in answer else answer["results"]


def alone(server, asked):
    """What each request gets where nobody else asks."""
    cases = []
    for path, body in asked:
        status, _, answer = server.post(path, body)
        assert status == 200, (body, answer)
        cases.append((path, body, told(answer)))
    return cases


def besiege(server, attacks, cases, arguments, whole=True):
    """Each attack, and after it nothing that is left. All `cases` are asked beside each of them where the time is given,
    and else, if `whole`, beside all of them at once."""
    before = descriptors(server)
    for attack in attacks:
        if arguments.attacks and attack.__name__ not in arguments.attacks:
            continue
        most = len(cases) if whole and (arguments.seconds or attack is all_at_once) else 20
        started = time.monotonic()
        attacker = Attacker(server, attack, arguments.seconds, most if attack is all_at_once else 0)
        attacker.process.start()
        with Others(server, cases, attacker.asked) as others:
            until("the attack has ended", lambda: others.failures or not attacker.process.is_alive(), 900)
            until("each of the others was answered", lambda: others.failures or attacker.asked.value >= most, 600)
        attacker.process.join()
        rounds = attacker.rounds.value
        assert rounds and attacker.process.exitcode == 0, f"{attack.__name__} failed"
        gone = lambda: server.sum("vllm:num_requests_running") + server.sum("vllm:num_requests_waiting") == 0
        until(f"nothing is left of {attack.__name__}", gone)
        until("descriptors are given back", lambda: descriptors(server) <= before + 8)
        assert others.highest < MOST, f"{attack.__name__}: {others.highest} kB above the idle server"
        stays = server.memory() - others.idle
        assert stays < STAYS, f"{attack.__name__}: {stays} kB stay"
        answer, health = max(others.answers), max(others.healths)
        print(
            f"{attack.__name__}: {rounds} times in {time.monotonic() - started:.1f}s, {len(others.answers)} others within {answer:.2f}s, "
            f"/health within {health:.3f}s, {others.highest} kB above idle, of which {stays} stay", flush=True,
        )
        # All at once come from as many clients as there are attacks.
        if arguments.seconds and attack is not all_at_once:
            assert answer < ANSWER and health < HEALTH, f"{attack.__name__}: others waited {answer:.2f}s, /health {health:.3f}s"


def free_port():
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


def writer(arguments):
    port = free_port()
    # The pool of pages is touched bit by bit, and stays.
    flags = ("--max-num-seqs", "64", "--max-seq-len", "2048", "--memory-budget", "300MiB", "--admin", "--kv-events-endpoint", f"tcp://127.0.0.1:{port}")
    with chat_template(APPENDING) as template, Server(*flags, *template) as server:
        server.events = port
        cases = alone(server, [("/v1/completions", body) for body in mixed()])
        besiege(server, OF_A_WRITER, cases, arguments)
        assert server.sum("vllm:kv_cache_usage_perc") == 0


def long_reader(arguments):
    """With a context that has room for a long text, as far as it is measured before it is read."""
    with tempfile.TemporaryDirectory() as folder, chat_template(APPENDING) as template:
        folder = shutil.copytree(MODEL, os.path.join(folder, "long"))
        config = os.path.join(folder, "config.json")
        with open(config) as file:
            changed = json.load(file) | {"max_position_embeddings": 32768}
        with open(config, "w") as file:
            json.dump(changed, file)
        with Server("--max-seq-len", "32768", *template, source=("--model", folder)) as server:
            cases = alone(server, [("/v1/completions", {"prompt": "x", "max_tokens": 4, "temperature": 0})])
            besiege(server, [spaces_without_an_end], cases, arguments, whole=False)


def reader(arguments):
    with tempfile.TemporaryDirectory() as folder:
        folder = with_words(folder, "cross_encoder")
        with Server(source=("--model", folder), settings=SETTINGS) as server:
            cases = alone(server, [("/v1/rerank", {"query": "one", "documents": ["two", "three"]})])
            besiege(server, [rerank_bombs], cases, arguments, whole=False)


def logger(arguments):
    """Where lines can't be written, and where nobody reads them."""
    out, into = os.pipe()
    with open("/dev/full", "w") as full:
        for stderr in (full, into):
            with Server("--log-level", "debug", logs=True, stderr=stderr) as server:
                cases = alone(server, [("/v1/completions", {"prompt": "x", "max_tokens": 4, "temperature": 0})])
                besiege(server, [log_lines], cases, arguments, whole=False)
                assert server.sum("piecewise_log_lines_lost_total") > 0
    os.close(into)
    os.close(out)


def alone_too(arguments):
    """Where they are named or the time is given: CI has them anyway."""
    for test in ALONE:
        if test.__name__ in arguments.attacks or (arguments.seconds and not arguments.attacks):
            started = time.monotonic()
            test()
            print(f"{test.__name__}: {time.monotonic() - started:.1f}s", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=0, help="how long each attack lasts; above 0 the clock is looked at")
    parser.add_argument("attacks", nargs="*")
    arguments = parser.parse_args()
    all = [
        (writer, OF_A_WRITER), (long_reader, [spaces_without_an_end]), (reader, [rerank_bombs]), (logger, [log_lines]), (alone_too, ALONE),
    ]
    for besieged, attacks in all:
        if not arguments.attacks or {attack.__name__ for attack in attacks} & set(arguments.attacks):
            besieged(arguments)


if __name__ == "__main__":
    main()
