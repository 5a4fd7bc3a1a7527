"""What operators rely on, against `piecewise serve`: queues, priorities, deadlines, metrics, logs,
and the end; names of tests choose among them:
PYTHONPATH="$(.ci/install-openai)" python3 tests/server/operation.py [ready ..]"""

import concurrent.futures
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import tempfile
import threading
import time
import urllib.error

from harness import BINARY, MODEL, Server, chat_template, promtool, timed, until
from openai_client import EXPECTED, GREEDY, IDS, PROMPTS, client_of


def full_queue():
    with Server("--max-queue", "1", "--max-num-seqs", "1") as server:
        client = client_of(server)
        long = dict(model="tiny-qwen3", prompt="x", max_tokens=1500, extra_body={"ignore_eos": True})
        streams = [client.completions.create(**long, stream=True) for _ in range(2)]
        loads = ("vllm:num_requests_running", "vllm:num_requests_waiting")
        until("one runs, one waits", lambda: [server.sum(name) for name in loads] == [1, 1], 30)
        status, headers, answer = server.post("/v1/completions", {"prompt": "x"})
        assert (status, answer["error"]["code"]) == (429, "queue_full"), answer
        assert int(headers["Retry-After"]) >= 1
        status, _, answer = server.post("/v1/completions", {"prompt": ["x"] * 3})
        assert (status, answer["error"]["param"]) == (400, "prompt"), "more than ever fits"
        # Who goes makes room.
        for stream in streams:
            stream.close()
        deadline = time.time() + 30
        while server.post("/v1/completions", {"prompt": "x", "max_tokens": 1})[0] == 429:
            assert time.time() < deadline, "a client that has gone keeps its place"
        # One more can come before the second that has gone is noticed.
        while server.sum("vllm:num_requests_running") + server.sum("vllm:num_requests_waiting") > 0:
            assert time.time() < deadline
        assert server.sum("vllm:kv_cache_usage_perc") == 0
        # Who goes before an answer that comes whole ends its request as well.
        before = server.sum("vllm:generation_tokens_total")
        leaving = http.client.HTTPConnection(*server.address)
        body = {"model": "tiny-qwen3", "prompt": "x", "max_tokens": 1500, "ignore_eos": True}
        leaving.request("POST", "/v1/completions", json.dumps(body))
        until("it runs", lambda: server.sum(loads[0]) == 1, 30)
        leaving.close()
        until("it ends", lambda: server.sum(loads[0]) == 0, 30)
        assert server.sum("vllm:generation_tokens_total") - before < 1500, "it ran to its end"


def deadline():
    """A request's own bound and the server's: what there is by then is the answer, streamed or not, and
    nobody else is held by it."""
    body = {"prompt": "x", "max_tokens": 2000, "temperature": 0, **IDS}
    with Server() as server:
        status, _, answer = server.post("/v1/completions", {**body, "deadline_seconds": 0.2})
        choice = answer["choices"][0]
        assert (status, choice["finish_reason"]) == (200, "abort"), answer
        assert 0 < answer["usage"]["completion_tokens"] == len(choice["token_ids"]) < 2000
        ends, ids = [], []
        for event in client_of(server).completions.create(
            **{**GREEDY, "max_tokens": 2000}, prompt="x", stream=True, stream_options={"include_usage": True},
            extra_body={**IDS, "deadline_seconds": 0.2},
        ):
            usage = event.usage
            for choice in event.choices:
                ids += choice.token_ids
                ends += [choice.finish_reason] if choice.finish_reason else []
        assert ends == ["abort"] and 0 < usage.completion_tokens == len(ids) < 2000, (ends, usage)
        # A deadline of one ends no other, and one that is far ends nothing.
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            asked = [{**body, "max_tokens": 2000, "deadline_seconds": 0.1}, {"prompt": PROMPTS[0], "max_tokens": 64, "temperature": 0, "deadline_seconds": 100, **IDS}]
            cut, whole = pool.map(lambda asked: server.post("/v1/completions", asked)[2]["choices"][0], asked)
        assert (cut["finish_reason"], whole["finish_reason"]) == ("abort", "length")
        assert whole["token_ids"] == EXPECTED[PROMPTS[0]]
        label = '{engine="0",finished_reason="abort",model_name="tiny-qwen3"}'
        until("all are counted", lambda: server.metrics()["vllm:request_success_total" + label] == 3)
        until("pages are free", lambda: server.sum("vllm:kv_cache_usage_perc") == 0)
    with Server("--request-timeout", "1") as server:
        # The shorter of the two holds.
        for own in [{}, {"deadline_seconds": 1000}]:
            status, _, answer = server.post("/v1/completions", {**body, "n": 32, **own})
            assert [choice["finish_reason"] for choice in answer["choices"]] == ["abort"] * 32
        # Who waits in the queue has a deadline too.
    with Server("--max-num-seqs", "1") as server:
        stream = client_of(server).completions.create(**{**GREEDY, "max_tokens": 2000}, prompt="x", stream=True, extra_body=IDS)
        next(iter(stream))
        status, _, answer = server.post("/v1/completions", {**body, "deadline_seconds": 0})
        assert (answer["choices"][0]["finish_reason"], answer["usage"]["completion_tokens"]) == ("abort", 0)
        stream.close()


