"""Both runners carry rows through stages alike, and a stage that fails stops the run in words."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from curate.pipeline import Pool, Runner, Stage, run_on_ray, run_sequentially
from loader.errors import RunError


def split(rows: list[dict]) -> Iterator[dict]:
    for row in rows:
        for part in range(row["parts"]):
            yield {"name": row["name"], "part": part, "data": str(part) * 1000, "scores": {row["name"]: 1.0}}


class Measure:
    """Knows how many rows this worker saw, as a loaded model would stay loaded."""

    def __init__(self) -> None:
        self.seen = 0

    def __call__(self, rows: list[dict]) -> Iterator[dict]:
        for row in rows:
            self.seen += 1
            yield {**row, "size": len(row.pop("data")), "seen": self.seen, "batch": len(rows)}


def fail(rows: list[dict]) -> Iterator[dict]:
    for row in rows:
        if row["name"] == "c":
            raise RunError("s3://bucket/c cannot be written: access denied")
        yield row


@pytest.fixture(params=[run_sequentially, run_on_ray])
def runner(request: pytest.FixtureRequest) -> Runner:
    if request.param is run_on_ray:
        request.getfixturevalue("ray_local")
    return request.param


ROWS = [{"name": name, "parts": parts} for name, parts in (("a", 3), ("b", 0), ("c", 2))]


def test_rows_fan_out_through_all_stages(runner: Runner) -> None:
    results = list(runner(ROWS, [Stage("split", split), Stage("measure", Measure(), batch=2)]))
    expected = [("a", 0), ("a", 1), ("a", 2), ("c", 0), ("c", 1)]
    assert sorted((row["name"], row["part"]) for row in results) == expected
    assert {row["size"] for row in results} == {1000}
    assert all(row["scores"] == {row["name"]: 1.0} for row in results)
    assert all(row["timing"].keys() == {"split", "measure"} for row in results)


def test_a_pool_keeps_its_workers(runner: Runner) -> None:
    rows = [{"name": "a", "parts": 6}]
    results = list(runner(rows, [Stage("split", split), Stage("measure", Measure(), pool=Pool(1, 1, 1))]))
    assert sorted(row["seen"] for row in results) == [1, 2, 3, 4, 5, 6]


def test_no_rows_are_no_work(runner: Runner) -> None:
    assert list(runner([], [Stage("measure", Measure())])) == []


def test_a_stage_that_fails_says_why(runner: Runner) -> None:
    with pytest.raises(RunError, match="s3://bucket/c cannot be written: access denied"):
        list(runner(ROWS, [Stage("fail", fail)]))


def test_a_killed_worker_costs_nothing(ray_local: None, tmp_path: Path) -> None:
    marker = tmp_path / "died"

    def die_once(rows: list[dict]) -> list[dict]:
        import os
        import signal

        if rows[0]["name"] == "c" and not marker.exists():
            marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return rows

    results = list(run_on_ray(ROWS, [Stage("die", die_once)]))
    assert marker.exists()
    assert sorted(row["name"] for row in results) == ["a", "b", "c"]
