"""openai-python against `piecewise serve`; names of tests choose among them:
PYTHONPATH="$(.ci/install-openai)" python3 tests/server/openai_client.py [logprobs ..]"""

import concurrent.futures
import http.client
import json
import math
import random
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
import urllib.error

import openai

from harness import BINARY, FAST, GOLDEN, MODEL, ROOT, Server, until

EXPECTED = {case["prompt"]: case["greedy_fp32"] for case in GOLDEN}
PROMPTS = list(EXPECTED)
GREEDY = dict(model="tiny-qwen3", max_tokens=64, temperature=0)
IDS = {"ignore_eos": True, "return_token_ids": True}


def client_of(server, key="none"):
    return openai.OpenAI(base_url=server.url + "/v1", api_key=key, max_retries=0, timeout=120)


def text_of(server, ids):
    status, _, answer = server.post("/detokenize", {"tokens": ids})
    assert status == 200, answer
    return answer["prompt"]


def streamed(client, prompt, **more):
    """Text, ids, finish reason and usage of each choice of a stream."""
    stream = client.completions.create(
        **{**GREEDY, **more}, prompt=prompt, stream=True, extra_body=IDS,
        stream_options={"include_usage": True},
    )
    texts, ids, ends, usage = {}, {}, {}, None
    for event in stream:
        if not event.choices:
            usage = event.usage
        for choice in event.choices:
            assert choice.index not in ends, "a piece after the end"
            texts[choice.index] = texts.get(choice.index, "") + choice.text
            ids.setdefault(choice.index, []).extend(choice.token_ids)
            if choice.finish_reason:
                ends[choice.index] = choice.finish_reason
    return texts, ids, ends, usage


def golden_tokens(server, client):
    assert len(PROMPTS) == 5
    for prompt in PROMPTS:
        whole = client.completions.create(**GREEDY, prompt=prompt, extra_body=IDS)
        choice = whole.choices[0]
        assert choice.token_ids == EXPECTED[prompt], prompt
        ids = choice.prompt_token_ids
        assert prompt + choice.text == text_of(server, ids + choice.token_ids)
        assert choice.finish_reason == "length"
        usage = whole.usage
        assert (usage.prompt_tokens, usage.completion_tokens) == (len(ids), 64)
        assert usage.total_tokens == len(ids) + 64
        texts, tokens, ends, usage = streamed(client, prompt)
        assert (texts[0], tokens[0], ends) == (choice.text, EXPECTED[prompt], {0: "length"})
        assert (usage.prompt_tokens, usage.completion_tokens) == (len(ids), 64)
        by_ids = client.completions.create(**GREEDY, prompt=ids, extra_body=IDS)
        assert by_ids.choices[0].token_ids == EXPECTED[prompt]
    together = client.completions.create(**GREEDY, prompt=PROMPTS, extra_body=IDS)
    assert [choice.index for choice in together.choices] == list(range(5))
    assert [choice.token_ids for choice in together.choices] == list(EXPECTED.values())
    assert together.usage.completion_tokens == 5 * 64
    texts, tokens, ends, usage = streamed(client, PROMPTS)
    assert [tokens[i] for i in range(5)] == list(EXPECTED.values())
    assert [texts[i] for i in range(5)] == [choice.text for choice in together.choices]
    assert usage == together.usage
    lists = [choice.prompt_token_ids for choice in together.choices]
    by_lists = client.completions.create(**GREEDY, prompt=lists, extra_body=IDS)
    assert [choice.token_ids for choice in by_lists.choices] == list(EXPECTED.values())

    def one(number):
        prompt = PROMPTS[number % 5]
        if number % 2:
            return streamed(client, prompt)[1][0] == EXPECTED[prompt]
        answer = client.completions.create(**GREEDY, prompt=prompt, extra_body=IDS)
        return answer.choices[0].token_ids == EXPECTED[prompt]

    with concurrent.futures.ThreadPoolExecutor(64) as pool:
        assert all(pool.map(one, range(64)))


