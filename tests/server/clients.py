"""The packages that people ask servers with, each by its own calls, against `piecewise serve`; names of tests
choose among them. The tiny model writes what a schema, a tool or a choice forces it to.

PYTHONPATH="$(.ci/install-clients)" python3 tests/server/clients.py [of_anthropic ..]
"""

import asyncio
import os
import tempfile
from typing import Literal

# It would fetch prices of models.
os.environ.update(LITELLM_LOCAL_MODEL_COST_MAP="True", LANGCHAIN_TRACING_V2="false")

import anthropic
import instructor
import langchain_anthropic
import langchain_core.messages
import langchain_openai
import litellm
import openai
import pydantic

from harness import GOLDEN, Server, chat_template, timed

litellm.suppress_debug_info = True
MODEL = "tiny-qwen3"
PROMPT = GOLDEN[0]["prompt"]
USER = [{"role": "user", "content": PROMPT}]
CALL = '<tool_call>\n{"name": "Add", "arguments": {"first": true, "unit": "metres"}}\n</tool_call>'


class Add(pydantic.BaseModel):
    """What is added to what."""

    model_config = pydantic.ConfigDict(extra="forbid")
    first: bool
    unit: Literal["metres", "feet"]


SCHEMA = Add.model_json_schema()
TOOL = {"name": "Add", "description": "Adds.", "input_schema": SCHEMA}
FUNCTION = {"type": "function", "function": {"name": "Add", "description": "Adds.", "parameters": SCHEMA}}


def said(text):
    """Fields of a request whose reply is this text."""
    return {"structured_outputs": {"choice": [text]}, "temperature": 0}


def raised(kind, ask):
    """What an exception of this kind says."""
    try:
        ask()
    except kind as error:
        return str(error)
    raise AssertionError(f"no {kind}")


def of_anthropic(server):
    client = anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0, timeout=120)
    asked = dict(model=MODEL, max_tokens=24, messages=USER, extra_body={"temperature": 0})
    whole = client.messages.create(**asked)
    assert (whole.type, whole.role, whole.model, whole.stop_reason) == ("message", "assistant", MODEL, "max_tokens")
    text = whole.content[0].text
    assert len(whole.content) == 1 and whole.usage.output_tokens == 24
    # The same prompt and reply as in the chat.
    chat = openai.OpenAI(base_url=server.url + "/v1", api_key="none").chat.completions.create(
        model=MODEL, messages=USER, max_tokens=24, temperature=0)
    assert chat.choices[0].message.content == text
    counted = client.messages.count_tokens(model=MODEL, messages=USER)
    assert counted.input_tokens == chat.usage.prompt_tokens
    assert whole.usage.input_tokens + whole.usage.cache_read_input_tokens == counted.input_tokens
    with client.messages.stream(**asked) as stream:
        assert "".join(stream.text_stream) == text
        final = stream.get_final_message()
    assert (final.content[0].text, final.stop_reason, final.usage.output_tokens) == (text, "max_tokens", 24)
    kinds = [event.type for event in client.messages.create(**asked, stream=True)]
    assert kinds[0] == "message_start" and kinds[-2:] == ["message_delta", "message_stop"], kinds
    stop = text[4:8]
    ended = client.messages.create(**asked, stop_sequences=[stop])
    assert (ended.stop_reason, ended.stop_sequence, ended.content[0].text) == ("stop_sequence", stop, text.split(stop)[0])
    # What was there before is found.
    long = [{"role": "user", "content": PROMPT * 8}]
    found = [client.messages.create(**{**asked, "messages": long}).usage.cache_read_input_tokens for _ in range(2)]
    assert found[0] < 16 <= found[1], found

    # Thoughts, a word and a call, whole and streamed; and the conversation that goes on from there.
    reply = {**asked, "max_tokens": 600, "tools": [TOOL], "extra_body": said(f"<think>\nhm\n</think>\n\nI add.\n{CALL}")}
    with client.messages.stream(**reply) as stream:
        streamed = stream.get_final_message()
    for message in [client.messages.create(**reply), streamed]:
        thoughts, word, call = message.content
        assert (thoughts.type, thoughts.thinking.strip(), word.text.strip()) == ("thinking", "hm", "I add.")
        assert (call.type, call.name, call.input, message.stop_reason) == ("tool_use", "Add", {"first": True, "unit": "metres"}, "tool_use")
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "3 metres"}
    going_on = [*USER, {"role": "assistant", "content": message.content}, {"role": "user", "content": [result]}]
    system = [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}]
    done = client.messages.create(**{**asked, "messages": going_on, "extra_body": said("done")}, tools=[TOOL], system=system)
    assert (done.content[0].text, done.stop_reason) == ("done", "end_turn")
    for choice in [{"type": "tool", "name": "Add"}, {"type": "any", "disable_parallel_tool_use": True}]:
        forced = client.messages.create(**{**asked, "max_tokens": 600}, tools=[TOOL], tool_choice=choice)
        assert (forced.stop_reason, len(forced.content)) == ("tool_use", 1)
        Add.model_validate(forced.content[0].input)
    parsed = client.messages.parse(**{**asked, "max_tokens": 600}, output_format=Add, thinking={"type": "disabled"})
    assert isinstance(parsed.parsed_output, Add)

    async def asynchronous():
        async with anthropic.AsyncAnthropic(base_url=server.url, auth_token="none", max_retries=0) as client:
            async with client.messages.stream(**asked) as stream:
                return await stream.get_final_text(), (await client.messages.create(**asked)).content[0].text

    assert asyncio.run(asynchronous()) == (text, text)
    assert [model.id for model in client.models.list()] == [MODEL]
    assert "claude" in raised(anthropic.NotFoundError, lambda: client.messages.create(**{**asked, "model": "claude"}))
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}}
    pictured = {**asked, "messages": [{"role": "user", "content": [image]}]}
    said_so = raised(anthropic.BadRequestError, lambda: client.messages.create(**pictured))
    assert "invalid_request_error" in said_so and "images are not read" in said_so, said_so
    too_long = {**asked, "messages": [{"role": "user", "content": PROMPT * 1000}]}
    assert "context" in raised(anthropic.BadRequestError, lambda: client.messages.create(**too_long))


