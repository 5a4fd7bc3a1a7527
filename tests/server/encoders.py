"""openai-python, and plain HTTP where OpenAI has no such endpoint, against `piecewise serve` of encoders:
PYTHONPATH="$(.ci/install-openai)" python3 tests/server/encoders.py"""

import base64
import concurrent.futures
import json
import math
import os
import random
import shutil
import signal
import socket
import struct
import subprocess
import tempfile
from pathlib import Path

import openai

from harness import BINARY, ROOT, Server, promtool, until

FIXTURES = ROOT / "tests/fixtures/encoders"
SETTINGS = ["--dtype", "f32", "--max-num-tokens", "128", "--capture-num-tokens", "16,64,128"]
WORDS = {"one": 7, "two": 8, "three": 9, "?": 10}
TEXTS = ["one two three", "two", "three three two one one"]


def with_words(folder, name, **config):
    """A fixture with a tokenizer of a few words, whose pairs have two types."""
    for file in ("config.json", "model.safetensors"):
        shutil.copy(FIXTURES / name / file, folder)
    both = lambda kind, first: [{"Sequence": {"id": i, "type_id": n}} for n, i in enumerate("AB")][: 2 - first]
    tokenizer = {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None,
        "pre_tokenizer": {"type": "Whitespace"}, "decoder": None,
        "post_processor": {
            "type": "TemplateProcessing", "special_tokens": {},
            "single": both("single", 1), "pair": both("pair", 0),
        },
        "model": {"type": "WordLevel", "vocab": WORDS, "unk_token": "?"},
    }
    (Path(folder) / "tokenizer.json").write_text(json.dumps(tokenizer))
    written = json.loads((Path(folder) / "config.json").read_text()) | config
    (Path(folder) / "config.json").write_text(json.dumps(written))
    return str(folder)


def goldens(name, kind):
    """The tensors of a fixture whose names begin with `kind`, in their order."""
    data = (FIXTURES / name / "golden.safetensors").read_bytes()
    length = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8 : 8 + length])
    tensors = {}
    for key, tensor in header.items():
        if key.startswith(kind + "_"):
            start, end = (8 + length + at for at in tensor["data_offsets"])
            code = {"F32": "f", "I32": "i"}[tensor["dtype"]]
            tensors[int(key.rsplit("_", 1)[1])] = list(struct.unpack(f"<{(end - start) // 4}{code}", data[start:end]))
    return [tensors[i] for i in sorted(tensors)]


def close(found, expected, tolerance=2e-5):
    off = math.sqrt(sum((a - b) ** 2 for a, b in zip(found, expected, strict=True)))
    assert off <= tolerance * math.sqrt(sum(b * b for b in expected)), off


def rounded(vector):
    """Decimals as the f32 that they stand for."""
    return list(struct.unpack(f"<{len(vector)}f", struct.pack(f"<{len(vector)}f", *vector)))


def embeddings(server, client):
    types, ids, expected = (goldens("bert", kind) for kind in ("token_types", "ids", "embedding"))
    # A request has no token types.
    plain = [i for i, types in enumerate(types) if not any(types)]
    assert len(plain) == 2
    ids, expected = ([values[i] for i in plain] for values in (ids, expected))
    reply = client.embeddings.create(model="bert", input=ids, encoding_format="float")
    assert [datum.index for datum in reply.data] == list(range(len(ids)))
    for datum, vector in zip(reply.data, expected, strict=True):
        close(datum.embedding, vector)
    assert reply.usage.prompt_tokens == reply.usage.total_tokens == sum(map(len, ids))
    assert (reply.object, reply.model) == ("list", "bert")
    # What the client asks for by itself is Base64; the same bits come out.
    packed = client.embeddings.create(model="bert", input=ids)
    assert [d.embedding for d in packed.data] == [rounded(d.embedding) for d in reply.data]
    raw = server.post("/v1/embeddings", {"input": ids[0], "encoding_format": "base64"})[2]
    bytes_ = base64.b64decode(raw["data"][0]["embedding"])
    assert list(struct.unpack(f"<{len(bytes_) // 4}f", bytes_)) == packed.data[0].embedding
    alone = client.embeddings.create(model="bert", input=ids[1], encoding_format="float")
    assert alone.data[0].embedding == reply.data[1].embedding
    # Texts, alone and as a list, are their ids.
    by_ids = [[WORDS[word] for word in text.split()] for text in TEXTS]
    texts = client.embeddings.create(model="bert", input=TEXTS, encoding_format="float")
    lists = client.embeddings.create(model="bert", input=by_ids, encoding_format="float")
    assert [d.embedding for d in texts.data] == [d.embedding for d in lists.data]
    one = client.embeddings.create(model="bert", input=TEXTS[0], encoding_format="float")
    assert one.data[0].embedding == texts.data[0].embedding
    tokens = server.post("/tokenize", {"prompt": TEXTS[0]})[2]
    assert (tokens["tokens"], tokens["max_model_len"]) == (by_ids[0], 64)
    assert client.models.list().data[0].id == "bert"