def stops_and_echo(server, client):
    prompt = PROMPTS[0]
    text = client.completions.create(**GREEDY, prompt=prompt).choices[0].text
    # Over the borders of tokens, wherever they are.
    for start in range(2, 40, 7):
        stop = text[start:start + 5]
        for stream in [False, True]:
            if stream:
                texts, _, ends, usage = streamed(client, prompt, stop=stop)
                found, reason = texts[0], ends[0]
            else:
                answer = client.completions.create(**GREEDY, prompt=prompt, stop=[stop, "\0"])
                found, reason, usage = answer.choices[0].text, answer.choices[0].finish_reason, answer.usage
            assert (found, reason) == (text.split(stop)[0], "stop"), stop
            assert usage.completion_tokens < 64
    echoed = client.completions.create(**GREEDY, prompt=prompt, echo=True)
    assert echoed.choices[0].text == prompt + text
    several = client.completions.create(**GREEDY, prompt=PROMPTS[:2], n=2)
    assert [choice.index for choice in several.choices] == [0, 1, 2, 3]
    assert several.choices[0].text == several.choices[1].text == text
    assert several.usage.completion_tokens == 4 * 64


def seeds(client):
    def sampled(seed, n=1):
        answer = client.completions.create(
            model="tiny-qwen3", prompt=PROMPTS[1], max_tokens=24, temperature=0.9, top_p=0.95,
            seed=seed, n=n, extra_body={"ignore_eos": True, "top_k": 40},
        )
        return [choice.text for choice in answer.choices]

    alone = [sampled(seed)[0] for seed in range(6)]
    assert len(set(alone)) > 1, "seeds make no difference"
    with concurrent.futures.ThreadPoolExecutor(24) as pool:
        assert list(pool.map(lambda i: sampled(i % 6)[0], range(24))) == alone * 4
    assert sampled(0, n=3) == alone[:3], "the answers to one prompt have seeds in a row"


def logprobs(server, client):
    """Those of the answer, and of the prompt, against the logits that `piecewise logits` writes."""
    asked = {**GREEDY, "max_tokens": 8, "prompt": PROMPTS[2], "logprobs": 3, "extra_body": IDS}
    choice = client.completions.create(**asked).choices[0]
    prompt = choice.prompt_token_ids
    ids = prompt + choice.token_ids
    with tempfile.TemporaryDirectory() as folder:
        out = f"{folder}/logits.safetensors"
        command = [BINARY, "logits", "--model", str(MODEL), *FAST, "--ids", ",".join(map(str, ids)), "--out", out]
        subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
        data = open(out, "rb").read()
    head = int.from_bytes(data[:8], "little")
    rows, vocab = json.loads(data[8:8 + head])["logits"]["shape"]
    assert rows == len(ids)
    expected = [None]
    for i, token in enumerate(ids[1:]):
        start = 8 + head + 4 * vocab * i
        row = struct.unpack(f"<{vocab}f", data[start:start + 4 * vocab])
        total = math.log(sum(math.exp(x) for x in row))
        expected.append((row[token] - total, sorted((x - total for x in row), reverse=True)[:3]))

    def check(found, expected):
        assert len(found.token_logprobs) == len(expected)
        for own, top, wanted in zip(found.token_logprobs, found.top_logprobs, expected):
            if wanted is None:
                assert own is None and top is None
                continue
            assert abs(own - wanted[0]) < 1e-4
            likeliest = sorted(top.values(), reverse=True)
            assert all(abs(a - b) < 1e-4 for a, b in zip(likeliest, wanted[1])), (likeliest, wanted)

    check(choice.logprobs, expected[len(prompt):])
    assert "".join(choice.logprobs.tokens) == choice.text
    # The prompt too: as a whole, alone, and piece by piece.
    echoed = client.completions.create(**asked, echo=True).choices[0]
    check(echoed.logprobs, expected)
    for token, offset in zip(echoed.logprobs.tokens, echoed.logprobs.text_offset):
        assert echoed.text[offset:].startswith(token), (token, offset)
    alone = client.completions.create(**{**asked, "max_tokens": 0}, echo=True)
    check(alone.choices[0].logprobs, expected[:len(prompt)])
    assert (alone.choices[0].text, alone.usage.completion_tokens) == (PROMPTS[2], 0)
    pieces = [event.choices[0] for event in client.completions.create(**asked, echo=True, stream=True) if event.choices]
    assert "".join(piece.text for piece in pieces) == echoed.text
    for name in ["tokens", "text_offset", "token_logprobs", "top_logprobs"]:
        joined = [x for piece in pieces if piece.logprobs for x in getattr(piece.logprobs, name)]
        assert joined == getattr(echoed.logprobs, name), name
    body = {"prompt": prompt, "max_tokens": 1, "temperature": 0, "prompt_logprobs": 2, "n": 2}
    for choice in server.post("/v1/completions", body)[2]["choices"]:
        first, *others = choice["prompt_logprobs"]
        assert first is None and len(others) == len(prompt) - 1
        for id, told, wanted in zip(prompt[1:], others, expected[1:]):
            assert abs(told[str(id)]["logprob"] - wanted[0]) < 1e-4
            ranks = {entry["rank"]: entry["logprob"] for entry in told.values()}
            assert abs(ranks[1] - wanted[1][0]) < 1e-4 and abs(ranks[2] - wanted[1][1]) < 1e-4
    assert server.post("/v1/completions", {**body, "stream": True})[2]["error"]["param"] == "prompt_logprobs"


