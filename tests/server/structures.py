"""Answers that keep to a structure, on both endpoints of `piecewise serve`:
PYTHONPATH="$(.ci/install-openai)" python3 tests/server/structures.py [schemas ..]"""

import concurrent.futures
import json
import random
import re

from harness import ROOT, Server, chat_template, thinker, timed
from openai_client import PROMPTS, client_of


def schema(chance, depth):
    """A random schema, and what says whether a value keeps to it."""
    kind = chance.randrange(8 if depth == 0 else 10)
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
        letters, least = chance.choice(["ab", "xyz", "09"]), chance.randint(1, 3)
        pattern = f"^[{letters}]{{{least},{least + 2}}}$"
        return {"type": "string", "pattern": pattern}, lambda v: isinstance(v, str) and re.search(pattern, v) is not None
    if kind == 7:
        value = chance.choice(["x", 3, False])
        return {"$ref": "#/$defs/%s" % json.dumps(value).strip('"')}, lambda v: type(v) is type(value) and v == value
    if kind == 8:
        (item, holds), most = schema(chance, depth - 1), chance.randint(1, 3)
        return {"type": "array", "items": item, "maxItems": most}, lambda v: isinstance(v, list) and len(v) <= most and all(map(holds, v))
    fields = {name: schema(chance, depth - 1) for name in chance.sample(["a", "name", "x y", "z"], chance.randint(1, 3))}
    required = [name for name in fields if chance.random() < 0.6]
    built = {"type": "object", "properties": {name: s for name, (s, _) in fields.items()}, "required": required, "additionalProperties": False}
    return built, lambda v: isinstance(v, dict) and set(required) <= set(v) <= set(fields) and all(fields[n][1](v[n]) for n in v)


def keeping_to(structure):
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": structure}}}


def schemas(client):
    """1,000 random schemas and seeds, 64 at a time and on both endpoints: every answer parses and keeps to
    its schema."""

    def one(number):
        chance = random.Random(number)
        built, holds = schema(chance, 2)
        built = {**built, "$defs": {"x": {"const": "x"}, "3": {"const": 3}, "false": {"const": False}}}
        prompt = PROMPTS[number % 5]
        asked = dict(model="tiny-qwen3", max_tokens=400, seed=number, temperature=chance.choice([0, 0.8, 1.3]), extra_body=keeping_to(built))
        if number % 2:
            answer = client.chat.completions.create(**asked, messages=[{"role": "user", "content": prompt}])
            text = answer.choices[0].message.content
        else:
            answer = client.completions.create(**asked, prompt=prompt)
            text = answer.choices[0].text
        assert answer.choices[0].finish_reason == "stop", (built, answer)
        assert holds(json.loads(text)), (built, text)
        return answer.usage.completion_tokens

    with concurrent.futures.ThreadPoolExecutor(64) as pool:
        print(f"schemas: {sum(pool.map(one, range(1000)))} tokens", flush=True)


ADDRESS = {
    "type": "object", "properties": {"city": {"enum": ["Bern", "Oslo"]}, "number": {"type": "integer", "minimum": 1, "maximum": 99}},
    "required": ["city", "number"], "additionalProperties": False,
}


def is_address(text):
    value = json.loads(text)
    return set(value) == {"city", "number"} and value["city"] in ("Bern", "Oslo") and 1 <= value["number"] <= 99


def is_object(text):
    return isinstance(json.loads(text), dict)


def matches(pattern):
    return lambda text: re.fullmatch(pattern, text) is not None


GRAMMAR = 'start: sum\nsum: NUMBER ("+" NUMBER){1,3}\nNUMBER: /[0-9]{1,2}/'
# What each asks for, and what says whether a text keeps to it.
STRUCTURES = [
    (keeping_to(ADDRESS), is_address),
    ({"structured_outputs": {"json": ADDRESS}}, is_address),
    ({"structured_outputs": {"json": json.dumps(ADDRESS)}}, is_address),
    ({"guided_json": ADDRESS}, is_address),
    ({"response_format": {"type": "json_object"}}, is_object),
    ({"structured_outputs": {"json_object": True}}, is_object),
    ({"structured_outputs": {"regex": "[0-9]{3}-(é|[a-c]){2}"}}, matches("[0-9]{3}-(é|[a-c]){2}")),
    ({"guided_regex": "(yes|no), [A-Z]{4}"}, matches("(yes|no), [A-Z]{4}")),
    ({"structured_outputs": {"grammar": GRAMMAR}}, matches(r"[0-9]{1,2}(\+[0-9]{1,2}){1,3}")),
    # What looks like an intersection and is none, and patterns that meet and are few.
    ({"structured_outputs": {"grammar": 'start: A "&&" A // & "\nA: /[a&]{2}/'}}, matches("[a&]{2}&&[a&]{2}")),
    (keeping_to({"$ref": "#/$defs/d", "$defs": {"d": {"type": "string", "allOf": [{"pattern": "^[ab]{3,5}$"}, {"pattern": "ab"}]}}}),
     matches('"(?=.*ab)[ab]{3,5}"')),
    ({"structured_outputs": {"choice": ["yes", "no", "a \"quoted\" one"]}}, ["yes", "no", 'a "quoted" one'].__contains__),
]


