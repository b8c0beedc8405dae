"""A small sample of `tests.bench.loader_kills`, and that what it counts by can fail."""

import json
from pathlib import Path

import pytest

from tests.bench.loader_kills import prove
from tests.bench.loader_ledger import Ledger
from tests.bench.loader_rank import Run


def test_every_sample_counts_once_however_often_its_processes_are_killed(tmp_path: Path) -> None:
    found = prove(tmp_path, kills=2, epochs=2, samples=24, seed=1)
    assert found["wrong"] == []
    assert found["kills"] == 2
    assert found["counted"] == found["frames_compared"] == 24 * found["epochs"]


EXPECTED = {(key, epoch): f"{key}{epoch}" for key in "abcd" for epoch in range(1)}


@pytest.mark.parametrize(
    ("steps", "saved", "wrong"),
    [
        ([("ab", 1.0), ("cd", 1.0)], 2, []),
        ([("ab", 1.0), ("cd", 1.0)], 1, ["epoch 0: c counts 0 times", "epoch 0: d counts 0 times"]),
        ([("ab", 1.0), ("cb", 1.0)], 2, ["epoch 0: b counts 2 times", "epoch 0: d counts 0 times"]),
        ([("ab", 1.0), ("cd", 0.5)], 2, ["run 0: the weights of step 1 add up to 0.5"]),
        ([("ab", 1.0), ("cd", 1.0), ("ab", 1.0)], 2, []),
        ([("ab", 1.0)], 1, ["epoch 0: c counts 0 times", "epoch 0: d counts 0 times"]),
    ],
)
def test_the_ledger_tells_what_is_wrong(
    tmp_path: Path, steps: list[tuple[str, float]], saved: int, wrong: list[str]
) -> None:
    run = Run(tmp_path, 0, tmp_path, 0, 1)
    write_log(run, steps, [f"{key}0" for keys, _ in steps for key in keys])
    ledger = Ledger()
    ledger.add(run, 0, saved)
    assert ledger.compare(EXPECTED, 1) == wrong


def test_the_ledger_tells_frames_that_differ(tmp_path: Path) -> None:
    ledger = Ledger()
    for number, pixels in enumerate((["a0", "b0", "x", "d0"], ["a0", "b0", "c0", "d0"])):
        run = Run(tmp_path, number, tmp_path, 0, 1)
        write_log(run, [("ab", 1.0), ("cd", 1.0)], pixels)
        ledger.add(run, 2 * number, 2)
    assert ledger.redone == 4
    assert ledger.compare(EXPECTED, 1) == [
        "run 1: the frames of ('c', 0) are others than before",
        "the frames of ('c', 0) are not those of an undisturbed stream",
    ]


def test_a_line_that_a_kill_cut_off_is_no_step(tmp_path: Path) -> None:
    run = Run(tmp_path, 0, tmp_path, 0, 1)
    write_log(run, [("ab", 1.0), ("cd", 1.0)], ["a0", "b0", "c0", "d0"])
    log = run.log(0)
    log.write_bytes(log.read_bytes()[:-4])
    ledger = Ledger()
    ledger.add(run, 0, 1)
    assert sorted(ledger.counted) == [(0, "a"), (0, "b")]


def write_log(run: Run, steps: list[tuple[str, float]], pixels: list[str]) -> None:
    left = iter(pixels)
    with run.log(0).open("w") as log:
        for number, (keys, weight) in enumerate(steps):
            micro = (list(keys), [0] * len(keys), [next(left) for _ in keys], weight)
            log.write(json.dumps({"step": number, "epoch": 0, "microbatches": [micro]}) + "\n")