def chat_logprobs():
    """Those of a reply are those of the completion that it is."""
    with tempfile.NamedTemporaryFile("w", suffix=".jinja") as file:
        file.write(TEMPLATE)
        file.flush()
        with Server("--chat-template", file.name) as server:
            client = client_of(server)
            text = client.completions.create(**{**GREEDY, "max_tokens": 8}, prompt=PROMPTS[2], logprobs=3).choices[0]
            asked = dict(
                model="tiny-qwen3", messages=[{"role": "user", "content": PROMPTS[2]}], temperature=0,
                max_completion_tokens=8, logprobs=True, top_logprobs=3,
            )
            whole = client.chat.completions.create(**asked).choices[0]
            entries = whole.logprobs.content
            assert [entry.token for entry in entries] == text.logprobs.tokens
            assert b"".join(bytes(entry.bytes) for entry in entries).decode() == whole.message.content == text.text
            for entry, own, top in zip(entries, text.logprobs.token_logprobs, text.logprobs.top_logprobs, strict=True):
                assert abs(entry.logprob - own) < 1e-4
                assert len(entry.top_logprobs) == 3
                for other in entry.top_logprobs:
                    assert abs(top[other.token] - other.logprob) < 1e-4
            events = client.chat.completions.create(**asked, stream=True)
            pieces = [choice.logprobs.content for event in events for choice in event.choices if choice.logprobs]
            assert [entry.token for piece in pieces for entry in piece] == text.logprobs.tokens
            plain = client.chat.completions.create(**{**asked, "logprobs": False, "top_logprobs": None})
            assert plain.choices[0].logprobs is None


def tools_and_thoughts():
    """What a model writes becomes thoughts and calls; the tiny one is made to write it."""
    function = {"name": "add", "parameters": {
        "type": "object", "properties": {"a": {"type": "integer", "minimum": 0, "maximum": 9}}, "required": ["a"],
        "additionalProperties": False,
    }}
    tools = [{"type": "function", "function": function}]
    call = '<tool_call>\n{"name": "add", "arguments": {"a": 7}}\n</tool_call>'
    with tempfile.NamedTemporaryFile("w", suffix=".jinja") as file:
        file.write(TEMPLATE)
        file.flush()
        with Server("--chat-template", file.name, "--tool-call-parser", "hermes", "--reasoning-parser", "qwen3") as server:
            client = client_of(server)

            def ask(said=None, **more):
                body = dict(model="tiny-qwen3", messages=[{"role": "user", "content": PROMPTS[0]}], max_completion_tokens=200, temperature=0)
                if said:
                    more["extra_body"] = {"structured_outputs": {"choice": [said]}}
                whole = client.chat.completions.create(**body, **more).choices[0]
                # The same piece by piece.
                text, thoughts, calls, ends = "", "", {}, []
                for event in client.chat.completions.create(**body, **more, stream=True):
                    for choice in event.choices:
                        text += choice.delta.content or ""
                        thoughts += getattr(choice.delta, "reasoning_content", None) or ""
                        for piece in choice.delta.tool_calls or []:
                            one = calls.setdefault(piece.index, ["", "", ""])
                            one[0] += piece.id or ""
                            one[1] += piece.function.name or ""
                            one[2] += piece.function.arguments or ""
                        ends += [choice.finish_reason] if choice.finish_reason else []
                message = whole.message
                assert ends == [whole.finish_reason]
                assert text == (message.content or "")
                assert thoughts == (getattr(message, "reasoning_content", None) or "")
                made = [(made.function.name, json.loads(made.function.arguments)) for made in message.tool_calls or []]
                assert [(name, json.loads(arguments)) for _, name, arguments in calls.values()] == made
                assert all(id for id, _, _ in calls.values())
                return whole.finish_reason, text, thoughts, made

            assert ask(call, tools=tools) == ("tool_calls", "", "", [("add", {"a": 7})])
            assert ask("yes", tools=tools) == ("stop", "yes", "", [])
            thinks = ask("<think>\nhm\n</think>\n\nyes")
            assert (thinks[0], thinks[1].strip(), thinks[2].strip()) == ("stop", "yes", "hm"), thinks
            reason, text, _, made = ask(tools=tools, tool_choice="required", parallel_tool_calls=False)
            assert reason == "tool_calls" and [name for name, _ in made] == ["add"] and 0 <= made[0][1]["a"] <= 9, (text, made)
            named = {"type": "function", "function": {"name": "add"}}
            reason, text, _, made = ask(tools=tools, tool_choice=named)
            assert [name for name, _ in made] == ["add"] and 0 <= made[0][1]["a"] <= 9, (text, made)


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