def refusals(server):
    def refused(path, body, param, words, status=400):
        found, _, answer = server.post(path, body)
        error = answer["error"]
        assert (found, error["param"]) == (status, param), answer
        assert words in error["message"], answer

    bad = lambda body, param, words, status=400: refused("/v1/embeddings", body, param, words, status)
    bad({}, "input", "is missing")
    bad({"input": []}, "input", "empty list")
    bad({"input": ""}, "input", "no tokens")
    bad({"input": ["one", ""]}, "input[1]", "no tokens")
    bad({"input": [[7], []]}, "input[1]", "empty")
    bad({"input": [7, "one"]}, "input", "whole numbers")
    bad({"input": {"text": "one"}}, "input", "must be a text")
    bad({"input": ["one", 7]}, "input[1]", "must be a text")
    bad({"input": [320]}, "input", "out of range")
    bad({"input": [[7], [7] * 65]}, "input[1]", "at most 64")
    bad({"input": ["one"] * 2049}, "input", "at most 2048")
    bad({"input": "one", "dimensions": 4}, "dimensions", "is_matryoshka")
    bad({"input": "one", "dimensions": 97}, "dimensions", "have 96")
    bad({"input": "one", "encoding_format": "int8"}, "encoding_format", "base64")
    bad({"input": "one", "messages": [{"role": "user"}]}, "messages", "not supported")
    bad({"input": "one", "truncate_prompt_tokens": 4}, "truncate_prompt_tokens", "not supported")
    bad({"input": "one", "colour": 1}, "colour", "no such field")
    bad({"input": "one", "model": "other"}, "model", "no model", 404)
    refused("/v1/completions", {"prompt": "one"}, "model", "writes no text")
    refused("/v1/chat/completions", {"messages": [{"role": "user", "content": "one"}]}, "model", "writes no text")
    refused("/v1/rerank", {"query": "one"}, "documents", "is missing")
    refused("/v1/rerank", {"query": "one", "documents": []}, "documents", "at least one")
    refused("/v1/rerank", {"documents": ["one"]}, "query", "is missing")
    refused("/v1/rerank", {"query": "one", "documents": [{"image": "x"}]}, "documents[0].image", "not supported")
    refused("/v1/rerank", {"query": "one", "documents": ["one", ""]}, "documents[1]", "no tokens")
    refused("/v1/rerank", {"query": "one", "documents": ["one"], "rank_fields": ["a"]}, "rank_fields", "not supported")
    refused("/v1/score", {"text_1": ["one", "two"], "text_2": ["one"] * 3}, "text_1", "2 texts for 3")
    refused("/v1/score", {"text_1": "one"}, "text_2", "is missing")


