"""The router SMG before two `piecewise serve`: the turns of a conversation go to the same one.

PYTHONPATH="$(.ci/install-smg)" python3 tests/worker/router.py
"""

import json
import subprocess
import sys
import time
import urllib.error
import urllib.request

from fleet import FAST, GOLDEN, Process, Server, free_port, samples, total, until

CONVERSATIONS, TURNS = 8, 6


class Router(Process):
    def __init__(self, *servers):
        self.port, self.metrics_port = free_port(), free_port()
        super().__init__([
            sys.executable, "-m", "smg", "launch", "--worker-urls", *[server.url for server in servers],
            "--policy", "cache_aware", "--host", "127.0.0.1", "--port", str(self.port),
            "--prometheus-port", str(self.metrics_port), "--prometheus-host", "127.0.0.1"])

    def post(self, body):
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}/v1/completions", json.dumps(body).encode(),
            {"content-type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return answer.status, json.loads(answer.read())
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()
        except OSError as error:
            return 0, repr(error)

    def metrics(self):
        with urllib.request.urlopen(f"http://127.0.0.1:{self.metrics_port}/metrics", timeout=10) as answer:
            return samples(answer.read().decode())


def served(server):
    return total(server.metrics(), "vllm:request_success_total")


def main():
    started = time.monotonic()
    settings = [*FAST, "--max-seq-len", "1024"]
    with Server(settings=settings) as first, Server(settings=settings) as second:
        servers = [first, second]
        router = Router(*servers)
        try:
            ask = {"model": "tiny-qwen3", "temperature": 0, "max_tokens": 4}
            until("the router is up", lambda: router.post({**ask, "prompt": "warm"})[0] == 200, 60)
            for case in GOLDEN:
                status, answer = router.post({**ask, "prompt": case["prompt"], "max_tokens": 64,
                                              "ignore_eos": True, "return_token_ids": True})
                assert status == 200, answer
                ids = answer["choices"][0].get("token_ids")
                assert ids in (case["greedy_fp32"], None), "other tokens through the router"
            before = router.metrics()
            hits = [total(server.metrics(), "vllm:prefix_cache_hits_total") for server in servers]
            queries = [total(server.metrics(), "vllm:prefix_cache_queries_total") for server in servers]
            texts = [f"# conversation {n}\n" + f"def work_{n}(self, item_{n}):\n    return {n}\n" * 12
                     for n in range(CONVERSATIONS)]
            homes = [set() for _ in texts]
            for turn in range(TURNS):
                for n in range(CONVERSATIONS):
                    counts = [served(server) for server in servers]
                    status, answer = router.post({**ask, "prompt": texts[n], "max_tokens": 8})
                    assert status == 200, answer
                    now = [served(server) for server in servers]
                    homes[n].add([b - a for a, b in zip(counts, now)].index(1))
                    texts[n] += answer["choices"][0]["text"] + f"\n# turn {turn}\n" + f"value_{turn} = {n}\n" * 6
            assert all(len(home) == 1 for home in homes), f"a conversation was moved: {homes}"
            assert {next(iter(home)) for home in homes} == {0, 1}, "one server has every conversation"
            # By our metrics every turn but the first found what the ones before it had computed.
            found = sum(total(s.metrics(), "vllm:prefix_cache_hits_total") for s in servers) - sum(hits)
            asked = sum(total(s.metrics(), "vllm:prefix_cache_queries_total") for s in servers) - sum(queries)
            assert found > 0.6 * asked, (found, asked)
            # And by its own it chose by what it knows of prefixes.
            after = router.metrics()
            chosen, matched = (
                total(after, *what) - total(before, *what) for what in [
                    ("smg_worker_selection_total", 'policy="cache_aware"'),
                    ("smg_cache_aware_policy_branch_total", 'branch="tree_match"')])
            assert chosen == CONVERSATIONS * TURNS and matched >= CONVERSATIONS * (TURNS - 1), (chosen, matched)
            print(f"SMG: {CONVERSATIONS} conversations of {TURNS} turns, each at one server, {matched:.0f} of "
                  f"{chosen:.0f} turns by their prefix, {found / asked:.0%} "
                  f"of their prompts from the prefix cache, {time.monotonic() - started:.0f} s")
        finally:
            router.process.terminate()
            try:
                router.process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                pass
            router.drop()


if __name__ == "__main__":
    main()
