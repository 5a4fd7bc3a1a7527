#!/usr/bin/env python3
r"""Makes server/tests/fixtures/chat: templates, conversations, and what transformers makes of them.

    python3 -m venv target/chat-venv
    target/chat-venv/bin/pip install transformers==5.23.0 jinja2
    pip download --no-deps --dest target/trl trl==1.16.0 && python3 -m zipfile -e target/trl/*.whl target/trl
    target/chat-venv/bin/python tests/server/make_chat_fixtures.py target/trl/trl/chat_templates \
        server/tests/fixtures/chat qwen2_5 qwen3 deepseekv3 deepseek_r1_distill glm4moe gptoss phi3_5 gemma4_v5

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


def main():
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