def schema(chance, depth):
    """A random schema, and what says whether a value keeps to it."""
    kind = chance.randrange(6 if depth == 0 else 8)
    if kind == 0:
        longest = chance.randint(1, 6)
        return {"type": "string", "maxLength": longest}, lambda v: isinstance(v, str) and len(v) <= longest
    if kind == 1:
        low = chance.randint(-50, 50)
        return {"type": "integer", "minimum": low, "maximum": low + 20}, lambda v: type(v) is int and low <= v <= low + 20
    if kind == 2:
        return {"type": "boolean"}, lambda v: type(v) is bool
    if kind == 3:
        values = [chance.choice(["red", "a b", 7, None, True, "\u00e9\"", -1]) for _ in range(chance.randint(1, 3))]
        return {"enum": values}, lambda v: any(type(v) is type(w) and v == w for w in values)
    if kind == 4:
        return {"type": "null"}, lambda v: v is None
    if kind == 5:
        (a, holds_a), (b, holds_b) = schema(chance, 0), schema(chance, 0)
        return {"anyOf": [a, b]}, lambda v: holds_a(v) or holds_b(v)
    if kind == 6:
        (item, holds), most = schema(chance, depth - 1), chance.randint(1, 3)
        return {"type": "array", "items": item, "maxItems": most}, lambda v: isinstance(v, list) and len(v) <= most and all(map(holds, v))
    fields = {name: schema(chance, depth - 1) for name in chance.sample(["a", "name", "x y", "z"], chance.randint(1, 3))}
    required = [name for name in fields if chance.random() < 0.6]
    built = {"type": "object", "properties": {name: s for name, (s, _) in fields.items()}, "required": required, "additionalProperties": False}
    return built, lambda v: isinstance(v, dict) and set(required) <= set(v) <= set(fields) and all(fields[n][1](v[n]) for n in v)


def schemas(client):
    """1,000 random schemas and seeds, 64 at a time: every answer parses and keeps to its schema."""

    def one(number):
        chance = random.Random(number)
        built, holds = schema(chance, 2)
        structure = {"type": "json_schema", "json_schema": {"name": "s", "schema": built}}
        answer = client.completions.create(
            model="tiny-qwen3", prompt=PROMPTS[number % 5], max_tokens=400, seed=number,
            temperature=chance.choice([0, 0.8, 1.3]), extra_body={"response_format": structure},
        )
        choice = answer.choices[0]
        assert choice.finish_reason == "stop", (built, choice)
        assert holds(json.loads(choice.text)), (built, choice.text)
        return answer.usage.completion_tokens

    with concurrent.futures.ThreadPoolExecutor(64) as pool:
        print(f"schemas: {sum(pool.map(one, range(1000)))} tokens", flush=True)


