"""Requests of a right form that ask for the impossible or for too much, for abuse.py: structures that
would take hours or all memory, conversations and tools of wrong shapes."""

import json
import time

DEEP = 1500


def chain(count, line, last):
    return "\n".join(line.format(i, i + 1) for i in range(count)) + "\n" + last.format(count)


def nested(depth, before, inside, after):
    return json.loads(before * depth + inside + after * depth)


def joined(count):
    return {"type": "string", "allOf": [{"pattern": f"x{i}"} for i in range(count)]}


SOUGHT = [f"/(.|\\n)*x{i}(.|\\n)*/" for i in range(40)]
INTEGER = {"type": "integer"}
# No answer keeps to one of these, or it would take too long to.
REFUSED = [
    ("json", {"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(20_000)}}),
    ("json", {"$ref": "#/$defs/d0", "$defs": {f"d{i}": {"$ref": f"#/$defs/d{i + 1}"} for i in range(20_000)}}),
    ("json", {"$ref": "#/$defs/d0", "$defs": {f"d{i}": {"$ref": f"#/$defs/d{i + 1}"} for i in range(3_000)}}),
    ("json", {"$ref": "#"}),
    ("json", {"allOf": [{"$ref": "#"}, {"$ref": "#"}]}),
    ("json", {"allOf": [{"anyOf": [{"properties": {f"a{i}_{j}": INTEGER}} for j in range(10)]} for i in range(12)]}),
    ("json", {"enum": [f"value {i}" for i in range(200_000)]}),
    ("json", {"type": "object", "required": [f"p{i}" for i in range(100_000)]}),
    ("json", {"type": "object", "patternProperties": {f"^a{i}x*$": INTEGER for i in range(300)}}),
    ("json", joined(40)),
    # What is met later is met all the same.
    ("json", {"anyOf": [{"const": "z"}, joined(40)]}),
    ("json", {"anyOf": [{"const": "z"}, {"type": "string", "pattern": "^a{1000}b", "anyOf": [{"pattern": "b{1000}c"}]}]}),
    ("json", {"$ref": "#/$defs/a", "pattern": "(a|b){0,500}", "$defs": {"a": {"type": "string", "pattern": "(b|c){0,500}"}}}),
    ("json", {"type": "string", "pattern": "a" * 5_000}),
    ("json", {"type": "number", "minimum": 1e-300, "maximum": 1e300}),
    ("json", {"type": "string", "pattern": "(?=a)b"}),
    ("json", False),
    ("regex", "a?" * 30_000),
    ("regex", "(" * 100_000 + "a" + ")" * 100_000),
    ("regex", "(" * 1_000 + "a" + ")" * 1_000),
    ("regex", "(?=a)b"),
    ("regex", "[z-a]"),
    ("choice", [f"choice {i}" for i in range(200_000)]),
    ("choice", ["x" * 4_000_000]),
    ("grammar", "start: " + "(" * 10_000 + '"a"' + ")" * 10_000),
    ("grammar", "start: " + "(" * 1_000_000),
    ("grammar", "start: A0\n" + chain(100_000, "A{}: A{}", 'A{}: "a"')),
    ("grammar", "start: A0\n" + chain(60, "A{0}: A{1} A{1}", 'A{}: "a"')),
    ("grammar", "start: A0\n" + chain(16, "A{0}: A{1} A{1}", 'A{}: "a"?')),
    ("grammar", "start: A\nA: " + " & ".join(SOUGHT)),
    ("grammar", 'start: A\nA: "z" | "a" (' + " & ".join(SOUGHT) + ")"),
    # A quotation mark within an expression, a comment or the name of a token hides nothing.
    ("grammar", 'start: A\nA: /"/ (' + " & ".join(SOUGHT) + ') /"/'),
    ("grammar", 'start: A // "\nA: ' + " & ".join(SOUGHT) + ' // "'),
    ("grammar", 'start: <a"b> A\nA: ' + " & ".join(SOUGHT) + ' "x"'),
    ("grammar", "start: %json " + json.dumps(joined(40))),
    ("grammar", "start: A\nA: /" + "a?" * 5_000 + "/"),
    ("grammar", "start: " + "%lark { start: " * 1_000 + '"a"' + "}" * 1_000),
    ("grammar", "start: start"),
    ("grammar", 'start: start "a" | start'),
    ("grammar", "\0\u00ff" * 1_000),
    ("grammar", "start: <[0-4000000000]>"),
]
# These may be followed or not; either way it takes little.
BOUNDED = [
    ("json", {"type": "string", "minLength": 100_000_000}),
    ("json", {"type": "array", "minItems": 100_000_000, "items": INTEGER}),
    ("json", {"type": "array", "maxItems": 4_000_000_000, "items": INTEGER}),
    ("json", {"type": "string", "pattern": "(a{1,1000}){1,1000}"}),
    ("json", {"type": "string", "pattern": "(.*a){40}.{40}"}),
    ("json", {"type": "string", "pattern": "(.*a){40}.{40}", "format": "date-time"}),
    ("json", {"$ref": "#/$defs/d0", "$defs": {
        **{f"d{i}": {"type": "object", "properties": {"x": {"$ref": f"#/$defs/d{i + 1}"}}} for i in range(DEEP)}, f"d{DEEP}": INTEGER}}),
    ("json", {"$ref": "#/$defs/d0", "$defs": {**{f"d{i}": {"$ref": f"#/$defs/d{i + 1}"} for i in range(DEEP)}, f"d{DEEP}": INTEGER}}),
    ("json", {"type": "object", "required": [f"p{i}" for i in range(12_000)]}),
    ("json", {"enum": [f"value {i}" for i in range(8_000)]}),
    ("json", nested(60, '{"anyOf": [{"type": "null"}, ', '{"type": "integer"}', "]}")),
    ("json", {"type": "object", "patternProperties": {f"^a{i}x*$": INTEGER for i in range(60)}}),
    ("regex", "((((a{1,100}){1,100}){1,100}){1,100}){1,100}"),
    ("regex", "a?" * 2_000),
    ("regex", "[ab]*a[ab]{1000}b[ab]*"),
    ("regex", "(.|\\n)*a(.|\\n){1000}"),
    ("regex", "a{1000000000}"),
    ("choice", [f"choice {i}" for i in range(8_000)]),
    ("grammar", "start: a0\n" + chain(DEEP, 'a{}: "x" a{} "y"', 'a{}: "a"')),
    ("grammar", "start: A0\n" + chain(DEEP, "A{}: A{}", 'A{}: "a"')),
    ("grammar", "start: A0\n" + chain(DEEP - 300, 'A{}: ("x" A{} "y")*', 'A{}: "a"')),
    ("grammar", "start: A0\n" + chain(12, "A{0}: A{1} A{1}", 'A{}: "a"?')),
    ("grammar", "start: a0\n" + chain(60, "a{0}: a{1} a{1}", 'a{}: "a"')),
    ("grammar", "start: A\nA: " + "B? " * 4_000 + '\nB: "a"'),
    ("grammar", "start: " + " ".join(f"a{i}" for i in range(1_000)) + "\n" + "\n".join(f'a{i}: "x{i}"?' for i in range(1_000))),
    ("grammar", 'start: s\ns: s s s s | s s s | s s | "a" | ""'),
    ("grammar", 'start: ((("a"|"b"){1,1000}){1,1000}){1,1000}'),
    ("grammar", 'start: A\nA: ~(' + " | ".join(f"~{sought}" for sought in SOUGHT) + ")"),
]
USER = {"role": "user", "content": "x"}
TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}
# Fields of a conversation that is not right, with the one that is at fault.
CONVERSATIONS = [
    ("messages", {"messages": wrong})
    for wrong in [
        None, {}, "x", 1, [], [None], [1], ["x"], [[]], [[USER]], [{}], [{"role": "user", "content": 1}],
        [{"role": 1, "content": "x"}], [{"role": None, "content": "x"}], [{"content": "x"}],
        [{"role": "user", "content": {"text": "x"}}], [{"role": "user", "content": [1]}],
        [{"role": "user", "content": [{"type": "text"}]}], [{"role": "user", "content": [{"type": "text", "text": 1}]}],
        [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}],
        [{"role": "user", "content": [{"type": "input_audio", "input_audio": {}}]}],
        [{"role": "user", "content": [{"type": "video_url"}, {"type": "text", "text": "x"}]}],
        [{"role": "assistant", "tool_calls": {}}], [{"role": "assistant", "tool_calls": [1]}],
        [{"role": "assistant", "tool_calls": [{"function": "x"}]}],
    ]
] + [
    ("tools", {"tools": wrong})
    for wrong in [
        {}, "x", 1, [1], ["x"], [[]], [{}], [{"type": "function"}], [{"type": "function", "function": {}}],
        [{"type": "function", "function": {"name": ""}}], [{"type": "function", "function": {"name": 1}}],
        [{"type": "function", "function": {"name": "f", "parameters": []}}], [{"type": "web_search"}],
        [TOOL] * 3 + [{"type": "function", "function": {"name": None}}],
    ]
] + [
    ("tool_choice", {"tools": [TOOL], "tool_choice": wrong})
    for wrong in [1, [], {}, "any", {"type": "function"}, {"type": "function", "function": {"name": "other"}}, {"type": "x"}]
] + [
    ("tool_choice", {"tool_choice": "required"}),
    ("tool_choice", {"tools": [TOOL], "tool_choice": "required", "response_format": {"type": "json_object"}}),
    # As many as there are make a schema that is too large.
    ("tools", {"tools": [{"type": "function", "function": {"name": f"f{i}", "parameters": {"type": "object", "properties": {"a": INTEGER}}}} for i in range(3_000)], "tool_choice": "required"}),
    ("tools", {"tools": [{"type": "function", "function": {"name": "f", "parameters": joined(40)}}], "tool_choice": "required"}),
    ("tools", {"tools": [{"type": "function", "function": {"name": "f", "parameters": joined(40)}}], "tool_choice": {"type": "function", "function": {"name": "f"}}}),
    ("documents", {"documents": "x"}), ("chat_template_kwargs", {"chat_template_kwargs": []}),
    ("top_logprobs", {"logprobs": True, "top_logprobs": 21}), ("top_logprobs", {"top_logprobs": 1}),
    ("continue_final_message", {"continue_final_message": True}),
    ("response_format", {"response_format": "json"}), ("response_format", {"response_format": {"type": "xml"}}),
    ("response_format", {"response_format": {"type": "json_schema", "json_schema": {"name": "s"}}}),
    ("response_format", {"response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": joined(40)}}}),
    ("structured_outputs", {"structured_outputs": []}), ("structured_outputs", {"structured_outputs": {"regex": 1}}),
    ("structured_outputs", {"structured_outputs": {"choice": []}}), ("structured_outputs", {"structured_outputs": {"shape": "x"}}),
    ("guided_regex", {"guided_regex": "a", "guided_json": {"type": "null"}}), ("guided_json", {"guided_json": "{"}),
]