def priorities():
    """The lower goes first, and of equal ones who came first; a prompt that is long or fills the server
    is passed by who matters more."""
    with Server("--max-num-seqs", "1", "--scheduling-policy", "priority") as server:
        client = client_of(server)
        waiting = lambda: server.sum("vllm:num_requests_waiting")
        holds = client.completions.create(**{**GREEDY, "max_tokens": 2000}, prompt="x", stream=True, extra_body=IDS)
        next(iter(holds))
        ends, threads = [], []

        def ask(priority):
            body = {"prompt": PROMPTS[0], "max_tokens": 8, "temperature": 0, "priority": priority, **IDS}
            status, _, answer = server.post("/v1/completions", body)
            assert (status, answer["choices"][0]["token_ids"]) == (200, EXPECTED[PROMPTS[0]][:8]), answer
            ends.append(priority)

        for came, priority in enumerate([3, 0.0, -1, 0, 3.0, -2147483648]):
            threads.append(threading.Thread(target=ask, args=(priority,)))
            threads[-1].start()
            until("it waits", lambda: waiting() == came + 1)
        holds.close()
        for thread in threads:
            thread.join()
        assert ends == sorted(ends), ends
        assert server.sum("vllm:num_requests_waiting") == 0


def fairness():
    """Many who ask at once, one with an endless answer each: every stream goes on, and a small request
    beside them is not last."""
    with Server("--max-num-seqs", "8") as server:
        client = client_of(server)
        asked = dict(model="tiny-qwen3", max_tokens=1500, temperature=0, stream=True, extra_body=IDS)
        streams = [client.completions.create(**asked, prompt=[7 + i] * 40) for i in range(4)]
        for stream in streams:
            next(iter(stream))
        # A prompt of ten steps holds nobody who decodes.
        before = server.sum("vllm:generation_tokens_total")
        assert server.post("/v1/completions", {"prompt": list(range(100, 700)), "max_tokens": 1, **IDS})[0] == 200
        grown = server.sum("vllm:generation_tokens_total") - before
        assert grown > 4 * 7, grown
        status, _, answer = server.post("/v1/completions", {"prompt": PROMPTS[0], "max_tokens": 8, "temperature": 0, **IDS})
        assert answer["choices"][0]["token_ids"] == EXPECTED[PROMPTS[0]][:8]
        until("the others go on", lambda: server.sum("vllm:num_requests_running") == 4, 10)
        for stream in streams:
            stream.close()


def folder_with(folder, **generation):
    """The tiny model with a generation_config.json of its own."""
    for file in ["config.json", "model.safetensors", "tokenizer.json"]:
        os.symlink(MODEL / file, f"{folder}/{file}")
    with open(f"{folder}/generation_config.json", "w") as file:
        json.dump(generation, file)
    return str(folder)


