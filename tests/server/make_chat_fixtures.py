#!/usr/bin/env python3
r"""Makes server/tests/fixtures/chat: templates, conversations, and what transformers makes of them.

    python3 -m venv target/chat-venv
    target/chat-venv/bin/pip install transformers==5.23.0 jinja2
    pip download --no-deps --dest target/trl trl==1.16.0 && python3 -m zipfile -e target/trl/*.whl target/trl
    target/chat-venv/bin/python tests/server/make_chat_fixtures.py target/trl/trl/chat_templates \
        server/tests/fixtures/chat qwen2_5 qwen3 deepseekv3 deepseek_r1_distill glm4moe gptoss phi3_5 gemma4_v5

    target/chat-venv/bin/python tests/server/make_chat_fixtures.py idioms server/tests/fixtures/idioms.json

TEMPLATES is a folder of Jinja files (the `trl/chat_templates` of PyPI's `trl`); without names all
of them are rendered. A case that transformers refuses is kept with its error.
"""

import datetime
import json
import pathlib
import sys

from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast
from transformers.utils import chat_template_utils

DATE = "2024-05-06"
BOS, EOS = "<s>", "</s>"


class FixedDate(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return cls.fromisoformat(DATE + "T12:00:00")


WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather <now> at a \"place\" & around; é",
        "parameters": {
            "type": "object",
            "properties": {
                "place": {"type": "string", "description": "A town"},
                "unit": {"type": "string", "enum": ["celsius", "fahrenheit"], "description": "The unit"},
                "days": {"type": "integer", "description": "How many days", "minimum": 1},
                "shares": {"type": "array", "items": {"type": "number"}, "description": "Shares", "default": [0.5, 1.0]},
            },
            "required": ["place", "unit"],
        },
    },
}
CLOCK = {
    "type": "function",
    "function": {
        "name": "clock",
        "description": "The time",
        "parameters": {"type": "object", "properties": {}},
    },
}
SYSTEM = {"role": "system", "content": "You are terse.\nAnswer in one line."}
USER = {"role": "user", "content": "  What is <2 + 2> & \"3\"? é🦀\n"}
ASSISTANT = {"role": "assistant", "content": "Four.  \n"}
THOUGHT = {"role": "assistant", "content": "<think>\nTwo and two\n</think>\n\nFour."}
REASONED = {"role": "assistant", "reasoning_content": "Two and two", "content": "Four."}
MORE = {"role": "user", "content": "And 3 + 3?"}
CALL_ID = "a1b2c3d4e"
CALLS = {
    "role": "assistant",
    "content": "",
    "tool_calls": [
        {
            "type": "function",
            "id": CALL_ID,
            "function": {"name": "get_weather", "arguments": {"place": "Bern é", "unit": "celsius", "days": 2, "shares": [0.5, 1.0, 1e-7]}},
        }
    ],
}
TWO_CALLS = {
    "role": "assistant",
    "content": "Let me look.",
    "tool_calls": [
        CALLS["tool_calls"][0],
        {"type": "function", "id": "b1b2c3d4e", "function": {"name": "clock", "arguments": {}}},
    ],
}
RESULT = {"role": "tool", "name": "get_weather", "tool_call_id": CALL_ID, "content": '{"degrees": 21.5, "sky": "clear"}'}
RESULT_2 = {"role": "tool", "name": "clock", "tool_call_id": "b1b2c3d4e", "content": "12:00"}


def written(message):
    message = json.loads(json.dumps(message))
    for call in message["tool_calls"]:
        call["function"]["arguments"] = json.dumps(call["function"]["arguments"], ensure_ascii=False)
    return message