# Nothing of these is read to its end: a text, texts or lists of many times what there is room for.
LARGE = [
    ("/v1/completions", "prompt", {"prompt": "ab cd " * 1_300_000}),
    ("/v1/completions", "prompt", {"prompt": ["x", "ab cd " * 1_300_000]}),
    ("/v1/completions", "prompt", {"prompt": ["x"] * 800_000}),
    ("/v1/completions", "prompt", {"prompt": ["x"] * 500, "n": 128}),
    ("/v1/completions", "prompt", {"prompt": [[1]] * 400_000}),
    ("/v1/completions", "prompt", {"prompt": [1] * 1_000_000}),
    ("/v1/completions", "logit_bias", {"prompt": "x", "logit_bias": {str(i): 1 for i in range(100_000)}}),
    ("/v1/chat/completions", "messages", {"messages": [{"role": "user", "content": "ab cd " * 1_300_000}]}),
    ("/v1/chat/completions", "messages", {"messages": [USER] * 50_000}),
]


def hostile(server):
    """Each is answered soon, in little memory; what can't be is refused by its field's name."""
    longest = (0, None)

    def ask(path, body, fields):
        nonlocal longest
        started = time.monotonic()
        status, _, answer = server.post(path, body)
        longest = max(longest, (time.monotonic() - started, str(body)[:100]), key=lambda took: took[0])
        if fields is None:
            assert status == 200 or 400 <= status < 500, (status, answer, str(body)[:200])
            return
        assert 400 <= status < 500, (status, answer, str(body)[:200])
        assert (answer["error"]["param"] or "").startswith(fields), (answer, str(body)[:200])
        assert len(answer["error"]["message"]) < 1_000, answer

    for path, field, body in LARGE:
        ask(path, body, field)
    start = server.memory()
    prompts = {"/v1/completions": {"prompt": "x"}, "/v1/chat/completions": {"messages": [USER]}}
    for kind, structure in REFUSED:
        for path, prompt in prompts.items():
            # However many answers there are to be.
            body = {**prompt, "max_tokens": 4, "n": 64, "structured_outputs": {kind: structure}}
            ask(path, body, f"structured_outputs.{kind}")
    for kind, structure in BOUNDED:
        body = {"prompt": "x", "max_tokens": 8, "n": 8, "structured_outputs": {kind: structure}}
        ask("/v1/completions", body, None)
    for field, more in CONVERSATIONS:
        ask("/v1/chat/completions", {"messages": [USER], "max_tokens": 1, **more}, field)
    grown = server.memory() - start
    assert grown < 400_000 and server.memory() < 1_500_000, (grown, server.memory())
    took, body = longest
    print(f"hostile: {len(REFUSED)} structures refused, {len(BOUNDED)} bounded, {len(CONVERSATIONS)} conversations refused; the longest {took:.1f}s: {body}; {grown} kB", flush=True)
