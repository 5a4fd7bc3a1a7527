"""docs/scaling.md and docs/scaling.yaml say what works: the commands of the first are run as they stand, and
every flag in both is one of the program that it is given to.

PIECEWISE_VLLM_RS="$(.ci/install-vllm-rs)" PYTHONPATH="$(.ci/install-smg)" python3 tests/worker/documents.py
"""

import json
import pathlib
import re
import subprocess
import sys
import tempfile
import urllib.request

from fleet import BINARY, EXPECTED, FAST, IDS, MODEL, PROMPTS, ROOT, VLLM_RS, Process, free_port, needs_vllm_rs, until

PAGE = (ROOT / "docs/scaling.md").read_text()
FLAG = re.compile(r"(?<![\w-])--[a-z][a-z0-9-]+")
PROGRAMS = {"vllm-rs": [VLLM_RS], "piecewise": [BINARY], "python": [sys.executable]}


def flags_of(*command):
    run = subprocess.run([*command, "--help"], capture_output=True, text=True, timeout=60)
    return set(FLAG.findall(run.stdout)) | {"--release"}


def commands(first_word):
    """The code blocks whose first word is this one, as lists of words without comments."""
    blocks = re.findall(r"```\n(.*?)```", PAGE, re.DOTALL)
    return [[line.split("#")[0].split() for line in block.splitlines()]
            for block in blocks if block.startswith(first_word)]


def flags():
    helps = {
        "vllm-rs": flags_of(VLLM_RS, "serve"), "worker": flags_of(BINARY, "worker"),
        "serve": flags_of(BINARY, "serve"), "smg": flags_of(sys.executable, "-m", "smg", "launch"),
    }
    assert all(len(found) > 20 for found in helps.values()), helps
    for block in commands("vllm-rs") + commands("piecewise"):
        for words in block:
            program = words[0] if words[0] == "vllm-rs" else words[2] if words[0] == "python" else words[1]
            unknown = set(FLAG.findall(" ".join(words))) - helps[program]
            assert not unknown, (words, unknown)
    # Every setting of a model is a flag of a worker, but for those of encoders.
    sections = (ROOT / "docs/settings.md").read_text().split("\n## `")
    of_models = "".join(section for section in sections if not section.startswith("server."))
    settings = re.findall(r"^\S.*; `(--[a-z-]+)`", of_models, re.MULTILINE)
    assert set(settings) - helps["worker"] == {"--capture-item-log", "--max-num-frames"}, settings
    # In a sentence a flag stands for one of the programs of the page.
    unknown = set(FLAG.findall(PAGE)) - set.union(*helps.values())
    assert not unknown, unknown
    containers = re.split(r"- name: (front-end|worker)\n +image:", (ROOT / "docs/scaling.yaml").read_text())[1:]
    counted = 0
    for name, text in zip(containers[::2], containers[1::2], strict=True):
        asked = re.findall(r"^ +- (--[a-z-]+)(?:=|$)", text, re.MULTILINE)
        unknown = set(asked) - helps["vllm-rs" if name == "front-end" else name]
        assert not unknown, (name, unknown)
        counted += len(asked)
    assert counted > 10, counted


def started(block, replaced, more):
    """Starts what a block says, with other ports and a model, and flags for a short test."""
    processes = []
    for words in block:
        words = [re.sub("|".join(replaced), lambda found: replaced[found[0]], word) for word in words]
        added = next(flags for of, flags in more.items() if of in words)
        processes.append(Process([*PROGRAMS[words[0]], *words[1:], *added]))
    return processes


def right(port, model):
    def ask():
        body = {"model": model, "prompt": PROMPTS[0], "max_tokens": 64, "temperature": 0, **IDS}
        request = urllib.request.Request(
            f"http://127.0.0.1:{port}/v1/completions", json.dumps(body).encode(), {"content-type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return json.loads(answer.read())
        except OSError:
            return None
    choice = until("an answer", ask, 120)["choices"][0]
    assert choice.get("token_ids") in (EXPECTED[PROMPTS[0]], None), choice


def behind_the_front_end(address, *flags):
    [block] = commands("vllm-rs")
    assert len(block) == 3, block
    handshake, port = str(free_port()), str(free_port())
    with tempfile.TemporaryDirectory() as state:
        processes = started(block, {"DIR": str(MODEL), "127.0.0.1": address, "29550": handshake}, {
            "vllm-rs": [*flags, "--port", port, "--reasoning-parser", "none", "--served-model-name", "tiny"],
            "worker": [*FAST, "--state-dir", state]})
        try:
            right(port, "tiny")
            noted = [json.loads(note.read_text()) for note in pathlib.Path(state).iterdir()]
            ways = [way for note in noted for way in note.values()]
            assert len(ways) == 4 and all(f"//{address}:" in way for way in ways), ways
        finally:
            [process.drop() for process in reversed(processes)]


def behind_the_router():
    [block] = [block for block in commands("piecewise serve") if len(block) == 3]
    # There is one device here.
    block = [words[:words.index("--device")] if "--device" in words else words for words in block]
    first, second, port = (str(free_port()) for _ in range(3))
    processes = started(block, {"DIR": str(MODEL), "8001": first, "8002": second}, {
        "serve": FAST, "smg": ["--host", "127.0.0.1", "--port", port, "--prometheus-port", str(free_port())]})
    try:
        right(port, MODEL.name)
    finally:
        [process.drop() for process in reversed(processes)]


def main():
    needs_vllm_rs()
    flags()
    behind_the_front_end("127.0.0.1")
    # For workers on other machines: the address that the page names is not the usual one.
    behind_the_front_end("127.0.0.2", "--data-parallel-address", "127.0.0.2")
    behind_the_router()
    print("docs/scaling: its commands work as they stand, and every flag is known")


if __name__ == "__main__":
    main()
