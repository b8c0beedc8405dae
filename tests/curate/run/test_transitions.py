"""The table of transitions of a dataset: what it says, who reads it, and what a take-down leaves of it."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from reelweave.curate.config import CurateConfig
from reelweave.curate.ledger.records import Record
from reelweave.curate.run.curate import curate
from reelweave.curate.run.tables.clips import from_records, to_records
from reelweave.curate.run.tables.transitions import transitions_table
from reelweave.curate.sources.inputs import SourceRef
from reelweave.curate.takedown.removal import remove
from reelweave.loader.dataset import open_dataset, verify
from reelweave.loader.dataset.manifest import Removal
from reelweave.loader.dataset.schema import TRANSITIONS
from reelweave.loader.storage import open_storage
from reelweave.pipelines.report.clips.facts import transitions_between
from tests.media import write_video

VALUES = {"run": {"runner": "sequential", "isolate": False}, "spans": {"min_clip_s": 1}}


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    """A film of two shots, one of three, and one of one shot."""
    for name, scenes, first in (("a", (31, 49), 0), ("b", (30, 30, 30), 3), ("c", (40,), 9)):
        write_video(tmp_path / f"{name}.mp4", scenes, size=(320, 192), first_scene=first)
    files = [str(tmp_path / f"{name}.mp4") for name in "abc"]
    curate(files, str(tmp_path / "out"), CurateConfig.model_validate(VALUES))
    return tmp_path / "out"


def rows(dataset: Path) -> list[dict[str, Any]]:
    return list(pq.read_table(dataset / "transitions.parquet").to_pylist())


def test_boundaries_of_shots_are_in_a_table_that_a_take_down_empties(dataset: Path) -> None:
    found = rows(dataset)
    assert [(Path(row["source"]).name, row["start_s"], row["kind"], row["decision"]) for row in found] == [
        ("a.mp4", 1.24, "cut", "boundary"),
        ("b.mp4", 1.2, "cut", "boundary"),
        ("b.mp4", 2.4, "cut", "boundary"),
    ]
    assert all(row["end_s"] == row["start_s"] and row["probability"] > 0.9 for row in found)
    ends = {row["key"]: row["end_s"] for row in pq.read_table(dataset / "accounting.parquet").to_pylist()}
    assert all(ends[row["key"]] == row["start_s"] for row in found)
    assert verify(open_storage(dataset)).problems == []
    # `show` has them for a source, and those that touch a clip.
    shown = transitions_between(open_dataset(dataset), found[1]["source"])
    assert [row["start_s"] for row in shown] == [1.2, 2.4]
    assert [
        row["start_s"] for row in transitions_between(open_dataset(dataset), found[1]["source"], 0.0, 1.2)
    ] == [1.2]
    # Of one clip its own rows go, and of a source all, under both names of the table.
    storage = open_storage(dataset)
    remove(storage, Removal(key=found[1]["key"], date="2026-11-29", reason="asked", samples=0))
    assert rows(dataset) == [found[0], found[2]]
    remove(storage, Removal(source=found[0]["source"], date="2026-11-29", reason="asked", samples=0))
    assert rows(dataset) == [found[2]]
    names = sorted(path.name for path in dataset.glob("transitions*"))
    assert names == ["transitions.000002.parquet", "transitions.parquet"]
    assert verify(storage).problems == []


def test_a_table_of_other_columns_is_found_and_a_dataset_may_lack_it(dataset: Path) -> None:
    assert len(list(open_dataset(dataset).further_parts("transitions") or ())) == 1
    pq.write_table(pa.table({"source": ["a"]}), dataset / "transitions.parquet")
    (problem, *_) = verify(open_storage(dataset)).problems
    assert problem.startswith("transitions.parquet")
    kept = Path(__file__).parents[2] / "loader" / "dataset" / "format_2"
    assert open_dataset(kept).further_parts("transitions") is None


def test_blended_frames_give_a_transition_its_end_and_the_likeliest_change_its_clip() -> None:
    sources = [SourceRef(f"raw/{name}.mp4", 1, "v") for name in "ab"]
    first, second = (source.uri for source in sources)
    ended = Record(first, 0, 3, 0.0, 2.0, key="k0", ends_by="dissolve", ends_probability=0.9)
    records = [
        replace(ended, inside="cut", inside_s=1.0, inside_probability=0.2),
        Record(first, 1, 3, 2.0, 2.4, state="filtered", stage="shots"),
        Record(first, 2, 3, 2.4, 4.0, state="filtered", stage="removal", ends_by="cut"),
        Record(second, 0, 2, 0.0, 3.0, key="k1", ends_by="change"),
        Record(second, 1, 2, 3.0, 5.0, key="k2"),
    ]
    table = transitions_table(from_records(records, {first: 0, second: 1}), sources)
    assert table.schema.equals(TRANSITIONS)
    assert [list(row.values()) for row in table.to_pylist()] == [
        [first, 1.0, 1.0, "cut", 0.2, "inside", "k0"],
        [first, 2.0, 2.4, "dissolve", 0.9, "boundary", "k0"],
        [second, 3.0, 3.0, "change", None, "boundary", "k1"],
    ]
    assert list(to_records(from_records(records, {first: 0, second: 1}), [first, second])) == records
