"""Both runners carry rows through stages alike, and a stage that fails stops the run in words."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from curate.pipeline import Runner, Stage, run_on_ray, run_sequentially
from loader.errors import RunError


def split(row: dict) -> Iterator[dict]:
    for part in range(row["parts"]):
        yield {"name": row["name"], "part": part, "data": bytes([part]) * 1000}


def measure(row: dict) -> dict:
    return {"name": row["name"], "part": row["part"], "size": len(row["data"])}


def fail(row: dict) -> dict:
    if row["name"] == "c":
        raise RunError("s3://bucket/c cannot be written: access denied")
    return row


@pytest.fixture(params=[run_sequentially, run_on_ray])
def runner(request: pytest.FixtureRequest) -> Runner:
    if request.param is run_on_ray:
        request.getfixturevalue("ray_local")
    return request.param


ROWS = [{"name": name, "parts": parts} for name, parts in (("a", 3), ("b", 0), ("c", 2))]


def test_rows_fan_out_through_all_stages(runner: Runner) -> None:
    results = list(runner(ROWS, [Stage(split, fan_out=True), Stage(measure)]))
    expected = [("a", 0), ("a", 1), ("a", 2), ("c", 0), ("c", 1)]
    assert sorted((row["name"], row["part"]) for row in results) == expected
    assert {row["size"] for row in results} == {1000}


def test_no_rows_are_no_work(runner: Runner) -> None:
    assert list(runner([], [Stage(measure)])) == []


def test_a_stage_that_fails_says_why(runner: Runner) -> None:
    with pytest.raises(RunError, match="s3://bucket/c cannot be written: access denied"):
        list(runner(ROWS, [Stage(fail)]))


def test_a_killed_worker_costs_nothing(ray_local: None, tmp_path: Path) -> None:
    marker = tmp_path / "died"

    def die_once(row: dict) -> dict:
        import os
        import signal

        if row["name"] == "c" and not marker.exists():
            marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return row

    results = list(run_on_ray(ROWS, [Stage(die_once)]))
    assert marker.exists()
    assert sorted(row["name"] for row in results) == ["a", "b", "c"]