def closing(server):
    """Biases for what closes an object; a model with nothing to say would go on."""
    ids = [server.post("/tokenize", {"prompt": text})[2]["tokens"] for text in ['"', "}", '"}']]
    return {str(ids[0]): 12 for ids in ids if len(ids) == 1}


def everywhere(server, client):
    """Each kind of structure on both endpoints, whole and streamed, several answers to each prompt: the
    same texts everywhere, each kept to its structure, and chosen by its own seed."""
    prompt, biases = PROMPTS[1], closing(server)
    for structure, holds in STRUCTURES:
        limits = {"logit_bias": biases} if "json_object" in json.dumps(structure) else {}
        asked = dict(model="tiny-qwen3", max_tokens=200, n=5, seed=3, temperature=1.2, extra_body={**structure, **limits, "return_token_ids": True})
        messages = [{"role": "user", "content": prompt}]
        whole = client.completions.create(**asked, prompt=prompt)
        texts = [choice.text for choice in whole.choices]
        assert [choice.finish_reason for choice in whole.choices] == ["stop"] * 5, (structure, texts)
        assert all(holds(text) for text in texts), (structure, texts)
        assert len(set(texts)) > 1, (structure, texts)
        chat = client.chat.completions.create(**asked, messages=messages)
        assert [choice.message.content for choice in chat.choices] == texts, structure
        ids = sum(len(choice.token_ids) for choice in whole.choices)
        assert chat.usage.completion_tokens == whole.usage.completion_tokens == ids
        assert sum(len(choice.token_ids) for choice in chat.choices) == ids
        streams = {"stream": True, "stream_options": {"include_usage": True}}
        pieces, came = [""] * 5, 0
        for event in client.completions.create(**asked, prompt=prompt, **streams):
            usage = event.usage
            for choice in event.choices:
                pieces[choice.index] += choice.text
                came += len(choice.token_ids)
        assert (pieces, came, usage.completion_tokens) == (texts, ids, ids), structure
        pieces, ends, came = [""] * 5, [None] * 5, 0
        for event in client.chat.completions.create(**asked, messages=messages, **streams):
            usage = event.usage
            for choice in event.choices:
                pieces[choice.index] += choice.delta.content or ""
                ends[choice.index] = choice.finish_reason or ends[choice.index]
                came += len(getattr(choice, "token_ids", None) or [])
        assert (pieces, ends) == (texts, ["stop"] * 5), structure
        assert came == usage.completion_tokens == ids, structure
        # Two prompts at once, each with answers of its own.
        both = client.completions.create(**{**asked, "n": 2}, prompt=[prompt, PROMPTS[2]])
        assert [choice.text for choice in both.choices[:2]] == texts[:2]
        assert all(holds(choice.text) for choice in both.choices), structure