def generation_config():
    """What a request leaves out the model's generation_config.json says, unless none is to; what a
    request says itself goes before."""
    chat = {"messages": [{"role": "user", "content": PROMPTS[0]}], "seed": 5, **IDS}
    plain = {"prompt": PROMPTS[0], "seed": 5, **IDS}
    own = {"temperature": 1.6, "top_p": 0.85, "top_k": 12, "min_p": 0.1, "repetition_penalty": 1.3}

    def ids(server, body, **more):
        path = "/v1/chat/completions" if "messages" in body else "/v1/completions"
        status, _, answer = server.post(path, {**body, **more})
        assert status == 200, answer
        return answer["choices"][0]["token_ids"]

    with tempfile.TemporaryDirectory() as folder, chat_template() as flags:
        with Server(*flags) as server:
            # Each field changes what comes, or the test would see no mistake.
            expected = ids(server, plain, max_tokens=24, **own)
            for name in own:
                without = {key: value for key, value in own.items() if key != name}
                assert ids(server, plain, max_tokens=24, **without) != expected, name
            assert ids(server, chat, max_tokens=24, **own) == expected
            usual = ids(server, plain, max_tokens=24)
        end = expected[9]
        folder = folder_with(folder, do_sample=True, max_new_tokens=24, eos_token_id=[0, end], **own)
        with Server(*flags, source=("--model", folder)) as server:
            assert ids(server, plain) == ids(server, chat) == expected
            assert ids(server, plain, max_tokens=7) == expected[:7]
            assert ids(server, plain, temperature=0, repetition_penalty=1) == EXPECTED[PROMPTS[0]][:24]
            off = {"temperature": 1, "top_p": 1, "top_k": 0, "min_p": 0, "repetition_penalty": 1}
            assert ids(server, plain, **off) == usual
            # Its ids end answers.
            assert ids(server, plain, ignore_eos=False) == expected[: expected.index(end) + 1]
        with Server(*flags, "--generation-config", "none", source=("--model", folder)) as server:
            assert ids(server, plain, max_tokens=24) == ids(server, chat, max_tokens=24) == usual
            assert ids(server, plain, max_tokens=24, **own) == expected
    with tempfile.TemporaryDirectory() as folder:
        folder = folder_with(folder, do_sample=False, temperature=0.9, eos_token_id=0)
        with Server(source=("--model", folder)) as server:
            assert ids(server, plain, max_tokens=64) == EXPECTED[PROMPTS[0]]
    for wrong in [{"temperature": "hot"}, {"top_p": 2}]:
        with tempfile.TemporaryDirectory() as folder:
            command = [BINARY, "serve", "--model", folder_with(folder, **wrong), "--port", "0"]
            said = subprocess.run(command, capture_output=True, text=True)
            name = next(iter(wrong))
            assert said.returncode == 1 and "generation_config.json" in said.stderr and f"`{name}`" in said.stderr, said.stderr


def preemptions():
    """Where pages run out some are computed again: the metric says so, and answers are the same."""
    # Room for two sequences of the longest, where eight run.
    with Server("--max-num-seqs", "8", "--max-seq-len", "512", "--memory-budget", "18MiB") as server:
        client = client_of(server)
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            def one(i):
                asked = dict(model="tiny-qwen3", prompt=PROMPTS[i % 5], max_tokens=300, temperature=0, extra_body=IDS)
                return client.completions.create(**asked).choices[0].token_ids[:64] == EXPECTED[PROMPTS[i % 5]]

            assert all(pool.map(one, range(8)))
        assert server.sum("vllm:num_preemptions_total") == server.sum("piecewise_preemptions_total") > 0


