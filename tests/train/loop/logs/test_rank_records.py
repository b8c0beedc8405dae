"""Waits of ranks are kept in bounded space, and their sums are not changed by it."""

import json
import random

import numpy as np

from reelweave.pipelines.report.run.rank_waits import read_rank_waits
from reelweave.train.loop.logs.rank_records import RankRecord, limit_size
from reelweave.train.measure.rank_waits import RankWaits

RANKS, STEPS = 8, 10


def waits(chance: random.Random, ranks: int = RANKS) -> RankWaits:
    last = chance.choices(range(ranks), k=STEPS)
    wait_s = [chance.uniform(0, 2) for _ in range(ranks)]
    peaks = [chance.uniform(60, 80) for _ in range(ranks)]
    return RankWaits(STEPS, 20.0, wait_s, [last.count(rank) for rank in range(ranks)], peaks)


def append_ranks(path, step: int, waited: RankWaits, max_bytes: int = 1 << 20) -> None:
    with path.open("a") as file:
        file.write(RankRecord.of(step, waited).line())
    limit_size(path, max_bytes)


def test_a_long_run_keeps_its_sums_in_a_bounded_file(tmp_path):
    chance, path, most = random.Random(0), tmp_path / "ranks.jsonl", 20_000
    added, sizes = [], []
    for number in range(1, 1001):
        added.append(waits(chance))
        append_ranks(path, STEPS * number, added[-1], most)
        sizes.append(path.stat().st_size)
    assert max(sizes) <= most
    assert max(sizes) > most / 2
    table = read_rank_waits(tmp_path)
    assert (table.steps, table.unreadable) == (STEPS * 1000, 0)
    whole_R = np.sum([one.wait_s for one in added], axis=0)
    last_R = np.sum([one.last for one in added], axis=0)
    for row in table.rows:
        assert abs(row.wait_s - whole_R[row.rank]) < 1e-3 * whole_R[row.rank]
        assert row.last == last_R[row.rank]
        assert row.peak_gib == round(max(one.peak_gib[row.rank] for one in added), 3)


def test_records_that_do_not_follow_each_other_stay_apart(tmp_path):
    chance, path = random.Random(0), tmp_path / "ranks.jsonl"
    append_ranks(path, 10, waits(chance))
    with path.open("a") as file:
        file.write('{"step": 20, "wait')  # a run that was killed
        file.write('\n[1]\n{"step":"x","steps":1,"seconds":1,"wait_s":3,"last":[],"peak_gib":null}\n')
    append_ranks(path, 30, waits(chance))  # steps 11 to 20 are missing
    append_ranks(path, 40, waits(chance, RANKS // 2))
    append_ranks(path, 50, waits(chance, RANKS // 2), max_bytes=1)
    found = [json.loads(line) for line in path.read_text().splitlines()]
    kept = [(one["step"], one["steps"], len(one["wait_s"])) for one in found]
    assert kept == [(10, 10, 8), (30, 10, 8), (50, 20, 4)]