CASES = {
    "user": dict(messages=[USER], add_generation_prompt=True),
    "system": dict(messages=[SYSTEM, USER], add_generation_prompt=True),
    "no generation prompt": dict(messages=[SYSTEM, USER, ASSISTANT]),
    "turns": dict(messages=[SYSTEM, USER, ASSISTANT, MORE], add_generation_prompt=True),
    "thoughts in the content": dict(messages=[USER, THOUGHT, MORE], add_generation_prompt=True),
    "thoughts apart": dict(messages=[USER, REASONED, MORE, REASONED]),
    "thinking off": dict(messages=[SYSTEM, USER], add_generation_prompt=True, kwargs={"enable_thinking": False, "thinking": False}),
    "thinking on": dict(messages=[SYSTEM, USER], add_generation_prompt=True, kwargs={"enable_thinking": True, "thinking": True, "reasoning_effort": "high"}),
    "tools": dict(messages=[SYSTEM, USER], tools=[WEATHER, CLOCK], add_generation_prompt=True),
    "tools without a system message": dict(messages=[USER], tools=[WEATHER], add_generation_prompt=True),
    "a call": dict(messages=[SYSTEM, USER, CALLS, RESULT], tools=[WEATHER, CLOCK], add_generation_prompt=True),
    "calls and replies": dict(messages=[SYSTEM, USER, TWO_CALLS, RESULT, RESULT_2, ASSISTANT, MORE], tools=[WEATHER, CLOCK], add_generation_prompt=True),
    "a call with written arguments": dict(messages=[SYSTEM, USER, written(CALLS), RESULT], tools=[WEATHER, CLOCK], add_generation_prompt=True),
    "an empty system message": dict(messages=[{"role": "system", "content": ""}, USER], add_generation_prompt=True),
    "going on": dict(messages=[SYSTEM, USER, {"role": "assistant", "content": "Four, since "}], continue_final_message=True),
    "two users": dict(messages=[USER, MORE], add_generation_prompt=True),
    "content is null": dict(messages=[USER, {**CALLS, "content": None}, RESULT], tools=[WEATHER], add_generation_prompt=True),
    "documents": dict(messages=[SYSTEM, USER], documents=[{"title": "Sums", "text": "2 + 2 = 4"}], add_generation_prompt=True),
}