def conversation():
    """Ten turns: each finds all but what is new of its prompt, and says what it would say without."""
    ids = {"extra_body": {"ignore_eos": True, "return_token_ids": True}}

    def turns(*flags):
        with tempfile.NamedTemporaryFile("w", suffix=".jinja") as file:
            file.write(TEMPLATE)
            file.flush()
            with Server("--chat-template", file.name, *flags) as server:
                client = client_of(server)
                messages = [{"role": "system", "content": "\n".join(PROMPTS) * 8}]
                said, found, asked = [], 0, 0
                for turn in range(10):
                    messages.append({"role": "user", "content": f"\n{PROMPTS[turn % 5]}"})
                    reply = client.chat.completions.create(model="tiny-qwen3", messages=messages, max_tokens=48, temperature=0, **ids)
                    messages.append({"role": "assistant", "content": reply.choices[0].message.content})
                    said.append(reply.choices[0].token_ids)
                    if turn > 0:
                        found += reply.usage.prompt_tokens_details.cached_tokens
                        asked += reply.usage.prompt_tokens
                return said, found, asked

    said, found, asked = turns()
    assert found >= 0.95 * asked, (found, asked)
    again, none, _ = turns("--no-prefix-cache")
    assert (again, none) == (said, 0)
    print(f"conversation: {found} of {asked} ids of prompts found", flush=True)


def controls(server):
    """Biases, masks and structures reach the sampler."""
    body = {"prompt": PROMPTS[0], "max_tokens": 8, "temperature": 0, **IDS}
    wanted = 100

    def ids(**more):
        status, _, answer = server.post("/v1/completions", {**body, **more})
        assert status == 200, answer
        return answer["choices"][0]

    plain = ids()["token_ids"]
    assert ids(logit_bias={str(wanted): 100})["token_ids"] == [wanted] * 8
    assert ids(logit_bias={str(plain[0]): -100})["token_ids"][0] != plain[0]
    assert len(set(ids(frequency_penalty=2, logit_bias={str(wanted): 5}, max_tokens=16)["token_ids"])) > 1
    schema = {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"], "additionalProperties": False}
    for structure in [
        {"response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": schema}}},
        {"structured_outputs": {"json": schema}},
    ]:
        choice = ids(max_tokens=64, **structure)
        assert isinstance(json.loads(choice["text"])["a"], bool), choice
    assert ids(max_tokens=64, structured_outputs={"regex": "[0-9]{3}-[a-c]"})["text"][3] == "-"
    assert ids(structured_outputs={"choice": ["yes", "no"]})["text"] in ("yes", "no")
    # Some ids alone, one of them forbidden, and an end that may not come yet.
    allowed = sorted({plain[0], wanted, wanted + 1})
    assert set(ids(allowed_token_ids=allowed, max_tokens=16)["token_ids"]) <= set(allowed)
    word = server.post("/detokenize", {"tokens": plain[:2]})[2]["prompt"]
    assert ids(bad_words=[word])["token_ids"][:2] != plain[:2]
    assert word.strip() not in ids(bad_words=[word.strip()], max_tokens=64)["text"]
    early = {"stop_token_ids": [plain[3]], "max_tokens": 32}
    assert len(ids(**early)["token_ids"]) <= 4
    late = ids(**early, min_tokens=12)["token_ids"]
    assert len(late) > 12 and plain[3] not in late[:12], late
    # A structure that is complete ends before.
    assert ids(structured_outputs={"choice": ["yes"]}, min_tokens=8)["text"] == "yes"
    for field, value in [("allowed_token_ids", []), ("allowed_token_ids", [4096]), ("bad_words", [1]), ("min_tokens", 9)]:
        status, _, answer = server.post("/v1/completions", {**body, field: value})
        assert (status, answer["error"]["param"]) == (400, field), answer


