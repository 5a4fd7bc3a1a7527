"""openai-python through vLLM's front end, before two workers:

PIECEWISE_VLLM_RS="$(.ci/install-vllm-rs)" PYTHONPATH="$(.ci/install-openai)" python3 tests/worker/front_end.py
"""

import concurrent.futures
import json
import pathlib
import re
import subprocess
import tempfile
import time
import urllib.error
import urllib.request

import openai

from fleet import (
    EXPECTED, IDS, MODEL, PROMPTS, VLLM_RS, Fleet, Server, needs_vllm_rs, thinker, total, until)

GREEDY = dict(model="tiny", max_tokens=64, temperature=0)


def client_of(fleet):
    return openai.OpenAI(base_url=fleet.front.url + "/v1", api_key="none", max_retries=0, timeout=120)


def whole(client, prompt, **more):
    answer = client.completions.create(**{**GREEDY, **more}, prompt=prompt, extra_body=IDS)
    return answer.choices[0].token_ids, answer.choices[0].text, answer.usage


def streamed(client, prompt):
    stream = client.completions.create(
        **GREEDY, prompt=prompt, stream=True, extra_body=IDS, stream_options={"include_usage": True})
    ids, text, usage = [], "", None
    for event in stream:
        usage = event.usage or usage
        for choice in event.choices:
            text += choice.text
            ids += choice.token_ids or []
    return ids, text, usage


def golden_tokens(fleet, client, own):
    """Greedy tokens, streamed and not, alone and 64 at once; texts and usage as of our own server."""
    for prompt in PROMPTS:
        ids, text, usage = whole(client, prompt)
        assert ids == EXPECTED[prompt], prompt
        theirs = own.post("/v1/completions", {**GREEDY, "model": "tiny-qwen3", "prompt": prompt, **IDS})[2]
        assert text == theirs["choices"][0]["text"], prompt
        for count in ["prompt_tokens", "completion_tokens", "total_tokens"]:
            assert getattr(usage, count) == theirs["usage"][count], (prompt, count)
        assert streamed(client, prompt) == (ids, text, usage), prompt

    def one(number):
        prompt = PROMPTS[number % 5]
        ids, _, usage = (streamed if number % 2 else whole)(client, prompt)
        return ids == EXPECTED[prompt] and usage.completion_tokens == 64

    before = [total(worker.metrics(), "vllm:request_success_total") for worker in fleet.workers]
    with concurrent.futures.ThreadPoolExecutor(64) as pool:
        assert all(pool.map(one, range(64)))
    shares = [total(worker.metrics(), "vllm:request_success_total") - old
              for worker, old in zip(fleet.workers, before)]
    assert sum(shares) == 64 and max(shares) <= 0.6 * 64, shares
    return shares


def stops(client):
    ids, text, _ = whole(client, PROMPTS[0])
    stop = text[10:14]
    answer = client.completions.create(**GREEDY, prompt=PROMPTS[0], stop=[stop])
    assert answer.choices[0].text == text.split(stop)[0]
    assert answer.choices[0].finish_reason == "stop"
    at = ids[20]
    answer = client.completions.create(
        **GREEDY, prompt=PROMPTS[0], extra_body={**IDS, "stop_token_ids": [at]})
    choice = answer.choices[0]
    assert choice.token_ids == ids[:ids.index(at) + 1]
    assert (choice.finish_reason, choice.stop_reason) == ("stop", at)
    sampled = [
        client.completions.create(
            model="tiny", prompt=PROMPTS[1], max_tokens=24, temperature=0.9, top_p=0.95, seed=seed,
            presence_penalty=0.5, frequency_penalty=0.3, logit_bias={"5": 2.0},
            extra_body={**IDS, "top_k": 40, "min_p": 0.01, "repetition_penalty": 1.1},
        ).choices[0].token_ids
        for seed in [1, 1, 2]
    ]
    assert sampled[0] == sampled[1] != sampled[2], sampled


def logprobs(client, own):
    """Those of our own server."""
    for prompt in PROMPTS[:3]:
        ask = {"max_tokens": 12, "temperature": 0, "logprobs": 5, "prompt": prompt}
        mine = client.completions.create(model="tiny", **ask).choices[0].logprobs
        theirs = own.post("/v1/completions", {"model": "tiny-qwen3", **ask})[2]["choices"][0]["logprobs"]
        assert mine.tokens == theirs["tokens"], prompt
        assert all(abs(a - b) < 1e-5 for a, b in zip(mine.token_logprobs, theirs["token_logprobs"]))
        for a, b in zip(mine.top_logprobs, theirs["top_logprobs"], strict=True):
            assert a.keys() == b.keys(), (a, b)
            assert all(abs(a[key] - b[key]) < 1e-5 for key in a)


