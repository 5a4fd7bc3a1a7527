"""openai-python against `piecewise serve`; names of tests choose among them:
PYTHONPATH="$(.ci/install-openai)" python3 tests/server/openai_client.py [logprobs ..]"""

import concurrent.futures
import json
import math
import re
import struct
import subprocess
import sys
import tempfile

import openai

from harness import BINARY, FAST, GOLDEN, MODEL, ROOT, Server, chat_template, timed

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
                texts, ids, ends, usage = streamed(client, prompt, stop=stop)
                found, ids, reason = texts[0], ids[0], ends[0]
            else:
                answer = client.completions.create(**GREEDY, prompt=prompt, stop=[stop, "\0"], extra_body=IDS)
                choice = answer.choices[0]
                found, ids, reason, usage = choice.text, choice.token_ids, choice.finish_reason, answer.usage
            assert (found, reason) == (text.split(stop)[0], "stop"), stop
            # The ids of the stop are counted, and none behind it.
            assert ids == EXPECTED[prompt][:usage.completion_tokens], stop
            assert stop in text_of(server, ids) and stop not in text_of(server, ids[:-1]), stop
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

    def beside(number):
        """Others that ask for something else."""
        controls = [{"temperature": 0}, {"temperature": 1.5, "seed": number}, {"presence_penalty": 1.5}, {"logit_bias": {"100": 5}}]
        client.completions.create(model="tiny-qwen3", prompt=PROMPTS[number % 5], max_tokens=20, **controls[number % 4])

    with concurrent.futures.ThreadPoolExecutor(36) as pool:
        others = [pool.submit(beside, number) for number in range(24)]
        assert list(pool.map(lambda i: sampled(i % 6)[0], range(24))) == alone * 4
        for other in others:
            other.result()
    assert sampled(0, n=3) == alone[:3], "the answers to one prompt have seeds in a row"


def by_logits(ids):
    """Of each id the log-probability and the three largest beside it, of the logits that `piecewise logits`
    writes; nothing of the first."""
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
    return expected


def logprobs(server, client):
    """Those of the answer, and of the prompt."""

    def check(found, expected):
        assert len(found.token_logprobs) == len(expected)
        for own, top, wanted in zip(found.token_logprobs, found.top_logprobs, expected):
            if wanted is None:
                assert own is None and top is None
                continue
            assert abs(own - wanted[0]) < 1e-4
            likeliest = sorted(top.values(), reverse=True)
            assert all(abs(a - b) < 1e-4 for a, b in zip(likeliest, wanted[1])), (likeliest, wanted)

    for text in PROMPTS:
        asked = {**GREEDY, "max_tokens": 32, "prompt": text, "logprobs": 3, "extra_body": IDS}
        choice = client.completions.create(**asked).choices[0]
        assert choice.token_ids == EXPECTED[text][:32]
        prompt = choice.prompt_token_ids
        expected = by_logits(prompt + choice.token_ids)
        check(choice.logprobs, expected[len(prompt):])
        assert "".join(choice.logprobs.tokens) == choice.text
    # The prompt too: as a whole, alone, and piece by piece.
    echoed = client.completions.create(**asked, echo=True).choices[0]
    check(echoed.logprobs, expected)
    for token, offset in zip(echoed.logprobs.tokens, echoed.logprobs.text_offset):
        assert echoed.text[offset:].startswith(token), (token, offset)
    alone = client.completions.create(**{**asked, "max_tokens": 0}, echo=True)
    check(alone.choices[0].logprobs, expected[:len(prompt)])
    assert (alone.choices[0].text, alone.usage.completion_tokens) == (text, 0)
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
    with chat_template() as template, Server(*template) as server:
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
    with chat_template() as template, Server(*template, "--tool-call-parser", "hermes", "--reasoning-parser", "qwen3") as server:
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