def of_openai(server):
    client = openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0, timeout=120)
    asked = dict(model=MODEL, messages=USER, max_tokens=600, temperature=0)
    parsed = client.chat.completions.parse(**asked, response_format=Add).choices[0].message.parsed
    assert isinstance(parsed, Add)
    with client.chat.completions.stream(**asked, response_format=Add) as stream:
        assert stream.get_final_completion().choices[0].message.parsed == parsed
    tool = openai.pydantic_function_tool(Add)
    called = client.chat.completions.parse(**asked, tools=[tool], tool_choice="required", parallel_tool_calls=False)
    (call,) = called.choices[0].message.tool_calls
    assert isinstance(call.function.parsed_arguments, Add)
    client.completions.create(model=MODEL, prompt=PROMPT, max_tokens=4)
    assert [model.id for model in client.models.list()] == [MODEL]
    raised(openai.NotFoundError, lambda: client.chat.completions.create(**{**asked, "model": "gpt"}))
    raised(openai.BadRequestError, lambda: client.chat.completions.create(**asked, n=1000))


def of_langchain(server):
    """Both of its packages by the same calls."""
    own = dict(model=MODEL, temperature=0, max_retries=0, timeout=120)
    of_openai = langchain_openai.ChatOpenAI(**own, base_url=server.url + "/v1", api_key="none", max_tokens=600)
    of_anthropic = langchain_anthropic.ChatAnthropic(**own, base_url=server.url, api_key="none", max_tokens=600)
    texts = []
    for chat, missing, bad in [
        (of_openai, openai.NotFoundError, openai.BadRequestError),
        (of_anthropic, anthropic.NotFoundError, anthropic.BadRequestError),
    ]:
        short = chat.model_copy(update={"max_tokens": 16})
        text = short.invoke(PROMPT).text
        assert "".join(piece.text for piece in short.stream(PROMPT)) == text
        assert [reply.text for reply in short.batch([PROMPT, PROMPT])] == [text, text]
        assert asyncio.run(short.ainvoke(PROMPT)).text == text
        assert short.invoke(PROMPT).usage_metadata["output_tokens"] == 16
        texts.append(text)
        bound = chat.bind_tools([Add], tool_choice="Add")
        (call,) = bound.invoke(PROMPT).tool_calls
        Add.model_validate(call["args"])
        assert call["name"] == "Add"
        pieces = None
        for piece in bound.stream(PROMPT):
            pieces = piece if pieces is None else pieces + piece
        assert [(one["name"], one["args"]) for one in pieces.tool_calls] == [("Add", call["args"])]
        for method in ["function_calling", "json_schema"]:
            assert isinstance(chat.with_structured_output(Add, method=method).invoke(PROMPT), Add), method
        name = "model_name" if chat is of_openai else "model"
        raised(missing, lambda: chat.model_copy(update={name: "other"}).invoke(PROMPT))
        raised(bad, lambda: chat.invoke(PROMPT * 1000))
    assert texts[0] == texts[1]
    tokens = server.post("/tokenize", {"messages": USER})[2]["count"]
    assert of_anthropic.get_num_tokens_from_messages([langchain_core.messages.HumanMessage(PROMPT)]) == tokens