def prompt_logprobs(fleet, client, own):
    """Those of a prompt, as our own server echoes them."""
    for prompt in PROMPTS[:3]:
        ask = {"max_tokens": 3, "temperature": 0, "logprobs": 4, "echo": True, "prompt": prompt}
        mine = client.completions.create(model="tiny", **ask).choices[0].logprobs
        theirs = own.post("/v1/completions", {"model": "tiny-qwen3", **ask})[2]["choices"][0]["logprobs"]
        assert mine.tokens == theirs["tokens"], (mine.tokens, theirs["tokens"])
        assert mine.token_logprobs[0] is theirs["token_logprobs"][0] is None
        assert all(abs(a - b) < 1e-5 for a, b in zip(mine.token_logprobs[1:], theirs["token_logprobs"][1:]))
        status, answer = fleet.front.post(prompt=prompt, max_tokens=1, prompt_logprobs=2)
        found = answer["choices"][0]["prompt_logprobs"]
        assert status == 200 and found[0] is None and len(found) == answer["usage"]["prompt_tokens"], answer


def structures(client):
    schema = {
        "type": "object", "additionalProperties": False, "required": ["ok", "n"],
        "properties": {"ok": {"type": "boolean"}, "n": {"enum": [1, 2, 3]}},
    }
    for seed in range(4):
        kind = {"type": "json_schema", "json_schema": {"name": "s", "schema": schema}}
        answer = client.completions.create(
            model="tiny", prompt=PROMPTS[0], max_tokens=900, seed=seed,
            extra_body={"response_format": kind})
        assert answer.choices[0].finish_reason == "stop", answer
        found = json.loads(answer.choices[0].text)
        assert isinstance(found["ok"], bool) and found["n"] in [1, 2, 3], found
        for asked, expected in [
            ({"choice": ["left", "right"]}, r"left|right"), ({"regex": "[a-c]{3}-[0-9]"}, r"[a-c]{3}-\d"),
        ]:
            answer = client.completions.create(
                model="tiny", prompt=PROMPTS[0], max_tokens=40, seed=seed,
                extra_body={"structured_outputs": asked})
            assert re.fullmatch(expected, answer.choices[0].text), answer.choices[0].text


def restraints(fleet, client, own):
    """Ids that may come, or not, or not yet: tokens of our own server, which keeps to the same."""
    prompt = PROMPTS[0]
    free, _, _ = whole(client, prompt, max_tokens=24)
    for asked in [
        {"allowed_token_ids": sorted(free)[:6]},
        {"stop_token_ids": [free[2]], "min_tokens": 12}, {"stop_token_ids": [free[2]]},
        {"allowed_token_ids": sorted(set(free)), "stop_token_ids": [free[1]], "min_tokens": 4},
    ]:
        ask = {"prompt": prompt, "max_tokens": 24, "temperature": 0, **IDS, **asked}
        status, answer = fleet.front.post(**ask)
        assert status == 200, (asked, answer)
        theirs = own.post("/v1/completions", {**ask, "model": "tiny-qwen3"})[2]["choices"][0]
        choice = answer["choices"][0]
        assert choice["token_ids"] == theirs["token_ids"], (asked, choice, theirs)
        ids = choice["token_ids"]
        assert set(ids) <= set(asked.get("allowed_token_ids", ids)), (asked, ids)
        assert len(ids) >= asked.get("min_tokens", 0), (asked, ids)


TEMPLATE = "{% for message in messages %}{{ message.content }}{% endfor %}"


def chat(client):
    """Conversations: what the front end makes of the template comes to a worker, streamed and not."""
    messages = [{"role": "user", "content": PROMPTS[0]}]
    ask = dict(model="tiny", messages=messages, max_tokens=24, temperature=0, logprobs=True, top_logprobs=2)
    answer = client.chat.completions.create(**ask)
    choice = answer.choices[0]
    assert answer.usage.completion_tokens == len(choice.logprobs.content) > 0, answer
    assert all(len(entry.top_logprobs) == 2 for entry in choice.logprobs.content)
    text, usage = "", None
    for event in client.chat.completions.create(**ask, stream=True, stream_options={"include_usage": True}):
        usage = event.usage or usage
        text += "".join(choice.delta.content or "" for choice in event.choices)
    assert (text, usage) == (choice.message.content, answer.usage), (text, answer)
    assert text == whole(client, PROMPTS[0], max_tokens=24)[1], text
    assert "config" in text
    answer = client.chat.completions.create(**ask, extra_body={"bad_words": ["config"]})
    assert "config" not in answer.choices[0].message.content, answer
    kind = {"type": "json_schema", "json_schema": {"name": "s", "schema": {
        "type": "object", "additionalProperties": False, "required": ["n"], "properties": {"n": {"enum": [1, 2]}}}}}
    answer = client.chat.completions.create(**{**ask, "max_tokens": 200, "response_format": kind})
    assert json.loads(answer.choices[0].message.content)["n"] in [1, 2], answer