def refusals(server, client):
    def refused(param, code=None, **body):
        status, _, answer = server.post("/v1/completions", {"prompt": "x", **body})
        assert (status, answer["error"]["param"]) == (400, param), (body, answer)
        assert code is None or answer["error"]["code"] == code, answer

    refused("temperature", temperature=-1)
    refused("temperature", temperature="hot")
    refused("max_tokens", max_tokens=0)
    refused("max_tokens", max_tokens=1.5)
    refused("n", n=1000)
    refused("prompt", prompt=[])
    refused("prompt", prompt=[1, "x"])
    refused("prompt", prompt=[2048])
    refused("prompt", "context_length_exceeded", prompt=[1] * 5000)
    refused("suffix", "unsupported_parameter", suffix="end")
    refused("best_of", "unsupported_parameter", best_of=3)
    refused("colour", "unknown_parameter", colour="red")
    refused("stream_options", stream_options={"include_usage": True})
    refused("logit_bias", logit_bias={"one": 1})
    refused("stop", stop=[""])
    assert server.post("/v1/completions", b"{")[0] == 400
    assert server.post("/v1/completions", b"[]")[0] == 400
    assert server.post("/v1/completions", {"prompt": "x", "model": "other"})[0] == 404
    assert server.post("/nowhere", {})[0] == 404
    assert server.post("/v1/models", {})[0] == 405
    try:
        client.completions.create(model="tiny-qwen3", prompt="x", temperature=-1)
        raise AssertionError("not refused")
    except openai.BadRequestError as error:
        assert error.param == "temperature"


def other_endpoints(server, client):
    models = client.models.list().data
    assert [model.id for model in models] == ["tiny-qwen3"]
    assert client.models.retrieve("tiny-qwen3").max_model_len == 2048
    status, _, answer = server.post("/tokenize", {"prompt": PROMPTS[0]})
    assert (status, answer["tokens"]) == (200, GOLDEN[0]["ids"])
    assert answer["count"] == len(GOLDEN[0]["ids"])
    assert server.get("/health")[0] == server.get("/ready")[0] == server.get("/docs")[0] == 200
    api = json.loads(server.get("/openapi.json")[1])
    assert "/v1/completions" in api["paths"]


def readme(server):
    """The README's requests, as they stand there but for the port."""
    blocks = (ROOT / "README.md").read_text().split("```")
    curl = next(block for block in blocks if block.startswith("\ncurl"))
    python = next(block for block in blocks if block.startswith("python\nfrom openai"))
    here = lambda text: text.replace("127.0.0.1:8000", "%s:%d" % server.address)
    said = subprocess.run(["bash", "-c", here(curl)], capture_output=True, text=True, check=True).stdout
    text = json.loads(said)["choices"][0]["text"]
    assert text.startswith(", config):"), text
    program = here(python.removeprefix("python"))
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert said == text + "\n", said


def keys():
    with tempfile.NamedTemporaryFile("w") as file:
        file.write("secret-one\nsecret-two\n")
        file.flush()
        with Server("--api-key-file", file.name, "--served-model-name", "a", "--served-model-name", "b") as server:
            body = {"prompt": "x", "max_tokens": 1, "model": "b"}
            for key, expected in [("secret-one", 200), ("secret-two", 200), ("secret-on", 401), ("", 401)]:
                status, headers, answer = server.post("/v1/completions", body, {"Authorization": f"Bearer {key}"})
                assert status == expected, (key, answer)
            assert headers["WWW-Authenticate"] == "Bearer"
            assert answer["error"]["code"] == "invalid_api_key"
            assert client_of(server, "secret-two").models.list().data[0].id == "a"
            assert server.get("/health")[0] == 200
            # Nothing listens but this address.
            port = f":{server.address[1]:04X}"
            local = [line.split()[1] for line in open("/proc/net/tcp") if line.split()[3] == "0A"]
            assert [a for a in local if a.endswith(port)] == [f"0100007F{port}"], local


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


TEMPLATE = (
    "{%- for message in messages -%}{{ message.content }}{%- endfor -%}"
    "{%- if tools -%}{{ tools[0].function.name }}{%- endif -%}"
    "{%- if suffix is defined -%}{{ suffix }}{%- endif -%}"
)