# What templates write of Python's and Jinja's own, each with what it renders.
KNOWN = {
    "text": "Ab c", "n": 7, "half": 0.5, "flag": True, "nothing": None, "empty": [], "list": [3, "a", None, True, 1.0],
    "map": {"b": 1, "a": "x"}, "schema": {"type": "array", "items": {"type": "string"}, "get": 1}, "items": [{"k": 1, "on": True}, {"k": 2}, {"k": 1}],
}
IDIOMS = [
    # Formats.
    "{{ 'to %s' % text }}|{{ '%s-%s' % (n, text) }}|{{ '%s' % list }}|{{ '%s' % map }}|{{ '%s' % nothing }}",
    "{{ '%d of %d' % (n, 9) }}|{{ '%05d' % n }}|{{ '%-5d' % n }}|{{ '%x %X %o' % (255, 255, 8) }}|{{ '%+d' % n }}",
    "{{ '%.2f' % half }}|{{ '%8.3f' % half }}|{{ '%e' % half }}|{{ '%g' % half }}|{{ '%5.1f%%' % (half * 100) }}",
    "{{ '%r' % text }}|{{ '%r %r' % (list, map) }}|{{ '%10s|%-10s|%.2s' % (text, text, text) }}|{{ '%c' % 'x' }}",
    "{{ '%(a)s and %(b)d' % map }}|{{ '%(a)s' % {'a': 'é'} }}|{{ '%s %s' % ('%s', 'a') }}|{{ '100%%' % () }}",
    "{{ text ~ ' %s' % n ~ '!' }}|{{ 'a' + '%s' % n + 'b' }}|{{ ('%s' ~ 'x') % n }}|{{ '%s' % text|upper }}|{{ '%s' % text.lower() }}",
    "{{ n % 4 }}|{{ -n % 4 }}|{{ n % -4 }}|{{ 7.5 % 2 }}|{{ n * 2 % 5 }}|{{ 2 ** 3 % 5 }}|{{ 20 % 7 % 4 }}|{{ n % 4 == 3 }}",
    "{% if loop is not defined and n % 2 %}odd{% endif %}{% set s = '%s' % n %}{{ s }}{% for i in range(9 % 5) %}{{ i % 2 }}{% endfor %}",
    "{{ '%s' % (n,) }}|{{ '%s' % [1, 'a'] }}|{{ '%s' % flag }}|{{ '%s' % half }}|{{ '%s' % 1e20 }}|{{ '%i' % n }}",
    "{{ '{} {}'.format(n, text) }}|{{ '{a}'.format(a=1) }}|{{ '{0:>5}|{0:<5}'.format(n) }}|{{ '%s'|format(n) }}|{{ '{:.2f}'.format(half) }}",
    "{{ '%s' % missing }}", "{{ '%d' % text }}", "{{ '%s %s' % n }}", "{{ '%s' % (1, 2) }}", "{{ n % 0 }}", "{{ n % text }}",
    # What is not there.
    "{{ missing }}|{{ missing|length }}|{{ missing|count }}|{{ missing|first }}|{{ missing|last }}|{{ missing|list }}|{{ missing|join(',') }}",
    "{{ missing|upper }}|{{ missing|trim }}|{{ missing|lower }}|{{ missing|title }}|{{ missing|capitalize }}|{{ missing|replace('a', 'b') }}",
    "{{ missing|default('d') }}|{{ missing|string }}|{{ missing|sort }}|{{ missing|unique|list }}|{{ missing|map('upper')|list }}",
    "{{ missing|select|list }}|{{ missing|selectattr('a')|list }}|{{ missing|rejectattr('a')|list }}|{{ missing|sum }}|{{ missing|min }}|{{ missing|max }}",
    "{{ missing|items|list }}|{{ missing is defined }}|{{ missing is none }}|{{ missing is string }}|{{ missing is iterable }}|{{ missing is mapping }}|{{ missing is sequence }}",
    "{% for a in missing %}x{% else %}none{% endfor %}|{{ 'a' in missing }}|{{ missing == nothing }}|{{ missing or 'b' }}|{{ not missing }}|{{ 'a' ~ missing }}",
    "{{ empty|first }}|{{ empty|last }}|{{ ''|first }}|{{ ''|last }}|{{ list|first }}|{{ list|last }}|{{ text|first }}|{{ text|last }}|{{ map|first }}|{{ map|last }}",
    "{{ missing.a }}", "{{ missing['a'] }}", "{{ missing + 'a' }}", "{{ missing() }}", "{{ missing|tojson }}", "{{ missing|int }}", "{{ nothing|first }}", "{{ nothing|length }}",
    "{{ map.missing }}|{{ map['missing'] }}|{{ list[9] }}|{{ text[9] }}|{{ map.get('x') }}|{{ map.get('x', 'd') }}|{{ map.get('a') }}",
    # Values as they are printed.
    "{{ list }}|{{ map }}|{{ nothing }}|{{ flag }}|{{ half }}|{{ (1, 'a') }}|{{ (1,) }}|{{ 1e16 }}|{{ 1e-7 }}|{{ [[], {}] }}|{{ 'a\"b\\'' }}|{{ [\"it's\"] }}",
    "{{ list|string }}|{{ list|join(',') }}|{{ map|join(',') }}|{{ map|list }}|{{ map.items()|list }}|{{ map.keys()|list }}|{{ map.values()|list }}",
    "{{ map|tojson }}|{{ list|tojson }}|{{ text|tojson }}|{{ map|tojson(indent=2) }}|{{ '<é>'|tojson }}|{{ half|tojson }}|{{ map|tojson(separators=(',', ':')) }}",
    "{{ map|dictsort }}|{{ map|items|list }}|{{ list|reverse|list }}|{{ text|reverse }}|{{ [3, 1, 2]|sort }}|{{ ['b', 'A']|sort }}|{{ items|map(attribute='k')|list }}",
    "{{ items|selectattr('on')|list }}|{{ items|selectattr('k', 'equalto', 1)|list|length }}|{{ items|rejectattr('on', 'defined')|list }}|{{ items|groupby('k')|list|length }}",
    "{{ [1, 2, 2]|unique|list }}|{{ [1, 2]|sum }}|{{ [1, 5]|max }}|{{ range(3)|list }}|{{ [1, 2, 3, 4]|batch(2)|list }}|{{ [1, 2, 3]|slice(2)|list }}",
    # Methods of texts, lists and maps.
    "{{ text.upper() }}|{{ text.lower() }}|{{ text.title() }}|{{ ' a '.strip() }}|{{ 'xax'.strip('x') }}|{{ 'xa'.lstrip('x') }}|{{ 'ax'.rstrip('x') }}|{{ text.split() }}",
    "{{ 'a,b,c'.split(',') }}|{{ 'a,b,c'.split(',', 1) }}|{{ 'a,b,c'.rsplit(',', 1) }}|{{ 'a,b'.partition(',') }}|{{ text.replace('b', 'd') }}|{{ 'aaa'.replace('a', 'b', 1) }}",
    "{{ text.startswith('A') }}|{{ text.startswith(('x', 'A')) }}|{{ text.endswith('c') }}|{{ text.find('c') }}|{{ text.index('c') }}|{{ text.count('b') }}|{{ 'é'.isalpha() }}|{{ '12'.isdigit() }}",
    "{{ ','.join(['a', 'b']) }}|{{ 'a\nb'.splitlines() }}|{{ 'ab'.capitalize() }}|{{ 'prefix'.removeprefix('pre') }}|{{ 'a'.zfill(3) }}|{{ 'a'.center(5) }}|{{ 'a'.ljust(3) }}|{{ 'a'.rjust(3) }}",
    "{{ text[0] }}|{{ text[-1] }}|{{ text[1:] }}|{{ text[::-1] }}|{{ list[-1] }}|{{ list[:2] }}|{{ list[::-1] }}|{{ [1] + [2] }}|{{ 'ab' * 2 }}|{{ [1] * 2 }}",
    "{{ 'a' in text }}|{{ 'A' in text }}|{{ 'a' in map }}|{{ 3 in list }}|{{ text is string }}|{{ n is number }}|{{ map is mapping }}|{{ list is sequence }}|{{ flag is boolean }}|{{ n is integer }}|{{ half is float }}",
    "{{ nothing is none }}|{{ flag is true }}|{{ 0 is false }}|{{ text is iterable }}|{{ map is iterable }}|{{ n is odd }}|{{ n is divisibleby 7 }}|{{ text is eq 'Ab c' }}|{{ n is in [7] }}|{{ text is lower }}",
    "{% set ns = namespace(a=1) %}{% for x in list %}{% set ns.a = ns.a + loop.index %}{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ loop.revindex }}{{ loop.previtem is defined }}{% endfor %}{{ ns.a }}",
    "{% macro m(a, b='x', c=none) %}{{ a }}{{ b }}{{ c }}{% endmacro %}{{ m(1) }}|{{ m(1, 2) }}|{{ m(1, c=3) }}",
    "{% for k, v in map.items() %}{{ k }}={{ v }};{% endfor %}{% for k, v in map|dictsort %}{{ k }}={{ v }};{% endfor %}{% for x in list if x is string %}{{ x }}{% else %}e{% endfor %}",
    "{% for i in range(5) %}{% if i == 1 %}{% continue %}{% endif %}{% if i == 3 %}{% break %}{% endif %}{{ i }}{% endfor %}|{% set a, b = 1, 2 %}{{ a }}{{ b }}|{% set x %}b{{ n }}{% endset %}{{ x }}",
    "{{ n / 2 }}|{{ n // 2 }}|{{ -n // 2 }}|{{ 2 ** 3 }}|{{ 2 ** -1 }}|{{ 1 == 1.0 }}|{{ 'a' < 'b' }}|{{ 1 < n < 9 }}|{{ n if flag else 0 }}|{{ n if nothing }}|{{ 3 // 2.0 }}",
    "{{ '12'|int }}|{{ 'x'|int }}|{{ '1.5'|float }}|{{ 'x'|int(5) }}|{{ 1.5|int }}|{{ 2.567|round(1) }}|{{ 2.5|round }}|{{ 2.5|round|int }}|{{ -3|abs }}|{{ '  a b '|trim }}|{{ text|length }}",
    "{{ 'a b'|title }}|{{ 'aB'|capitalize }}|{{ 'x'|center(5) }}|{{ 'a\nb'|indent(2) }}|{{ 'a\nb'|indent(2, true) }}|{{ 'a\n'|indent(2, first=true) }}|{{ 'a\n\nb\n\n'|indent }}|{{ 'a\n\nb\n'|indent('> ', blank=true) }}|{{ ''|indent(1, true) }}|{{ 'a\\r\\nb\\rc'|indent(width=1) }}|{{ 'a b c'|wordcount }}|{{ '<a>'|escape }}|{{ '<a>'|safe }}|{{ '<a>'|e }}",
    "{{ dict(a=1) }}|{{ dict(map, c=2) }}",
    "{{ 'a b  c'.rsplit() }}|{{ 'a b  c'.rsplit(None, 1) }}|{{ 'a,b'.rpartition(',') }}|{{ 'ab'.partition('x') }}|{{ 'ab'.rpartition('x') }}|{{ 'a.b'.removesuffix('.b') }}",
    "{{ 'aXb'.swapcase() }}|{{ 'A'.casefold() }}|{{ 'abab'.rindex('b') }}|{{ 'abab'.rfind('b') }}|{{ '-1'.zfill(4) }}|{{ 'ab'.center(5, '*') }}|{{ 'a'.center(4) }}|{{ 'a'.rjust(3, '0') }}",
    "{{ 'a,b,c'.split(',', maxsplit=1) }}|{{ 'a b'.split(maxsplit=1) }}|{{ 'a,b'.split(sep=',') }}|{{ ' '.isspace() }}|{{ 'a1'.isalnum() }}|{{ 'ab'.islower() }}|{{ 'AB'.isupper() }}|{{ 'x'.index('y') }}",
    "{{ [1, 2, 1].count(1) }}|{{ 'a b'.title() }}|{{ 'x'.join('ab') }}|{{ '%s %s' % ('a', text) }}|{{ '%%' % () }}|{{ '%s%%' % n }}|{{ '%*d' % (5, 3) }}|{{ '%(a)s' % {} }}|{{ 'a' % map }}|{{ '%s' % {} }}",
    "{{ 'a' 'b' }}|{{ '\\u00e9\\n\\t\\\\' }}|{{ \"a'b\" }}|{{ 1_000 }}|{{ 0x1f }}|{{ 1.5e3 }}|{{ -1 }}|{{ not true }}|{{ none }}|{{ None }}|{{ True }}|{{ [1,] }}|{{ {} }}|{{ () }}",
    "{{ text is sameas text }}|{{ n is gt 3 }}|{{ n is ne 3 }}|{{ n is even }}|{{ missing is undefined }}|{{ text is not none }}|{{ text is upper }}|{{ n is not divisibleby(2) }}",
    "{{ text|replace('A', '') }}|{{ list|tojson|length }}|{{ text|list }}|{{ '1,2'.split(',')|map('int')|sum }}|{{ items|map(attribute='on', default=0)|list }}|{{ items|sum(attribute='k') }}|{{ items|sort(attribute='k')|map(attribute='k')|list }}",
    "{{ 'x'|default('d', true) }}|{{ ''|default('d', true) }}|{{ ''|default('d') }}|{{ none|default('d') }}|{{ false|default('d', boolean=true) }}|{{ map|length }}|{{ 'abcdefghi'|truncate(2, true, '') }}|{{ 'ab cd ef gh ij'|truncate(8) }}|{{ 'abcdef'|truncate(3) }}|{{ 'abcdef'|truncate(3, leeway=0, end='!') }}",
    "{{ '0x1f'|int(base=16) }}|{{ 'x'|int(default=3) }}|{{ ' 7 '|int }}|{{ 'x'|float }}|{{ 'x'|float(1.5) }}|{{ '3'|float }}|{{ true|int }}|{{ [1]|int }}|{{ none|int }}|{{ '1e2'|int }}",
    "{% with a = 1 %}{{ a }}{% endwith %}{% filter upper %}abc{% endfilter %}{% macro w() %}[{{ caller() }}]{% endmacro %}{% call w() %}x{% endcall %}{% for a, b in [(1, 2)] %}{{ a }}{{ b }}{% endfor %}",
    "{% for x in [1, 2, 2] %}{{ loop.index0 }}{{ loop.cycle('a', 'b') }}{{ loop.changed(x) }}{{ loop.nextitem }}{% if loop.last %}.{% endif %}{% endfor %}{% for k in map %}{{ k }}{% endfor %}{% for x in {}.items() %}{% endfor %}",
    "{% if text %}  a\n  {% endif %}  b\n{%- if n -%}\n c {%- endif %}\n  {# note #}\nd {{- n -}} \n e\n{% raw %}{{ x }}{% endraw %}\n",
    "{%- set ns = namespace(found=false, l=[]) -%}\n{%- for i in list -%}\n  {%- if i is string -%}{%- set ns.found = true -%}{%- set ns.l = ns.l + [i] -%}{%- endif -%}\n{%- endfor -%}\n{{ ns.found }}{{ ns.l }}\n",
    "{% set m = {'role': 'a', 'content': [{'type': 'text', 'text': 'b'}]} %}{{ m.role }}{{ m['content'][0].text }}{{ m.content is string }}{% set x = m.content | selectattr('type', 'equalto', 'text') | map(attribute='text') | join('') %}{{ x }}",
    "{{ schema.items.type }}|{{ schema['items'].type }}|{{ schema.items()|list }}|{{ schema.get('items') }}|{{ schema.get.x }}|{{ schema.keys()|list }}|{{ schema.values()|list|length }}|{{ schema.copy is string }}",
    "{% for k, v in schema.items() %}{{ k }}{% endfor %}{% if schema.items is defined %}d{% endif %}{% if schema.items %}t{% endif %}{{ schema.items is mapping }}{{ schema.type }}{{ schema.items().__class__ is defined and false }}",
    "{% set ns = namespace(items=[1], get=2) %}{{ ns.items }}{{ ns.get }}{% set ns.items = ns.items + [3] %}{{ ns.items|length }}{% for m in items %}{{ m.get('k') }}{{ m.values()|list }}{% endfor %}{{ {'a': {'items': 1}}.a.items() | list }}",
    "{{ nothing.items }}|{{ missing.items }}|{{ text.get }}|{{ n.values }}|{{ schema.items() | length }}|{{ (schema).get('type') }}|{{ [schema][0].get('type') }}|{{ dict(a=1).items()|list }}",
    "{{ text.nope() }}", "{{ raise_exception('no ' ~ n) }}", "{{ list.nope }}", "{{ nothing.a }}", "{{ nothing + 1 }}", "{{ 'a' + 1 }}", "{{ text|nope }}",
]