def metrics_contract(server, client):
    """The names and values that routers and autoscalers ask for, under a load that is known."""
    before = server.metrics()
    label = '{engine="0",model_name="tiny-qwen3"}'
    for _ in range(4):
        client.completions.create(**{**GREEDY, "max_tokens": 7}, prompt=[5, 6, 7], extra_body=IDS)
    # Two full pages of it are found the second time.
    shared = list(range(100, 140))
    for _ in range(2):
        client.completions.create(**{**GREEDY, "max_tokens": 7}, prompt=shared, extra_body=IDS)
    stop = client.completions.create(**GREEDY, prompt=PROMPTS[0], stop=["\n"])
    stream = client.completions.create(**{**GREEDY, "max_tokens": 1500}, prompt="x", stream=True, extra_body=IDS)
    next(iter(stream))
    deadline = time.time() + 30
    while server.metrics()["vllm:num_requests_running" + label] != 1:
        assert time.time() < deadline
    until("it has pages", lambda: server.metrics()["vllm:kv_cache_usage_perc" + label] > 0)
    stream.close()
    while server.metrics()["vllm:num_requests_running" + label] != 0:
        assert time.time() < deadline
    after = server.metrics()

    def grown(name, labels=label):
        return after[name + labels] - before[name + labels]

    def ended(reason):
        return grown("vllm:request_success_total", f'{{engine="0",finished_reason="{reason}",model_name="tiny-qwen3"}}')

    assert [ended(reason) for reason in ["stop", "length", "abort", "error"]] == [1, 6, 1, 0]
    prompt = stop.usage.prompt_tokens
    assert grown("vllm:prompt_tokens_total") == 4 * 3 + 2 * 40 + prompt
    # The last of the prompts is of an id.
    assert grown("vllm:prefix_cache_queries_total") == 4 * 3 + 2 * 40 + prompt + 1
    assert grown("vllm:prefix_cache_hits_total") == 32 + stop.usage.prompt_tokens_details.cached_tokens
    generated = grown("vllm:generation_tokens_total")
    assert generated >= 6 * 7 + stop.usage.completion_tokens
    assert grown("vllm:time_to_first_token_seconds_count") == 8
    assert grown("vllm:inter_token_latency_seconds_count") == generated - 8
    assert grown("vllm:e2e_request_latency_seconds_count") == 7
    for name in ["vllm:num_requests_waiting", "vllm:num_requests_running", "vllm:kv_cache_usage_perc"]:
        assert after[name + label] == 0, name
    assert "vllm:num_preemptions_total" + label in after
    info = [name for name in after if name.startswith("vllm:cache_config_info{")]
    pages = int(after["piecewise_kv_cache_pages"])
    assert info == [f'vllm:cache_config_info{{block_size="16",engine="0",model_name="tiny-qwen3",num_gpu_blocks="{pages}"}}']
    total = sum(v for k, v in after.items() if k.startswith("piecewise_steps_total"))
    hits, misses = server.sum("piecewise_step_hits_total"), server.sum("piecewise_step_misses_total")
    assert hits + misses == total
    promtool(server)


def loads():
    """The gauges under a load that is known, and what one request adds to each histogram."""
    label = '{engine="0",model_name="tiny-qwen3"}'
    with Server("--max-num-seqs", "1") as server:
        pages = int(server.sum("piecewise_kv_cache_pages"))
        prompt = list(range(100, 150))
        started = server.sum("vllm:generation_tokens_total")
        held = client_of(server).completions.create(model="tiny-qwen3", prompt=prompt, max_tokens=1500, temperature=0, stream=True, extra_body=IDS)
        next(iter(held))
        for came in range(3):
            waits = threading.Thread(target=server.post, args=("/v1/completions", {"prompt": "x", "max_tokens": 1}))
            waits.start()
            until("it waits", lambda: server.metrics()["vllm:num_requests_waiting" + label] == came + 1)
            until("one runs", lambda: server.metrics()["vllm:num_requests_running" + label] == 1)
        # A page has 16 tokens. Shares are told now and then, so one may be older than the tokens beside it.
        def pages_follow():
            least = server.sum("vllm:generation_tokens_total") - started
            share = server.metrics()["vllm:kv_cache_usage_perc" + label]
            most = server.sum("vllm:generation_tokens_total") - started + 4
            taken = share * pages
            assert abs(taken - round(taken)) < 1e-6, "pages are whole"
            return (len(prompt) + least - 1) // 16 <= round(taken) <= (len(prompt) + most + 15) // 16
        for _ in range(5):
            until("pages follow tokens", pages_follow)
        held.close()
        until("all are gone", lambda: all(server.metrics()[f"vllm:num_requests_{name}{label}"] == 0 for name in ["running", "waiting"]))
        until("pages are free", lambda: server.metrics()["vllm:kv_cache_usage_perc" + label] == 0)
        before, began = server.metrics(), time.monotonic()
        assert server.post("/v1/completions", {"prompt": prompt, "max_tokens": 2, **IDS})[0] == 200
        took, after = time.monotonic() - began, server.metrics()
        grown = {name: after[name] - before[name] for name in after if name in before}
        sums = {}
        for name in ["time_to_first_token_seconds", "inter_token_latency_seconds", "e2e_request_latency_seconds"]:
            name = "vllm:" + name
            assert grown[f"{name}_count{label}"] == 1, name
            total = sums[name] = grown[f"{name}_sum{label}"]
            buckets = {key: grown[key] for key in grown if key.startswith(name + "_bucket{")}
            bounds = {key: float(re.search('le="([^"]+)"', key)[1]) for key in buckets}
            assert len(buckets) == 23 and max(bounds.values()) == float("inf")
            # One value is in each bucket from its own on.
            near = lambda bound: abs(bound - total) < 1e-9
            assert all(near(bounds[key]) or buckets[key] == (total <= bounds[key]) for key in buckets), (name, total, buckets)
        first, second, whole = sums.values()
        assert 0 < first and 0 < second and first + second <= whole + 1e-6 and whole <= took, (sums, took)