def by_angle(server, client):
    vectors = [d.embedding for d in client.embeddings.create(model="bert", input=TEXTS, encoding_format="float").data]
    cosine = lambda a, b: sum(x * y for x, y in zip(a, b)) / math.sqrt(sum(x * x for x in a) * sum(y * y for y in b))
    expected = [cosine(vectors[0], vector) for vector in vectors]
    score = server.post("/v1/score", {"text_1": TEXTS[0], "text_2": TEXTS})[2]
    assert [datum["index"] for datum in score["data"]] == [0, 1, 2]
    close([datum["score"] for datum in score["data"]], expected)
    ranked = server.post("/rerank", {"query": TEXTS[0], "documents": TEXTS})[2]["results"]
    assert ranked[0]["index"] == 0 and ranked[0]["document"]["text"] == TEXTS[0]
    assert abs(ranked[0]["relevance_score"] - 1) < 1e-6


def together(server, client):
    """Requests that come together share steps, and each has the bits that it has alone."""
    rng = random.Random(5)
    texts = [" ".join(rng.choices(list(WORDS)[:3], k=rng.randint(1, 24))) for _ in range(60)]
    alone = {text: client.embeddings.create(model="bert", input=text, encoding_format="float").data[0].embedding for text in texts}
    hits = lambda: server.metrics()['piecewise_encoder_items_total{outcome="hit",path="items"}']
    steps = lambda: server.sum("piecewise_encoder_replays_total")
    before, run = hits(), steps()
    calls = [rng.choices(texts, k=rng.randint(1, 9)) for _ in range(150)]

    def ask(call):
        reply = client.embeddings.create(model="bert", input=call, encoding_format="float")
        assert [d.embedding for d in reply.data] == [alone[text] for text in call]

    with concurrent.futures.ThreadPoolExecutor(32) as pool:
        list(pool.map(ask, calls))
    items = sum(map(len, calls))
    assert hits() - before == items
    assert steps() - run < items / 3, f"{steps() - run} steps for {items} items"


def asked(server):
    """How many requests are there."""
    return server.sum("vllm:num_requests_running") + server.sum("vllm:num_requests_waiting")


def leaving(server, client):
    """Who leaves is forgotten, and others are served."""
    host, before = server.address, server.sum("piecewise_encoder_items_total")
    for _ in range(10):
        body = json.dumps({"input": ["three " * 60] * 1500}).encode()
        with socket.create_connection(host) as gone:
            head = f"POST /v1/embeddings HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
            gone.sendall(head.encode() + body)
            until("it is there", lambda: asked(server))
        until("it is forgotten", lambda: not asked(server))
        client.embeddings.create(model="bert", input="one")
    assert server.sum("piecewise_encoder_items_total") - before < 10 * 1500, "all of them were read"


def metrics(server):
    samples = server.metrics()
    label = 'engine="0",model_name="bert"'
    assert samples[f"vllm:prompt_tokens_total{{{label}}}"] > 0
    ended = samples['vllm:request_success_total{engine="0",finished_reason="stop",model_name="bert"}']
    assert ended == samples[f"vllm:e2e_request_latency_seconds_count{{{label}}}"] > 100
    assert samples["piecewise_graphs"] > 0
    tokens = {k: v for k, v in samples.items() if k.startswith("piecewise_encoder_tokens_total")}
    assert len(tokens) == 2 and min(tokens.values()) > 0, tokens
    assert server.sum("piecewise_encoder_items_total") >= server.sum("piecewise_encoder_replays_total") > 0
    promtool(server)
    document = json.loads(server.get("/openapi.json")[1])
    for path in ("/v1/embeddings", "/v1/score", "/v1/rerank"):
        assert path in document["paths"]


def drains(server, client):
    """A request that is there when the server is told to end has its answer; a later one is refused."""
    texts = ["three " * 60] * 400
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        running = pool.submit(client.embeddings.create, model="bert", input=texts)
        until("it is there", lambda: asked(server))
        server.signal(signal.SIGTERM)
        assert len(running.result().data) == 400
    assert server.process.wait(timeout=60) == 0