def idioms(out):
    records = []
    # What stands side by side on a line is apart, but for what goes on from a block.
    templates = [one for line in IDIOMS for one in ([line] if line.startswith("{%") else line.split("|{{"))]
    for template in templates:
        template = template if template.startswith("{") else "{{" + template
        record = {"template": template}
        try:
            record["text"] = chat_template_utils._compile_jinja_template(template).render(**KNOWN)
        except Exception as error:  # a record of what it is
            record["error"] = f"{type(error).__name__}: {error}"
        records.append(record)
    out.write_text(json.dumps({"known": KNOWN, "idioms": records}, ensure_ascii=False, indent=1) + "\n")


def main():
    if sys.argv[1] == "idioms":
        return idioms(pathlib.Path(sys.argv[2]))
    folder, out, names = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]), sys.argv[3:]
    chat_template_utils.datetime = FixedDate
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(WordLevel({"a": 0}, unk_token="a")), bos_token=BOS, eos_token=EOS
    )
    out.mkdir(parents=True, exist_ok=True)
    for file in sorted(folder.glob("*.jinja")):
        if names and file.stem not in names:
            continue
        template = file.read_text()
        cases = []
        for name, case in CASES.items():
            record = {"case": name, **case}
            try:
                record["text"] = tokenizer.apply_chat_template(
                    case["messages"],
                    tools=case.get("tools"),
                    documents=case.get("documents"),
                    chat_template=template,
                    add_generation_prompt=case.get("add_generation_prompt", False),
                    continue_final_message=case.get("continue_final_message", False),
                    tokenize=False,
                    **case.get("kwargs", {}),
                )
            except Exception as error:  # whatever it is, the template can't be used so
                record["error"] = f"{type(error).__name__}: {error}"
            cases.append(record)
        fixture = {
            "template": template,
            "special_tokens": {"bos_token": BOS, "eos_token": EOS},
            "date": DATE,
            "cases": cases,
        }
        (out / f"{file.stem}.json").write_text(json.dumps(fixture, ensure_ascii=False, indent=1) + "\n")
        refused = sum("error" in case for case in cases)
        print(f"{file.stem}: {len(cases) - refused} cases, {refused} refused")


if __name__ == "__main__":
    main()
