"""Two workers with one compile cache, empty at first: what one has compiled serves the other.

PIECEWISE_VLLM_RS="$(.ci/install-vllm-rs)" python3 tests/worker/fleet_cache.py
"""

import tempfile

from fleet import EXPECTED, IDS, PROMPTS, Fleet, needs_vllm_rs, total, until


def pieces(worker, source):
    return total(worker.metrics(), "piecewise_artifacts_total", 'kind="piece"', f'from="{source}"')


def main():
    needs_vllm_rs()
    with tempfile.TemporaryDirectory() as cache, Fleet(
            worker_flags=["--cache-dir", cache], wait=False, start=[0]) as fleet:
        first = fleet.workers[0]
        until("the first has compiled", lambda: first.process.poll() is None and "compiled" in first.text())
        fleet.start(1)
        fleet.front.wait()
        second = fleet.workers[1]
        made = pieces(first, "compiler")
        assert made > 0 and pieces(first, "cache") == 0, first.text()
        assert (pieces(second, "compiler"), pieces(second, "cache")) == (0, made), second.text()
        assert f"reused {made:.0f} piece" in second.text(), second.text()
        for _ in range(4):
            status, answer = fleet.front.post(max_tokens=64, **IDS)
            assert status == 200 and answer["choices"][0]["token_ids"] == EXPECTED[PROMPTS[0]], answer
    print(f"one cache for two workers: {made:.0f} pieces compiled once in all")


if __name__ == "__main__":
    main()