def scores(folder, activation, of_logit):
    """A cross-encoder, by its own tokenizer's pairs."""
    more = {} if activation is None else {"sbert_ce_default_activation_function": activation}
    with Server(source=("--model", with_words(folder, "cross_encoder", **more)), settings=SETTINGS) as server:
        pairs = [("one two", text) for text in TEXTS]
        raw = server.post("/v1/score", {"text_1": "one two", "text_2": TEXTS, "use_activation": False})[2]
        logits = [datum["score"] for datum in raw["data"]]
        # `encode` gives the logits of the same ids and types.
        close(logits, [logit_of(folder, a, b) for a, b in pairs])
        answer = server.post("/score", {"text_1": "one two", "text_2": TEXTS})[2]
        found = [datum["score"] for datum in answer["data"]]
        close(found, [of_logit(x) for x in logits])
        tokens = sum(2 + len(text.split()) for text in TEXTS)
        assert answer["usage"] == {"prompt_tokens": tokens, "total_tokens": tokens}
        assert answer["object"] == "list" and answer["data"][0]["object"] == "score"
        both = server.post("/v1/score", {"text_1": ["one two"] * 3, "text_2": TEXTS})[2]
        assert [datum["score"] for datum in both["data"]] == found
        for path in ("/rerank", "/v1/rerank", "/v2/rerank"):
            body = {"query": "one two", "documents": [TEXTS[0], {"text": TEXTS[1]}, TEXTS[2]], "top_n": 2}
            ranked = server.post(path, body)[2]
            order = sorted(range(3), key=lambda i: -found[i])[:2]
            assert [result["index"] for result in ranked["results"]] == order
            assert [result["document"]["text"] for result in ranked["results"]] == [TEXTS[i] for i in order]
            assert [result["relevance_score"] for result in ranked["results"]] == [found[i] for i in order]
            assert ranked["usage"]["total_tokens"] == tokens
        # What is too long is named before any other is read with it.
        for body, param in [
            ({"query": "one " * 100, "documents": TEXTS}, "query"),
            ({"query": "one", "documents": ["two", "three " * 63, "one " * 100]}, "documents[2]"),
        ]:
            status, _, answer = server.post("/rerank", body)
            assert (status, answer["error"]["param"]) == (400, param), answer
        bare = server.post("/rerank", {"query": "one", "documents": TEXTS, "return_documents": False})[2]
        assert len(bare["results"]) == 3 and "document" not in bare["results"][0]
        status, _, answer = server.post("/v1/embeddings", {"input": "one"})
        assert (status, answer["error"]["param"]) == (400, "model"), answer


def logit_of(folder, first, second):
    ids = [[WORDS[word] for word in text.split()] for text in (first, second)]
    types = [0] * len(ids[0]) + [1] * len(ids[1])
    tensors = {"ids_0": ids[0] + ids[1], "token_types_0": types}
    header, data = {}, b""
    for name, values in tensors.items():
        packed = struct.pack(f"<{len(values)}i", *values)
        header[name] = {"dtype": "I32", "shape": [len(values)], "data_offsets": [len(data), len(data) + len(packed)]}
        data += packed
    head = json.dumps(header).encode()
    inputs, out = Path(folder) / "pair.safetensors", Path(folder) / "logit.safetensors"
    inputs.write_bytes(struct.pack("<Q", len(head)) + head + data)
    command = [BINARY, "encode", "--model", str(folder), "--inputs", str(inputs), "--out", str(out), "--dtype", "f32"]
    subprocess.run(command, check=True, stderr=subprocess.DEVNULL)
    written = out.read_bytes()
    length = struct.unpack("<Q", written[:8])[0]
    start, end = json.loads(written[8 : 8 + length])["logits_0"]["data_offsets"]
    return struct.unpack("<f", written[8 + length + start : 8 + length + end])[0]


def shortened(folder):
    """Matryoshka: the first elements, normalized again, where the folder says so."""
    more = {"matryoshka_dimensions": [8, 32]}
    with Server("--served-model-name", "bert", source=("--model", with_words(folder, "bert", **more)), settings=SETTINGS) as server:
        client = openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0)
        ask = lambda **more: client.embeddings.create(model="bert", input="one two", encoding_format="float", **more)
        whole, short = ask().data[0].embedding, ask(dimensions=8).data[0].embedding
        norm = math.sqrt(sum(x * x for x in whole[:8]))
        close(short, [x / norm for x in whole[:8]], 1e-6)
        assert ask(dimensions=96).data[0].embedding == whole
        status, _, answer = server.post("/v1/embeddings", {"input": "one", "dimensions": 9})
        assert status == 400 and "[8, 32]" in answer["error"]["message"], answer