def thoughts():
    """A structure begins where thoughts end, where the front end and the worker have a parser of them."""
    kind = {"type": "json_schema", "json_schema": {"name": "s", "schema": {
        "type": "object", "additionalProperties": False, "required": ["n"], "properties": {"n": {"enum": [1, 2]}}}}}
    opening = TEMPLATE + "<think>\n"
    ask = dict(model="tiny", messages=[{"role": "user", "content": PROMPTS[1]}], max_tokens=300, temperature=1.2,
               logit_bias={"2047": 9}, response_format=kind)
    flags = ("--reasoning-parser", "qwen3", "--structured-outputs-config", '{"backend": "guidance"}')
    with thinker() as folder:
        for template, opens in [(TEMPLATE + "<think>\n", True), (TEMPLATE + "<think>\n\n</think>\n\n", False)]:
            with Fleet("--chat-template", template, *flags, workers=1, worker_flags=flags[:2], model=folder) as fleet:
                thought = 0
                for seed in range(4):
                    answer = client_of(fleet).chat.completions.create(**ask, seed=seed)
                    [choice] = answer.choices
                    assert choice.finish_reason == "stop" and json.loads(choice.message.content)["n"] in [1, 2], answer
                    thought += len(getattr(choice.message, "reasoning", None) or "")
                assert (thought > 50) == opens, (thought, answer)


def refusals(fleet):
    """What can't be done is refused by its name, for that request."""
    refused = {
        "structured_outputs.grammar": {"structured_outputs": {"grammar": 'root ::= "a"'}},
        "logprobs": {"logprobs": 21},
    }
    for name, asked in refused.items():
        status, answer = fleet.front.post(max_tokens=4, **asked)
        assert status == 400 and name in answer["error"]["message"], (name, status, answer)
    assert fleet.front.post(max_tokens=4)[0] == 200


def grammars():
    """A grammar, where the front end checks it as the dialect that is read here."""
    with tempfile.TemporaryDirectory() as folder, Fleet(
            "--structured-outputs-config", '{"backend": "guidance"}', workers=1,
            worker_flags=["--trace", f"{folder}/steps.pftrace"]) as fleet:
        for seed in range(3):
            grammar = 'start: ("ab" | "cd")+ "." NUMBER\nNUMBER: /[0-9]{2}/'
            status, answer = fleet.front.post(
                max_tokens=60, temperature=1, seed=seed, structured_outputs={"grammar": grammar})
            text = answer["choices"][0]["text"] if status == 200 else answer
            whole = answer["choices"][0]["finish_reason"] == "stop" if status == 200 else False
            assert status == 200 and re.match(r"(ab|cd)+(\.\d{2}$|\.\d?$|$)" if not whole else
                                              r"(ab|cd)+\.\d{2}$", text), text
        worker = fleet.workers[0]
        until("it is idle", worker.is_idle)
        steps = total(worker.metrics(), "piecewise_steps_total")
        assert worker.end() == 0, worker.text()
        trace = pathlib.Path(folder, "steps.pftrace").read_bytes()
        assert trace.count(b"submit ") == steps > 0, "each step is in the worker's trace once"


