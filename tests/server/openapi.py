"""The OpenAPI page against what `piecewise serve` takes: a field is listed if, and only if, its endpoint
takes it.

    python3 tests/server/openapi.py
"""

import http.client
import json
import re
import tempfile

from encoders import SETTINGS, with_words
from harness import ROOT, Server

# Beside them nothing is needed, and little is computed.
OF_TEXT = {
    **dict.fromkeys(["/v1/completions", "/completions"], [{}]),
    **dict.fromkeys(["/v1/chat/completions", "/chat/completions"], [{"messages": []}]),
    "/v1/messages": [{"max_tokens": 1, "messages": []}],
    "/v1/messages/count_tokens": [{"messages": []}],
    "/tokenize": [{"prompt": "x"}, {"messages": []}],
    "/detokenize": [{"tokens": [1]}],
}
OF_ENCODERS = {
    **dict.fromkeys(["/v1/embeddings", "/embeddings"], [{"input": "one"}]),
    **dict.fromkeys(["/v1/score", "/score"], [{"text_1": "one", "text_2": "two"}]),
    **dict.fromkeys(["/v1/rerank", "/v2/rerank", "/rerank"], [{"query": "one", "documents": ["two"]}]),
}


def words():
    """All that a field could be called: each name between quotes in the server's sources."""
    found = set()
    for file in (ROOT / "server/src").rglob("*.rs"):
        found |= set(re.findall(r'"([a-z][a-z0-9_]*)"', file.read_text()))
    assert len(found) > 200
    return sorted(found)


def taken(server, path, least):
    """The fields that an endpoint takes, and not only to say that it does not support them."""
    connection = http.client.HTTPConnection(*server.address, timeout=60)

    def code(**more):
        connection.request("POST", path, json.dumps({**least, **more}))
        error = json.loads(connection.getresponse().read()).get("error") or {}
        return error.get("code"), error.get("param")

    found = set()
    for word in words():
        # Null is what a field has that is left out, and fits each of them.
        if word in least or code(**{word: None}) != ("unknown_parameter", word):
            if code(**{word: {"odd": 1}}) != ("unsupported_parameter", word):
                found.add(word)
    connection.close()
    return found


def check(server, endpoints):
    api = json.loads(server.get("/openapi.json")[1])
    for path, bodies in endpoints.items():
        schema = api["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
        listed, found = set(schema["properties"]), set().union(*(taken(server, path, least) for least in bodies))
        assert "model" in listed and set(schema["required"]) <= listed
        assert listed == found, f"{path}: listed and not taken {listed - found}, taken and not listed {found - listed}"
    return api["paths"]


def main():
    with Server() as server:
        paths = check(server, OF_TEXT)
    with tempfile.TemporaryDirectory() as folder:
        with Server(source=("--model", with_words(folder, "bert")), settings=SETTINGS) as server:
            check(server, OF_ENCODERS)
    assert {path for path, methods in paths.items() if "post" in methods} == {*OF_TEXT, *OF_ENCODERS}
    print("ok")


if __name__ == "__main__":
    main()