def of_litellm(server):
    for name, base in [("openai", server.url + "/v1"), ("hosted_vllm", server.url + "/v1"), ("anthropic", server.url)]:
        asked = dict(model=f"{name}/{MODEL}", api_base=base, api_key="none", messages=USER, temperature=0, max_retries=0)
        text = litellm.completion(**asked, max_tokens=16).choices[0].message.content
        pieces = litellm.completion(**asked, max_tokens=16, stream=True)
        assert "".join(piece.choices[0].delta.content or "" for piece in pieces) == text
        forced = {"tool_choice": {"type": "function", "function": {"name": "Add"}}}
        if name == "hosted_vllm":
            # It takes `additionalProperties` out of schemas, without which the model writes more and more.
            forced = {"extra_body": said(CALL)}
        called = litellm.completion(**asked, max_tokens=600, tools=[FUNCTION], **forced).choices[0]
        Add.model_validate_json(called.message.tool_calls[0].function.arguments)
        kept = litellm.completion(**asked, max_tokens=600, response_format=Add).choices[0].message
        Add.model_validate_json(kept.content)
        raised(litellm.NotFoundError, lambda: litellm.completion(**{**asked, "model": f"{name}/other"}, max_tokens=1))
        raised(litellm.BadRequestError, lambda: litellm.completion(**asked, max_tokens=1, top_p=5))
    messages = asyncio.run(litellm.anthropic.messages.acreate(
        model=f"anthropic/{MODEL}", api_base=server.url, api_key="none", messages=USER, max_tokens=16))
    assert messages["stop_reason"] == "max_tokens", messages


def of_instructor(server):
    of_openai = openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0)
    of_anthropic = anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0)
    asked = dict(model=MODEL, messages=USER, max_tokens=600, response_model=Add, max_retries=1)
    for mode in [instructor.Mode.TOOLS, instructor.Mode.TOOLS_STRICT, instructor.Mode.JSON_SCHEMA]:
        assert isinstance(instructor.from_openai(of_openai, mode=mode).create(**asked, temperature=0), Add), mode
    assert isinstance(instructor.from_anthropic(of_anthropic).create(**asked, extra_body={"temperature": 0}), Add)


def keys():
    """What a client is told without the right key, and of too much."""
    with tempfile.NamedTemporaryFile("w", suffix=".keys") as file, chat_template() as template:
        file.write("right\n")
        file.flush()
        with Server(*template, "--api-key-file", file.name, "--max-body", "4096") as server:
            asked = dict(model=MODEL, max_tokens=1, messages=USER)
            right, wrong = (anthropic.Anthropic(base_url=server.url, api_key=key, max_retries=0) for key in ["right", "wrong"])
            assert right.messages.create(**asked).usage.output_tokens == 1
            raised(anthropic.AuthenticationError, lambda: wrong.messages.create(**asked))
            large = {**asked, "messages": [{"role": "user", "content": PROMPT * 1000}]}
            assert "request_too_large" in raised(anthropic.RequestTooLargeError, lambda: right.messages.create(**large))
            chat = openai.OpenAI(base_url=server.url + "/v1", api_key="wrong", max_retries=0)
            raised(openai.AuthenticationError, lambda: chat.chat.completions.create(**asked))
            for name, base in [("openai", server.url + "/v1"), ("anthropic", server.url)]:
                with_litellm = dict(model=f"{name}/{MODEL}", api_base=base, api_key="wrong", messages=USER, max_retries=0)
                raised(litellm.AuthenticationError, lambda: litellm.completion(**with_litellm))


def main():
    flags = ["--tool-call-parser", "hermes", "--reasoning-parser", "qwen3"]
    with chat_template() as template, Server(*template, *flags) as server:
        for test in [of_anthropic, of_openai, of_langchain, of_litellm, of_instructor]:
            timed(test, server)
    timed(keys)


if __name__ == "__main__":
    main()
