"""A sample of the matrix of faults of `tests.bench.exactly_once`, on this machine's disk and a real S3 server."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.bench.disturbances import WrongError, small_disk
from tests.bench.exactly_once import CELLS, Cell, Lab, order, unnumbered
from tests.bench.exactly_once_table import NAMES, page
from tests.thorough import but

SAMPLE = ("run", "local"), ("worker", "local"), ("s3+kill", "s3")  # two at once: test_two_runs


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with Lab(tmp_path_factory.mktemp("lab"), ["sequential"], clock=False) as lab:
        yield lab


@pytest.mark.parametrize(("fault", "storage"), but(SAMPLE[:1], SAMPLE, SAMPLE[:2]))
def test_a_disturbed_run_leaves_what_an_undisturbed_one_leaves(lab: Lab, fault: str, storage: str) -> None:
    result = lab.disturb(Cell(fault, "sequential", storage), "a seed")
    assert result["wrong"] == ""


def test_a_disk_that_is_full_costs_no_byte(lab: Lab, tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("mounting a small disk needs root")
    try:
        with small_disk(tmp_path, 100):
            pass
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("this machine lets nobody mount")
    # Of this seed the disk begins with 349 KiB and so stops the run four times; others begin with as little as 20.
    result = lab.disturb(Cell("disk", "sequential", "local"), "p")
    assert (result["struck"], result["wrong"]) == (4, "")


def test_the_check_can_fail(lab: Lab) -> None:
    expected = lab.expected("local")
    with lab.place("local") as place:
        out = Path(place.uri)
        for path, data in expected.content.items():
            (out / path).parent.mkdir(parents=True, exist_ok=True)
            (out / path).write_bytes(data)
        for path in expected.paths - expected.content.keys():
            (out / path).parent.mkdir(parents=True, exist_ok=True)
            (out / path).touch()
        lab.check(place, [expected])
        shard = next(out.glob("shards/*.tar"))
        whole = shard.read_bytes()
        for path, data in (
            (shard, whole.replace(b"one.mp4", b"two.mp4", 1)),  # other bytes
            (out / "shards/000009.tar", b""),
            (out / ".reelweave-unfinished-1", b""),
        ):
            path.write_bytes(data)
            with pytest.raises(WrongError):
                lab.check(place, [expected])
            path.unlink()
        shard.write_bytes(whole)
        (out / ".ledger/inputs.json").unlink()
        with pytest.raises(WrongError, match="inputs"):
            lab.check(place, [expected])


def test_every_cell_has_its_place_in_the_table_and_is_run_as_often_as_asked() -> None:
    chosen = list(order({"run/ray/s3": 1}, 3, 2, CELLS))
    assert {str(cell): chosen.count(cell) for cell in CELLS} == {
        str(cell): 2 if str(cell) == "run/ray/s3" else 3 if cell.fault == "run" else 2 for cell in CELLS
    }
    results = [{"cell": str(cell), "seed": "s", "struck": 7, "wrong": "", "wall_s": 1.0} for cell in CELLS]
    results[3]["wrong"] = "other bytes"
    shown = page(results)
    assert shown.count("**1** (7)") == len(CELLS)
    assert f"Wrong: 1 of {len(CELLS)}" in shown
    assert all(name in shown for name in NAMES.values())


def test_revisions_are_compared_by_what_they_hold() -> None:
    first = {
        "index.parquet": b"i",
        "manifest.json": b'{"sha256": 1, "revision": 0, "files": [{"path": "plan.arrow"}]}',
    }
    later = {
        "index.000001.parquet": b"i",
        "manifest.json": b'{"sha256": 2, "revision": 1, "files": [{"path": "plan.000001.arrow"}]}',
    }
    assert unnumbered(first) == unnumbered(later)