def company(server, client):
    """Who keeps to a structure changes nothing for who does not, and no step falls back for it."""
    alone = client.completions.create(model="tiny-qwen3", prompt=PROMPTS[0], max_tokens=64, temperature=0)
    before = server.sum("piecewise_step_misses_total")
    # A model with nothing to say does not close objects of any form.
    ending = [(structure, holds) for structure, holds in STRUCTURES if holds is not is_object]

    def one(number):
        if number % 2:
            answer = client.completions.create(model="tiny-qwen3", prompt=PROMPTS[0], max_tokens=64, temperature=0)
            return answer.choices[0].text == alone.choices[0].text
        structure, holds = ending[number // 2 % len(ending)]
        answer = client.completions.create(model="tiny-qwen3", prompt=PROMPTS[1], max_tokens=100, seed=number, extra_body=structure)
        return holds(answer.choices[0].text)

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        assert all(pool.map(one, range(32)))
    assert server.sum("piecewise_step_misses_total") == before


def thoughts():
    """What begins within thoughts, or begins them itself, keeps to its structure behind them, and calls
    what it must: whole and streamed, as many ids as usage says."""
    r1 = json.loads((ROOT / "server/tests/fixtures/chat/deepseek_r1_distill.json").read_text())["template"]
    plain = "{%- for message in messages -%}{{ message.content }}{%- endfor -%}"
    parameters = {"type": "object", "properties": {"a": {"type": "integer", "minimum": 0, "maximum": 9}}, "required": ["a"], "additionalProperties": False}
    tools = [{"type": "function", "function": {"name": name, "parameters": parameters}} for name in ["add", "take"]]
    messages = [{"role": "user", "content": PROMPTS[1]}]

    def ask(client, structure, biases, tools=None, **more):
        """Of each answer why it ended, its content, thoughts and calls."""
        extra = {**structure, "return_token_ids": True}
        asked = {**dict(model="thinker", messages=messages, n=5, seed=3, temperature=1.2, max_tokens=300, logit_bias=biases, extra_body=extra), **more}
        asked |= {"tools": tools} if tools else {}
        whole = client.chat.completions.create(**asked)
        pieces = [["", "", {}, None] for _ in range(asked["n"])]
        ids = 0
        for event in client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True}):
            usage = event.usage
            for choice in event.choices:
                piece, delta = pieces[choice.index], choice.delta
                piece[0] += delta.content or ""
                piece[1] += getattr(delta, "reasoning_content", None) or ""
                for call in delta.tool_calls or []:
                    one = piece[2].setdefault(call.index, ["", ""])
                    one[0] += call.function.name or ""
                    one[1] += call.function.arguments or ""
                piece[3] = choice.finish_reason or piece[3]
                ids += len(getattr(choice, "token_ids", None) or [])
        assert usage.completion_tokens == whole.usage.completion_tokens == ids
        assert sum(len(choice.token_ids) for choice in whole.choices) == ids
        answers = []
        for choice, piece in zip(whole.choices, pieces, strict=True):
            message = choice.message
            calls = [(call.function.name, call.function.arguments) for call in message.tool_calls or []]
            thought = getattr(message, "reasoning_content", None) or ""
            answers.append((choice.finish_reason, message.content or "", thought, calls))
            assert answers[-1] == (piece[3], piece[0], piece[1], [tuple(call) for call in piece[2].values()])
        return answers

    def is_call(call):
        value = json.loads(call[1])
        return call[0] in ("add", "take") and set(value) == {"a"} and value["a"] in range(10)

    with thinker() as folder:
        source, flags = ("--model", str(folder)), ("--served-model-name", "thinker")
        with chat_template(r1) as template, Server(*template, *flags, source=source) as server:
            client = client_of(server)
            ends = {"2047": 9}
            found = 0
            for structure, holds in STRUCTURES:
                biases = {**closing(server), "2047": 16} if "json_object" in json.dumps(structure) else ends
                for reason, content, thought, calls in ask(client, structure, biases):
                    assert (reason, calls) == ("stop", []) and holds(content), (structure, reason, content, thought)
                    found += len(thought) > 20
            assert found >= 20, found
            for choice in ["required", {"type": "function", "function": {"name": "add"}}]:
                answers = ask(client, {}, ends, tools, tool_choice=choice, parallel_tool_calls=False)
                for reason, content, thought, calls in answers:
                    assert reason == "tool_calls" and not content and len(calls) == 1 and is_call(calls[0]), (reason, content, calls)
                    assert choice == "required" or calls[0][0] == "add"
                assert sum(len(thought) > 20 for _, _, thought, _ in answers) >= 2, answers
            # Thoughts that are cut have nothing behind them.
            for reason, content, thought, _ in ask(client, keeping_to(ADDRESS), {"2047": -100}, max_tokens=40):
                assert reason == "length" and not content and thought, (reason, content, thought)
            # What has no thoughts to read keeps to its structure from its first id.
            whole = client.completions.create(model="thinker", prompt=PROMPTS[1] + "<think>", max_tokens=300, logit_bias=ends, extra_body=keeping_to(ADDRESS))
            assert is_address(whole.choices[0].text)
        with chat_template(plain) as template, Server(*template, *flags, "--reasoning-parser", "qwen3", source=source) as server:
            begun = 0
            for seed in range(4):
                for reason, content, thought, _ in ask(client_of(server), keeping_to(ADDRESS), {"2046": 9, "2047": 11}, seed=100 * seed):
                    assert reason == "stop" and is_address(content), (reason, content, thought)
                    begun += bool(thought)
            assert 0 < begun < 20, begun
        closed = plain + "<think>\n\n</think>\n\n"
        with chat_template(closed) as template, Server(*template, *flags, "--reasoning-parser", "deepseek_r1", source=source) as server:
            for reason, content, thought, _ in ask(client_of(server), keeping_to(ADDRESS), {"2046": 100}):
                assert (reason, thought) == ("stop", "") and is_address(content), (reason, content, thought)


def main():
    with chat_template() as template, Server(*template) as server:
        client = client_of(server)
        timed(everywhere, server, client)
        timed(company, server, client)
        timed(schemas, client)
    timed(thoughts)


if __name__ == "__main__":
    main()