def preemptions():
    """Requests that are sent back to wait: the front end counts them as the worker does, and their tokens stay."""
    # Room for two sequences of the longest, where eight run.
    small = ["--max-num-seqs", "8", "--max-seq-len", "512", "--memory-budget", "18MiB"]
    with Fleet(workers=1, worker_flags=small) as fleet, concurrent.futures.ThreadPoolExecutor(8) as pool:
        asked = [(prompt, pool.submit(fleet.front.post, prompt=prompt, max_tokens=300, **IDS))
                 for prompt in PROMPTS + PROMPTS[:3]]
        for prompt, answer in asked:
            status, answer = answer.result()
            assert status == 200 and answer["choices"][0]["token_ids"][:64] == EXPECTED[prompt], answer
        [worker] = fleet.workers
        own = total(worker.metrics(), "vllm:num_preemptions_total")
        assert own > 0, "the pool is too large"
        # Each request was queued and scheduled once, and has waited for what it has waited.
        counts = ["vllm:num_preemptions_total", "vllm:request_queue_time_seconds_count"]
        found = lambda: [total(fleet.front.metrics(), name) for name in counts]
        until("the front end counts them", lambda: found() == [own, 8], 60, lambda: (own, found()))
        theirs = fleet.front.metrics()
        waited = total(theirs, "vllm:request_queue_time_seconds_sum")
        assert 0 < waited < total(theirs, "vllm:e2e_request_latency_seconds_sum"), waited
        return own


def loads():
    """While requests run and wait, the front end's gauges say what the workers' own do."""
    names = ["vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc"]

    last = []

    def seen():
        # Steps go on meanwhile: what the front end says is of a time between.
        before, theirs, after = [worker.metrics() for worker in fleet.workers], fleet.front.metrics(), \
            [worker.metrics() for worker in fleet.workers]
        last[:] = [[(total(before[rank], name), total(theirs, name, f'engine="{rank}"'), total(after[rank], name))
                    for name in names] for rank in range(len(fleet.workers))]
        return last

    with Fleet(worker_flags=["--max-num-seqs", "4"]) as fleet, concurrent.futures.ThreadPoolExecutor(32) as pool:
        asked = [pool.submit(fleet.front.post, max_tokens=200, timeout=300, **IDS) for _ in range(32)]

        def agree():
            return all(0 < min(own, later) <= theirs <= max(own, later) for of in seen() for own, theirs, later in of)
        until("both are busy, requests wait, and the front end says so", agree, 60, lambda: last)
        assert all(future.result()[0] == 200 for future in asked)


def aborts(fleet):
    """A client that leaves frees its pages, though its request has hundreds of steps to go, and is counted."""
    def sum_of(*what):
        return sum(total(worker.metrics(), *what) for worker in fleet.workers)

    def aborted():
        return sum_of("vllm:request_success_total", 'finished_reason="abort"')

    before, clients = aborted(), []
    for _ in range(24):
        command = ["curl", "-sN", fleet.front.url + "/v1/completions", "-H", "content-type: application/json",
                   "-d", json.dumps({"model": "tiny", "prompt": PROMPTS[0], "max_tokens": 900, "stream": True, **IDS})]
        clients.append(subprocess.Popen(command, stdout=subprocess.PIPE))
    until("all have come", lambda: sum_of("vllm:num_requests_running") + sum_of("vllm:num_requests_waiting") == 24, 20)
    for client in clients:
        client.kill()
        client.wait()
    until("pages are free", lambda: all(worker.is_idle() for worker in fleet.workers), 20)
    assert aborted() - before == 24, "they ran to their end"


def metrics(fleet):
    """The front end's figures are the workers' own, once it has heard from the last step of each."""
    names = ["vllm:prompt_tokens_total", "vllm:prefix_cache_queries_total", "vllm:prefix_cache_hits_total"]
    idle = ["vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc"]

    def agree():
        theirs = fleet.front.metrics()
        for rank, worker in enumerate(fleet.workers):
            own = worker.metrics()
            label = f'engine="{rank}"'
            for name in [*names, "vllm:generation_tokens_total"]:
                if total(own, name) != total(theirs, name, label):
                    return False
            for name in idle:
                if not total(theirs, name, label) == total(own, name) == 0:
                    return False
            for reason in ["length", "stop"]:
                reason = f'finished_reason="{reason}"'
                mine = total(theirs, "vllm:request_success_total", label, reason)
                if mine != total(own, "vllm:request_success_total", reason):
                    return False
        return True

    def figures():
        return [(name, rank, total(worker.metrics(), name), total(fleet.front.metrics(), name, f'engine="{rank}"'))
                for rank, worker in enumerate(fleet.workers)
                for name in [*names, *idle, "vllm:generation_tokens_total", "vllm:request_success_total"]]

    until("the front end says what its workers say", agree, 60, figures)