def traces():
    """A request's lines in the log: when its answer began and when it ended, in its trace."""
    trace, span = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
    with Server(logs=True) as server:
        headers = {"traceparent": f"00-{trace}-{span}-01"}
        body = {"prompt": [5, 6, 7], "max_tokens": 9, "temperature": 0, **IDS}
        status, told, _ = server.post("/v1/completions", body, headers)
        assert status == 200
        id = told["x-request-id"]
        client = client_of(server)
        stream = client.completions.create(**{**GREEDY, "max_tokens": 1500}, prompt="x", stream=True, extra_body=IDS)
        next(iter(stream))
        stream.close()
        assert server.end() == 0
        lines = server.said().splitlines()
        own = [line for line in lines if id in line]
        assert len(own) == 2, lines
        assert all(f'trace="{trace}"' in line and f'parent="{span}"' in line for line in own), own
        ended, began = sorted(own, key=lambda line: "path=" in line)
        assert "status=200" in began and 'path="/v1/completions"' in began, own
        for part in ["length", "prompt_tokens=3", "cached_tokens=0", " tokens=9", "first_token_milliseconds="]:
            assert part in ended, (part, ended)
        left = [line for line in lines if ": left " in line or " left " in line]
        assert len(left) == 1 and 'trace="-"' in left[0], lines


def readiness(server):
    try:
        return server.get("/ready")
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def ready():
    """Not before the weights are there, nor, where graphs are captured at the start, before all of them are;
    those that come later, at rest, keep nobody waiting."""
    every = None
    for capture in ["startup", "lazy", "background"]:
        with Server("--capture", capture, waits=False) as server:
            assert readiness(server) == (503, "the model is being loaded\n"), "nothing is loaded so soon"
            said = until("it is ready", lambda: (answer := readiness(server))[0] == 200 and answer)
            assert said == (200, "ready\n")
            graphs = server.sum("piecewise_graphs")
            every = every or graphs
            assert graphs <= every
            body = {"prompt": PROMPTS[0], "max_tokens": 64, "temperature": 0, **IDS}
            answer = server.post("/v1/completions", body)[2]
            assert answer["choices"][0]["token_ids"] == EXPECTED[PROMPTS[0]]
            until("all are captured", lambda: readiness(server) == said and server.sum("piecewise_graphs") == every)
            server.wait()
    assert every > 3


def clients_gone():
    """Who closes the connection of a stream stops its tokens at once."""
    body = json.dumps({"prompt": "x", "max_tokens": 1500, "stream": True, "temperature": 0, **IDS}).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    with Server("--max-num-seqs", "1") as server:
        late = []
        for _ in range(9):
            before = server.sum("vllm:generation_tokens_total")
            client = socket.create_connection(server.address)
            client.sendall(head + body)
            # The first event has no token.
            seen, rest = -1, b""
            while seen < 40:
                rest += client.recv(1 << 16)
                seen += rest.count(b'"token_ids":[')
                rest = rest[-12:]
            client.close()
            until("nothing is left of it", lambda: server.sum("vllm:num_requests_running") == 0)
            late.append(server.sum("vllm:generation_tokens_total") - before - seen)
        print(f"clients_gone: tokens past those that were read: {late}")
        # Of 1,500 that were asked for: how late the thread that notices has its turn is the machine's.
        assert sorted(late)[4] < 100 and max(late) < 500, late
        assert server.sum("vllm:kv_cache_usage_perc") == 0


