"""Workers with one compile cache, empty at first: what one has compiled serves the others, whether they
start one after the other or at once.

PIECEWISE_VLLM_RS="$(.ci/install-vllm-rs)" python3 tests/worker/fleet_cache.py
"""

import re
import tempfile

from fleet import EXPECTED, IDS, PROMPTS, Fleet, needs_vllm_rs, total, until


def pieces(worker, source):
    return total(worker.metrics(), "piecewise_artifacts_total", 'kind="piece"', f'from="{source}"')


def is_right(fleet):
    for _ in range(4):
        status, answer = fleet.front.post(max_tokens=64, **IDS)
        assert status == 200 and answer["choices"][0]["token_ids"] == EXPECTED[PROMPTS[0]], answer


def one_after_the_other():
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
        is_right(fleet)
    return made


def at_once(made):
    """Each piece is compiled once in all, and each worker says what it found."""
    with tempfile.TemporaryDirectory() as cache, Fleet(
            workers=3, worker_flags=["--cache-dir", cache]) as fleet:
        shares = [pieces(worker, "compiler") for worker in fleet.workers]
        found = [pieces(worker, "cache") for worker in fleet.workers]
        texts = [worker.text() for worker in fleet.workers]
        assert sum(shares) == made and all(a + b == made for a, b in zip(shares, found)), (shares, found, texts)
        for share, text in zip(shares, texts):
            said = re.search(r"compiled (\d+|nothing)(?: pieces?)?; reused (?:\d+ pieces?|nothing)", text)
            assert said and said[1] == (f"{share:.0f}" if share else "nothing"), text
        is_right(fleet)
    return shares


def main():
    needs_vllm_rs()
    made = one_after_the_other()
    shares = at_once(made)
    print(f"one cache: {made:.0f} pieces compiled once in all, by one of two workers in turn, and by three at once "
          f"{' + '.join(f'{share:.0f}' for share in shares)}")


if __name__ == "__main__":
    main()
