"""A model, an op and a pass of one's own under the stock commands: `PIECEWISE_BIN` is the program of examples/outside.
Served over HTTP in every graph mode with equal answers, compiled once, held to settings, and known to each command."""

import concurrent.futures
import json
import pathlib
import subprocess
import tempfile

from harness import BINARY, ROOT, Server, timed, until

MODEL = str(ROOT / "examples/outside/model")
MODES = ["none", "piecewise", "full", "full_decode_only", "full_and_piecewise"]
SETTINGS = ["--max-num-tokens", "32", "--max-num-seqs", "4", "--max-seq-len", "128"]
# Longer and shorter than a step, and more than run at once.
PROMPTS = ["x" * n + "what comes next?" for n in (1, 2, 7, 20, 45, 80)]


def command(*arguments, input=None):
    """What a command of the program writes, which must not fail."""
    done = subprocess.run([BINARY, *arguments], cwd=ROOT, input=input, text=True, capture_output=True, timeout=300)
    assert done.returncode == 0 and "panicked" not in done.stderr, (arguments, done.stdout, done.stderr)
    return done.stdout


def refused(*arguments):
    done = subprocess.run([BINARY, *arguments], cwd=ROOT, text=True, capture_output=True, timeout=300)
    assert done.returncode == 1 and "panicked" not in done.stderr, (arguments, done.stdout, done.stderr)
    return done.stderr


def serve(cache, *flags):
    return Server(*flags, source=("--model", MODEL), settings=[*SETTINGS, "--cache-dir", cache])


def complete(server, prompt, **more):
    body = {"prompt": prompt, "max_tokens": 12, "temperature": 0, "ignore_eos": True, "return_token_ids": True, **more}
    status, _, answer = server.post("/v1/completions", body)
    assert status == 200, answer
    return answer["choices"][0]


def every_mode_answers_alike_and_only_the_first_start_compiles(cache):
    first = json.loads(command("compile", "--model", MODEL, *SETTINGS, "--cache-dir", cache, "--json"))
    assert first["compiled"]["piece"] > 0, first
    expected = None
    for mode in MODES:
        with serve(cache, "--graph-mode", mode, "--strict") as server:
            alone = [complete(server, prompt)["token_ids"] for prompt in PROMPTS]
            with concurrent.futures.ThreadPoolExecutor(len(PROMPTS)) as pool:
                company = [choice["token_ids"] for choice in pool.map(lambda prompt: complete(server, prompt), PROMPTS)]
            expected = expected or alone
            assert all(len(ids) == 12 for ids in alone) and alone == company == expected, (mode, alone, company)
            metrics = server.metrics()
            made = [value for name, value in metrics.items() if 'from="compiler"' in name]
            found = [value for name, value in metrics.items() if 'from="cache"' in name]
            assert not any(made) and sum(found) >= first["compiled"]["piece"], (mode, made, found)
            replays = sum(value for name, value in metrics.items() if name.startswith("piecewise_steps_total") and 'mode="none"' not in name)
            assert (replays > 0) == (mode != "none"), (mode, replays)


def requests_may_ask_for_all_of_sampling(cache):
    with serve(cache, "--admin") as server:
        choice = complete(server, PROMPTS[0], logprobs=3, repetition_penalty=1.3, logit_bias={"65": 50})
        assert choice["text"].startswith("A"), choice
        assert len(choice["logprobs"]["token_logprobs"]) == 12, choice
        schema = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"enum": ["yes", "no"]}}}
        chat = {"messages": [{"role": "user", "content": "well?"}], "response_format": schema, "max_tokens": 16}
        status, _, answer = server.post("/v1/chat/completions", chat)
        said = answer["choices"][0]["message"]["content"]
        assert status == 200 and json.loads(said) in ("yes", "no"), answer
        assert server.get("/graphs")[0] == 200 and server.get("/v1/models")[0] == 200


def settings_are_followed_or_refused(cache):
    with serve(cache) as server:
        until("the room of four", lambda: "4 sequences at once, 4 of them at their longest, 128 tokens" in server.said())
    inspect = lambda settings: json.loads(command("inspect", "--model", MODEL, *settings, "--cache-dir", cache, "--sizes", "--json"))["memory"]
    small = inspect(SETTINGS)
    # The rows of keys and values, of which each sequence needs 128 at its longest, take 256 bytes each.
    budget = sum(small[part] for part in ["slots", "scratch", "weights", "states", "modules"]) - 256 * 128
    with serve(cache, "--memory-budget", str(budget)) as server:
        assert len(complete(server, PROMPTS[1])["token_ids"]) == 12
        until("the room of three", lambda: "4 sequences at once, 3 of them at their longest" in server.said())
    large = inspect([*SETTINGS[:-1], "256"])
    assert small["states"] + 4 * 128 * 256 == large["states"], (small, large)
    half = inspect([*SETTINGS, "--dtype", "bf16"])
    assert half["states"] < small["states"], (half, small)
    assert "max_position_embeddings = 512" in refused("compile", "--model", MODEL, "--max-seq-len", "513")


def every_command_knows_the_model(cache):
    flags = [*SETTINGS, "--cache-dir", cache]
    text = json.loads(command("generate", "--model", MODEL, *flags, "--prompt", PROMPTS[2], "--max-tokens", "4", "--json"))
    assert len(text["ids"]) == 4, text
    assert command("chat", "--model", MODEL, *flags, "--max-tokens", "4", input="hello\n")
    assert "dtype" in command("worker", "--model", MODEL, *flags, "--handshake", "tcp://127.0.0.1:1", "--rank", "0", "--print-config")
    explained = command("cache", "explain", "--model", MODEL, *flags)
    assert "missing" not in explained, explained
    measured = command("bench", "--model", MODEL, "--batch", "1", "--context", "16", "--steps", "2", "--cache-dir", cache)
    assert measured, "a table"
    with tempfile.TemporaryDirectory() as folder:
        graph = pathlib.Path(folder, "graph.pw")
        # As it was built: the pass has not run.
        graph.write_text(command("inspect", "--model", MODEL, *flags, "--stop-after", "canonicalize"))
        reports = json.loads(command("opt", str(graph), "--json"))
        doubling = [report for report in reports if report["pass"] == "doubling"]
        assert [report["report"]["matched"]["doubled"] for report in doubling] == [3], reports
        ran = command("run", str(graph), "--weights", MODEL, "--ids", "104,105", "--cache-dir", cache)
        assert "logits f32 [2, 256]" in ran, ran


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as cache:
        for test in [
            every_mode_answers_alike_and_only_the_first_start_compiles,
            requests_may_ask_for_all_of_sampling,
            settings_are_followed_or_refused,
            every_command_knows_the_model,
        ]:
            timed(test, cache)
