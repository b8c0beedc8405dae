"""Ranks of a node begin together: one of them compiles, the others read what it made."""

import json
import os
import subprocess
import sys
from pathlib import Path

from reelweave.loader.base.compiled import compiled
from tests.thorough import thorough

SOURCE = """
import json, os
from reelweave.loader.base.compiled import compiled

@compiled
def inner(count):
    total = 0.0
    for number in range(count):
        total += number ** 0.5
    return total

@compiled
def outer(count):
    return inner(count) + inner(2 * count)

if __name__ == "__main__":
    import fresh
    children = []
    for number in range(3):
        pid = os.fork()
        if pid == 0:
            value = fresh.outer(10)
            stats = [fresh.inner.stats, fresh.outer.stats]
            misses = [sum(one.cache_misses.values()) for one in stats]
            with open(f"{number}.json", "w") as file:
                json.dump({"value": value, "misses": misses}, file)
            os._exit(0)
        children.append(pid)
    assert [os.waitpid(pid, 0)[1] for pid in children] == [0, 0, 0]
"""


def run(folder, cache):
    (folder / "fresh.py").write_text(SOURCE)
    places = os.pathsep.join([str(folder), str(Path.cwd())])
    env = os.environ | {"NUMBA_CACHE_DIR": str(cache), "PYTHONPATH": places}
    subprocess.run([sys.executable, "fresh.py"], cwd=folder, env=env, check=True)
    found = [json.loads((folder / f"{number}.json").read_text()) for number in range(3)]
    expected = sum(n**0.5 for n in range(10)) + sum(n**0.5 for n in range(20))
    assert all(abs(one["value"] - expected) < 1e-9 for one in found)
    return found


def test_one_of_three_processes_compiles_each_function(tmp_path):
    found = run(tmp_path, tmp_path / "cache")
    assert sum(one["misses"][1] for one in found) == 1
    # Whoever loads a caller from the cache needs no callee.
    assert sum(one["misses"][0] for one in found) == 1


@thorough
def test_without_a_place_for_the_lock_they_compile_all_the_same(tmp_path):
    cache = tmp_path / "cache"
    run(tmp_path, cache)
    for lock in cache.rglob("*.lock"):
        lock.unlink()
        lock.mkdir()  # cannot be opened
    for made in cache.rglob("*.nb?"):
        made.unlink()
    assert all(one["misses"][1] <= 1 for one in run(tmp_path, cache))


def test_code_that_cannot_be_cached_is_compiled_all_the_same():
    made = {"compiled": compiled}
    exec(
        "@compiled\ndef twice(number):\n    return number + number", made
    )  # it has no file beside which to write
    assert made["twice"](4) == 8