def conversation():
    """Ten turns, the first with them: each finds all but what is new of its prompt, and says what it would say without."""
    ids = {"extra_body": {"ignore_eos": True, "return_token_ids": True}}

    def turns(*flags):
        with chat_template() as template, Server(*template, *flags) as server:
            client = client_of(server)
            messages = [{"role": "system", "content": PROMPTS[0]}]
            said, found, asked = [], 0, 0
            for turn in range(10):
                messages.append({"role": "user", "content": f"\n{PROMPTS[turn % 5]}"})
                reply = client.chat.completions.create(model="tiny-qwen3", messages=messages, max_tokens=160, temperature=0, **ids)
                messages.append({"role": "assistant", "content": reply.choices[0].message.content})
                said.append(reply.choices[0].token_ids)
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
    # The one counts how often an id was there and the other whether: with two ids to choose from, of which
    # one is ahead by more than it can lose at once, it stays and goes.
    two = {"allowed_token_ids": [wanted, wanted + 1], "logit_bias": {str(wanted): 30}, "max_tokens": 64}
    assert set(ids(presence_penalty=2, **two)["token_ids"]) == {wanted}
    assert set(ids(frequency_penalty=2, **two)["token_ids"]) == {wanted, wanted + 1}
    again = ids(max_tokens=64)["token_ids"]
    assert len(set(ids(presence_penalty=2, max_tokens=64)["token_ids"])) > len(set(again)) > len(set(ids(presence_penalty=-2, max_tokens=64)["token_ids"]))
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


def readme():
    """The README's command and the requests to it, as they stand there but for the port."""
    text = (ROOT / "README.md").read_text()
    blocks = text.split("```")
    command = next(block for block in blocks if block.startswith("\ncargo run -- serve"))
    flags = command.split(" -- serve ")[1].split()
    curl = next(block for block in blocks if block.startswith("\ncurl"))
    python = next(block for block in blocks if block.startswith("python\nfrom openai"))
    with Server(source=flags, settings=(), logs=True) as server:
        here = lambda text: text.replace("127.0.0.1:8000", "%s:%d" % server.address)
        said = subprocess.run(["bash", "-c", here(curl)], capture_output=True, text=True, check=True).stdout
        text = json.loads(said)["choices"][0]["text"]
        assert text.startswith(", config):"), text
        program = here(python.removeprefix("python"))
        said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
        assert said == text + "\n", said


def chat():
    """A template that adds nothing makes messages what completions get."""
    with chat_template() as template, Server(*template) as server:
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


def family():
    """A published template, as conversations meet it: prompts are the ids of the text that transformers made."""
    fixture = json.loads((ROOT / "server/tests/fixtures/chat/qwen2_5.json").read_text())
    cases = {case["case"]: case for case in fixture["cases"]}
    with chat_template(fixture["template"]) as template, Server(*template) as server:
        for name in ["user", "system", "turns", "no generation prompt", "tools", "calls and replies"]:
            case = cases[name]
            body = {key: case[key] for key in ("messages", "tools") if case.get(key) is not None}
            body["add_generation_prompt"] = case.get("add_generation_prompt", False)
            status, _, answer = server.post("/v1/chat/completions", {**body, "max_tokens": 1, **IDS})
            assert status == 200, (name, answer)
            text = text_of(server, answer["prompt_token_ids"])
            assert text == case["text"], (name, text)
            asked = {"prompt": case["text"], "add_special_tokens": False}
            assert server.post("/tokenize", asked)[2]["tokens"] == answer["prompt_token_ids"], name


def main():
    with Server() as server:
        client = client_of(server)
        timed(golden_tokens, server, client)
        timed(stops_and_echo, server, client)
        timed(seeds, client)
        timed(logprobs, server, client)
        timed(controls, server)
        timed(refusals, server, client)
        timed(other_endpoints, server, client)
    for test in [readme, conversation, chat, family, chat_logprobs, tools_and_thoughts]:
        timed(test)


if __name__ == "__main__":
    main()