def items_of_traffic(folder):
    """A log of what clients brought at a time, by which the next server has its budgets, and a line now
    and then of what became of it."""
    source = ("--model", with_words(folder, "bert"))
    log = f"{folder}/items.jsonl"
    texts = ["one " * 9, "two " * 9, "three " * 5]
    with Server("--item-log", log, "--stats-interval", "1", source=source, settings=SETTINGS) as server:
        lines = lambda: [line for line in server.said().splitlines() if "items: " in line and "hits" in line]

        def asked():
            assert server.post("/v1/embeddings", {"input": texts})[0] == 200
            return lines()

        line = until("a line", asked)[0]
        for part in ["replayed", " 0 misses", "padding", "budget 64: ", "tokens/s"]:
            assert part in line, line
        # Written while it serves: a kill loses nothing.
        calls = [json.loads(line) for line in open(log)]
        assert calls and all(call == {"path": "items", "tokens": [9, 9, 5]} for call in calls), calls
        rounds = len(calls)
        server.post("/v1/embeddings", {"input": ["two", ""]})
        server.post("/v1/embeddings", {"input": "two"})
        assert [json.loads(line)["tokens"] for line in open(log)][rounds:] == [[1]]
    settings = ["--dtype", "f32", "--max-num-tokens", "128"]
    with Server("--capture-item-log", log, source=source, settings=settings) as server:
        before = server.sum("piecewise_encoder_tokens_total")
        assert server.post("/v1/embeddings", {"input": texts})[0] == 200
        assert server.sum("piecewise_encoder_tokens_total") - before == 23, "a budget of its own has no padding"
        assert server.metrics()['piecewise_encoder_replays_total{budget="23",path="items"}'] == 1


def minilm(folder):
    """A published folder of sentence-transformers, by text."""
    golden = json.loads((FIXTURES / "minilm/sentences.json").read_text())
    expected = goldens("minilm", "embedding")
    with Server("--served-model-name", "minilm", source=("--model", folder), settings=["--dtype", "f32"]) as server:
        client = openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0)
        reply = client.embeddings.create(model="minilm", input=golden["sentences"])
        for datum, vector in zip(reply.data, expected, strict=True):
            assert sum(a * b for a, b in zip(datum.embedding, vector)) > 0.99999
        assert reply.usage.prompt_tokens == sum(map(len, golden["ids"]))


def main():
    with tempfile.TemporaryDirectory() as folder:
        source = ("--model", with_words(folder, "bert"))
        with Server("--served-model-name", "bert", source=source, settings=SETTINGS) as server:
            client = openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0, timeout=120)
            embeddings(server, client)
            refusals(server)
            by_angle(server, client)
            together(server, client)
            leaving(server, client)
            metrics(server)
            drains(server, client)
    sigmoid = lambda x: 1 / (1 + math.exp(-x))
    identity = "torch.nn.modules.linear.Identity"
    for activation, of_logit in ((None, sigmoid), (identity, lambda x: x)):
        with tempfile.TemporaryDirectory() as folder:
            scores(folder, activation, of_logit)
    with tempfile.TemporaryDirectory() as folder:
        shortened(folder)
    with tempfile.TemporaryDirectory() as folder:
        items_of_traffic(folder)
    if published := os.environ.get("PIECEWISE_MINILM"):
        minilm(published)
    else:
        print("skipped: PIECEWISE_MINILM names no folder; .ci/install-minilm fetches one")
    with Server() as server:
        for path, body in (("/v1/embeddings", {"input": "x"}), ("/rerank", {"query": "x", "documents": ["y"]})):
            status, _, answer = server.post(path, body)
            assert (status, answer["error"]["param"]) == (400, "model"), answer
    print("ok")


if __name__ == "__main__":
    main()
