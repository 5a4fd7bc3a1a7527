"""What one client may put into requests: attacks of `siege.py` by texts, lists, values and messages."""

import json
import random

from bounds import EIGHT_MIB

# A template that makes its text bit by bit, and reads a field that most messages lack.
APPENDING = (
    "{%- set ns = namespace(text='') -%}{%- for m in messages -%}{%- set ns.text = ns.text + m.role + m.content -%}"
    "{%- if m.name == 'x' or m.tool_calls -%}!{%- endif -%}{%- endfor -%}{%- if tools -%}{{ tools|length }}{%- endif -%}{{ ns.text }}"
)


def refused(statuses):
    assert set(statuses) <= {None, 400, 403, 408, 413, 429, 503}, statuses


def long_lists_of_ids(attacker):
    ids = random.Random(1).choices(range(2048), k=1_000_000)
    fields = [{"stop_token_ids": ids}, {"prompt": ids}, {"logit_bias": {str(id): 1 for id in range(400_000)}}, {"prompt": [5] * 1_500_000}]
    bodies = [json.dumps({"prompt": [5, 6], "max_tokens": 16, "n": 128, **more}).encode() for more in fields]
    refused(attacker.together(len(bodies), lambda i: attacker.post("/v1/completions", bodies[i])))
    taken = {"prompt": [5, 6], "max_tokens": 16, "n": 64, "allowed_token_ids": ids}
    assert attacker.post("/v1/completions", taken) in {200, 429, 503} | attacker.crowded


def long_texts(attacker):
    digits = "7" * EIGHT_MIB
    bodies = [("/tokenize", {"prompt": digits}), ("/v1/completions", {"prompt": digits}), ("/v1/chat/completions", {"messages": [{"role": "user", "content": digits}]})]
    bodies = [(path, json.dumps(body).encode()) for path, body in bodies]
    refused(attacker.together(12, lambda i: attacker.post(*bodies[i % 3])))


def many_small_texts(attacker):
    """Each too small for a turn among the large ones, and all of them long to read."""
    body = json.dumps({"prompt": "7" * 32_000}).encode()
    statuses = attacker.together(600, lambda _: attacker.post("/tokenize", body), 200)
    assert set(statuses) <= {200, 400, 429, 503} | attacker.crowded, statuses


def values_without_an_end(attacker):
    many = "[" + ",".join(['{"":0}'] * 900_000) + "]"
    body = ('{"messages": [{"role": "user", "content": "x", "else": %s}]}' % many).encode()
    refused(attacker.together(12, lambda _: attacker.post("/v1/chat/completions", body), 12))
    # As many as a body may have: where no template looks, where it looks, and where they are no values yet.
    most = ",".join(['{"":0}'] * 349_000)
    parameters = '[{"type": "function", "function": {"name": "f", "parameters": {"properties": [%s]}}}]' % most
    written = json.dumps('{"a": [%s]}' % most)
    calls = '[{"id": "a", "type": "function", "function": {"name": "f", "arguments": %s}}]' % written
    for body in [
        '{"messages": [{"role": "user", "content": "x", "else": [%s]}], "max_tokens": 1}' % most,
        '{"messages": [{"role": "user", "content": "x", "name": [%s]}], "max_tokens": 1}' % most,
        '{"messages": [{"role": "user", "content": "x"}], "tools": %s, "max_tokens": 1}' % parameters,
        '{"messages": [{"role": "assistant", "content": "x", "tool_calls": %s}], "max_tokens": 1}' % calls,
        '{"messages": [], "else": [%s]}' % most,
    ]:
        body = body.encode()
        statuses = attacker.together(12, lambda _: attacker.post("/v1/chat/completions", body), 12)
        assert set(statuses) <= {200, 400, 413, 429, 503} | attacker.crowded, statuses
    deep = b'{"prompt": ' + b"[" * 1_000_000
    refused(attacker.together(12, lambda _: attacker.post("/v1/completions", deep), 12))


def messages_without_an_end(attacker):
    """More than the context has tokens, and as many that are long, where the template copies for each what it has so far."""
    message = '{"role": "user", "content": "%s"}'
    for most, content in [(200_000, "x"), (2048, "x" * 4000)]:
        body = ('{"messages": [%s]}' % ",".join([message % content] * most)).encode()
        refused(attacker.together(4, lambda _: attacker.post("/v1/chat/completions", body)))
        attacker.together(8, lambda _: attacker.leave("/v1/chat/completions", body))


def spaces_without_an_end(attacker):
    """Many of them are one token, and all of them one word to read. No model is asked, which would take long for them."""
    spaces = " " * (260 << 10)
    bodies = [json.dumps(body).encode() for body in ({"prompt": spaces}, {"messages": [{"role": "user", "content": spaces}]})]
    attacker.together(24, lambda i: attacker.leave("/tokenize", bodies[i % 2]), 24)
    statuses = attacker.together(4, lambda i: attacker.post("/tokenize", bodies[i % 2]), 4)
    assert set(statuses) <= {200, 400, 429, 503} | attacker.crowded, statuses
