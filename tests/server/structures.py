"""Answers that keep to a structure, on both endpoints of `piecewise serve`:
PYTHONPATH="$(.ci/install-openai)" python3 tests/server/structures.py [schemas ..]"""

import concurrent.futures
import json
import random
import re

from harness import Server, chat_template, timed
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
        asked = dict(model="tiny-qwen3", max_tokens=200, n=5, seed=3, temperature=1.2, extra_body={**structure, **limits})
        messages = [{"role": "user", "content": prompt}]
        whole = client.completions.create(**asked, prompt=prompt)
        texts = [choice.text for choice in whole.choices]
        assert [choice.finish_reason for choice in whole.choices] == ["stop"] * 5, (structure, texts)
        assert all(holds(text) for text in texts), (structure, texts)
        assert len(set(texts)) > 1, (structure, texts)
        chat = client.chat.completions.create(**asked, messages=messages)
        assert [choice.message.content for choice in chat.choices] == texts, structure
        assert chat.usage.completion_tokens == whole.usage.completion_tokens
        pieces = [""] * 5
        for event in client.completions.create(**asked, prompt=prompt, stream=True):
            for choice in event.choices:
                pieces[choice.index] += choice.text
        assert pieces == texts, structure
        pieces, ends = [""] * 5, [None] * 5
        for event in client.chat.completions.create(**asked, messages=messages, stream=True):
            for choice in event.choices:
                pieces[choice.index] += choice.delta.content or ""
                ends[choice.index] = choice.finish_reason or ends[choice.index]
        assert (pieces, ends) == (texts, ["stop"] * 5), structure
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


def main():
    with chat_template() as template, Server(*template) as server:
        client = client_of(server)
        timed(everywhere, server, client)
        timed(company, server, client)
        timed(schemas, client)


if __name__ == "__main__":
    main()