def bench(fleet):
    """vLLM's own load generator runs through without an error."""
    with tempfile.TemporaryDirectory() as folder:
        command = [
            VLLM_RS, "bench", "serve", "--backend", "openai", "--base-url", fleet.front.url, "--model", "tiny",
            "--tokenizer", str(MODEL), "--dataset-name", "random", "--random-input-len", "48",
            "--random-output-len", "16", "--num-prompts", "100", "--max-concurrency", "32", "--ignore-eos",
            "--prompt-token-ids",
            "--save-result", "--result-dir", folder, "--result-filename", "result.json",
        ]
        run = subprocess.run(command, capture_output=True, text=True, timeout=120)
        assert run.returncode == 0, run.stdout[-2000:] + run.stderr[-2000:]
        result = json.loads(open(f"{folder}/result.json").read())
    assert result["completed"] == 100 and result.get("failed", 0) == 0, result
    assert result["total_output_tokens"] == 1600, result["total_output_tokens"]


def calls(fleet):
    """Utility calls are answered: what can't be done with an error, in the worker's words."""
    assert fleet.front.post("/reset_prefix_cache")[0] == 200
    for path, why in [("/sleep", "--admin"), ("/wake_up", "--admin"),
                      ("/reset_prefix_cache?reset_running_requests=true", "nobody runs with")]:
        status, answer = fleet.front.post(path)
        assert status == 500 and why in answer["error"]["message"], (path, status, answer)


def order(url, headers={}):
    """Status and text of an operator's order."""
    try:
        with urllib.request.urlopen(urllib.request.Request(url, data=b"", headers=headers), timeout=60) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def sleeps():
    """vLLM's front end puts its workers to sleep and wakes them; a worker's graphs are its own."""
    with Fleet(worker_flags=["--admin"]) as fleet:
        prompt = PROMPTS[0]
        golden = lambda: whole(client_of(fleet), prompt)[0] == EXPECTED[prompt]
        assert golden()
        for query in ["", "?level=2&mode=keep"]:
            assert order(fleet.front.url + "/sleep" + query)[0] == 200
            assert json.loads(fleet.front.get("/is_sleeping")[1]) == {"is_sleeping": True}
            assert not any(worker.is_ready() for worker in fleet.workers)
            status, answer = fleet.front.post(max_tokens=4)
            assert status >= 500, (status, answer)
            assert order(fleet.front.url + "/wake_up")[0] == 200
            assert json.loads(fleet.front.get("/is_sleeping")[1]) == {"is_sleeping": False}
            assert all(worker.is_ready() for worker in fleet.workers) and golden()
        # The front end knows level 0, and no more than 2.
        for level, expected in [(0, 500), (7, 400)]:
            status, answer = order(f"{fleet.front.url}/sleep?level={level}")
            assert status == expected and "level" in answer, (status, answer)
        own = f"http://127.0.0.1:{fleet.workers[0].port}"
        status, answer = order(own + "/graphs?mode=none")
        assert status == 200 and json.loads(answer)["mode"] == "none", answer
        assert order(own + "/graphs?mode=quick")[0] == 400
        # A page of another site, by the browser of who sits at this machine.
        for headers in [{"Origin": "https://evil.example"}, {"Sec-Fetch-Site": "cross-site"}, {"Host": "evil.example"}]:
            assert order(own + "/graphs?mode=none", headers)[0] == 403, headers
        status, answer = order(own + "/graphs?mode=full_decode_only&recapture=true")
        graphs = json.loads(answer)
        assert status == 200 and graphs["ready"] == len(graphs["graphs"]) == graphs["recaptures"] > 0, answer
        status, answer = order(own + "/graphs?recapture=now")
        assert status == 400 and "recapture" in answer, (status, answer)
        assert golden() and golden()


def main():
    needs_vllm_rs()
    started = time.monotonic()
    with Server() as own, Fleet("--chat-template", TEMPLATE) as fleet:
        client = client_of(fleet)
        shares = golden_tokens(fleet, client, own)
        logprobs(client, own)
        prompt_logprobs(fleet, client, own)
        structures(client)
        restraints(fleet, client, own)
        chat(client)
        refusals(fleet)
        # Before anybody leaves early: the engine is a step ahead of who has heard enough.
        metrics(fleet)
        stops(client)
        aborts(fleet)
        bench(fleet)
        until("both are idle", lambda: all(worker.is_idle() for worker in fleet.workers))
        calls(fleet)
        for worker in fleet.workers:
            assert worker.end() == 0, worker.text()
    loads()
    grammars()
    thoughts()
    sleeps()
    sent_back = preemptions()
    print(f"openai-python through vLLM's front end: as it should be, 64 at once spread {shares}, {sent_back:.0f} preemptions, "
          f"{time.monotonic() - started:.0f} s")


if __name__ == "__main__":
    main()