def operator():
    """--admin has a server sleep and wake; without it nobody can, and not where everybody may ask."""
    with Server() as server:
        assert server.post("/sleep", {})[0] == 404
    refused = subprocess.run([BINARY, "serve", "--model", str(MODEL), "--host", "0.0.0.0", "--admin"], capture_output=True, text=True)
    assert refused.returncode == 1 and "--api-key-file" in refused.stderr, refused.stderr
    with Server("--admin") as server:
        body = {"prompt": PROMPTS[0], "max_tokens": 64, "temperature": 0, **IDS}
        ids = lambda: server.post("/v1/completions", body)[2]["choices"][0]["token_ids"]
        graphs = json.loads(server.get("/graphs")[1])
        assert ids() == EXPECTED[PROMPTS[0]]
        for level in [1, 2]:
            assert server.post(f"/sleep?level={level}", {})[::2] == (200, {"is_sleeping": True})
            assert readiness(server)[0] == 503 and server.get("/health")[0] == 200
            status, _, answer = server.post("/v1/completions", body)
            assert (status, answer["error"]["code"]) == (503, "asleep"), answer
            assert server.post("/wake_up", {})[::2] == (200, {"is_sleeping": False})
            assert readiness(server)[0] == 200 and ids() == EXPECTED[PROMPTS[0]]
        after = json.loads(server.get("/graphs")[1])
        assert after["captures"] == graphs["captures"] == after["ready"], "nothing was captured again"
        assert after["launches"] > graphs["launches"]
        # What is held while it drains is answered.
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            held = pool.submit(server.post, "/v1/completions", {**body, "max_tokens": 1500})
            until("it runs", lambda: server.sum("vllm:num_requests_running") == 1)
            assert server.post("/sleep", {})[0] == 200
            assert server.end() == 0
            status, _, answer = held.result()
            assert status == 200 and len(answer["choices"][0]["token_ids"]) == 1500, answer


def drain_and_end():
    """SIGTERM lets running requests end and refuses new ones; a second signal ends at once."""
    for second in [None, signal.SIGINT, signal.SIGTERM]:
        server = Server()
        client = client_of(server)
        tokens = 1500 if second else 300
        stream = client.completions.create(
            model="tiny-qwen3", prompt="x", max_tokens=tokens, temperature=0, stream=True,
            extra_body=IDS,
        )
        events = iter(stream)
        next(events)
        server.signal()
        deadline = time.time() + 30
        while server.post("/v1/completions", {"prompt": "x"})[0] != 503:
            assert time.time() < deadline
        assert server.get("/health")[0] == 200, "it is alive while it drains"
        assert readiness(server) == (503, "the server is shutting down\n")
        if second:
            assert server.process.poll() is None, "it did not wait for the answer"
            server.signal(second)
            assert server.process.wait(timeout=20) == 1
            continue
        ids = [id for event in events for choice in event.choices for id in choice.token_ids]
        assert len(ids) == tokens
        assert server.process.wait(timeout=30) == 0


def preset():
    source = ("--preset", "qwen3-0.6b")
    settings = ["--max-num-tokens", "16", "--max-num-seqs", "2", "--max-seq-len", "64", "--capture", "lazy"]
    with Server(source=source, settings=settings) as server:
        body = {"prompt": [1, 2, 3], "max_tokens": 2, "ignore_eos": True, "return_token_ids": True}
        status, _, answer = server.post("/v1/completions", body)
        assert (status, len(answer["choices"][0]["token_ids"])) == (200, 2), answer
        status, _, answer = server.post("/v1/completions", {"prompt": "text"})
        assert (status, answer["error"]["param"]) == (400, "prompt"), answer


def main():
    with Server() as server:
        timed(metrics_contract, server, client_of(server))
    for test in [
        ready, loads, full_queue, clients_gone, deadline, priorities, fairness,
        generation_config, preemptions, traces, operator, drain_and_end, preset,
    ]:
        timed(test)


if __name__ == "__main__":
    main()