def chat():
    """A template that adds nothing makes messages what completions get."""
    with tempfile.NamedTemporaryFile("w", suffix=".jinja") as file:
        file.write(TEMPLATE)
        file.flush()
        with Server("--chat-template", file.name) as server:
            client = client_of(server)
            for prompt in PROMPTS[:2]:
                half = len(prompt) // 2
                parts = [prompt[:half], prompt[half:]]
                messages = [{"role": "system", "content": parts[0]}, {"role": "user", "content": parts[1]}]
                asked = dict(model="tiny-qwen3", messages=messages, max_completion_tokens=64, temperature=0, extra_body=IDS)
                whole = client.chat.completions.create(**asked)
                choice = whole.choices[0]
                assert choice.token_ids == EXPECTED[prompt]
                assert (choice.message.role, choice.finish_reason) == ("assistant", "length")
                assert (whole.usage.prompt_tokens, whole.usage.completion_tokens) == (len(whole.prompt_token_ids), 64)
                text, ids, ends, usage = "", [], [], None
                for event in client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True}):
                    usage = event.usage or usage
                    for choice in event.choices:
                        text += choice.delta.content or ""
                        ids += getattr(choice, "token_ids", None) or []
                        ends += [choice.finish_reason] if choice.finish_reason else []
                assert (text, ids, ends) == (whole.choices[0].message.content, EXPECTED[prompt], ["length"])
                assert usage.total_tokens == whole.usage.total_tokens
            tool = {"type": "function", "function": {"name": prompt[:half], "parameters": {"type": "object"}}}
            body = {"messages": [{"role": "user", "content": ""}], "max_tokens": 1, "temperature": 0, **IDS}
            # Tools and variables reach the template.
            with_tool = {**body, "tools": [tool], "chat_template_kwargs": {"suffix": prompt[half:]}}
            status, _, answer = server.post("/v1/chat/completions", with_tool)
            assert (status, answer["choices"][0]["token_ids"]) == (200, EXPECTED[prompt][:1]), answer
            for field, value in [("messages", "x"), ("messages", [1]), ("tools", [{"type": "other"}]), ("top_logprobs", 2), ("functions", [1]), ("colour", 1)]:
                status, _, answer = server.post("/v1/chat/completions", {**body, field: value})
                assert status == 400 and answer["error"]["param"].startswith(field), (field, answer)
    with Server() as server:
        status, _, answer = server.post("/v1/chat/completions", body)
        assert (status, answer["error"]["param"]) == (400, "messages"), "there is no template"


def deadline():
    with Server() as server:
        body = {"prompt": "x", "max_tokens": 2000, "ignore_eos": True, "deadline_seconds": 0.2}
        status, _, answer = server.post("/v1/completions", body)
        assert (status, answer["choices"][0]["finish_reason"]) == (200, "abort"), answer
        assert 0 < answer["usage"]["completion_tokens"] < 2000


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
        try:
            server.get("/ready")
            raise AssertionError("it is ready while it drains")
        except urllib.error.HTTPError as error:
            assert error.code == 503
        if second:
            assert server.process.poll() is None, "it did not wait for the answer"
            server.signal(second)
            assert server.process.wait(timeout=20) == 1
            continue
        ids = [id for event in events for choice in event.choices for id in choice.token_ids]
        assert len(ids) == tokens
        assert server.process.wait(timeout=30) == 0


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
    assert server.metrics()["vllm:kv_cache_usage_perc" + label] > 0
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
    tool = shutil.which("promtool")
    assert tool, "promtool is needed: .ci/install-promtool"
    said = subprocess.run([tool, "check", "metrics"], input=server.get("/metrics")[1], text=True, capture_output=True)
    complaints = (said.stdout + said.stderr).splitlines()
    others = [line for line in complaints if "should not contain ':'" not in line]
    assert not others, others


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
    chosen = sys.argv[1:]

    def timed(test, *arguments):
        if chosen and test.__name__ not in chosen:
            return
        started = time.time()
        test(*arguments)
        print(f"{test.__name__}: {time.time() - started:.1f}s", flush=True)

    with Server() as server:
        client = client_of(server)
        timed(golden_tokens, server, client)
        timed(stops_and_echo, server, client)
        timed(seeds, client)
        timed(schemas, client)
        timed(logprobs, server, client)
        timed(controls, server)
        timed(refusals, server, client)
        timed(other_endpoints, server, client)
        timed(readme, server)
        timed(metrics_contract, server, client)
    for test in [conversation, chat, chat_logprobs, tools_and_thoughts, preemptions, traces, keys, full_queue, deadline, drain_and_end, preset]:
        timed(test)


if __name__ == "__main__":
    main()
