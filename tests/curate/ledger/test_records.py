"""Records are stored as rows were before: `old_ledger` was written by the code that carried rows."""

import pickle
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from reelweave.curate.caption.types import Caption
from reelweave.curate.ledger.files import LEDGER
from reelweave.curate.ledger.ledger import Ledger
from reelweave.curate.ledger.records import (
    ClipEmbedding,
    ClipScores,
    PackedArray,
    SourceSummary,
    TextEmbedding,
    clip_result,
    from_json,
    source_summary,
)
from reelweave.curate.models.clip_frames import Fault
from reelweave.loader.dataset import ShardRecord
from reelweave.loader.storage import open_storage

OLD = Path(__file__).parent / "old_ledger"

STAGES: dict[str, Callable] = {
    "cut": source_summary,
    "embed": clip_result,
    "captions": clip_result,
    "text_embed": clip_result,
    "loop": clip_result,
    "shard": lambda values: from_json(ShardRecord, values),
}


@pytest.fixture
def before(tmp_path: Path) -> Ledger:
    shutil.copytree(OLD, tmp_path / "before" / LEDGER)
    return Ledger(open_storage(tmp_path / "before"))


def files(ledger: Ledger) -> dict[str, bytes]:
    return {item.path: ledger.storage.read(item.path) for item in ledger.storage.list()}


def test_entries_written_before_are_read_and_written_again_byte_for_byte(
    before: Ledger, tmp_path: Path
) -> None:
    after = Ledger(open_storage(tmp_path / "after"))
    for stage, decode in STAGES.items():
        for identity, record in before.entries.read(stage, "config", decode).items():
            # As a task crosses from process to process.
            after.entries.write(stage, "config", identity, pickle.loads(pickle.dumps(record)))
    assert len(files(before)) == 13
    assert files(after) == files(before)


def test_each_entry_is_read_as_what_it_is(before: Ledger) -> None:
    def kinds(stage: str) -> list[str]:
        found = before.entries.read(stage, "config", STAGES[stage])
        return sorted({type(record).__name__ for record in found.values()})

    assert kinds("cut") == [SourceSummary.__name__]
    assert kinds("embed") == sorted([ClipEmbedding.__name__, Fault.__name__])
    assert kinds("captions") == [Caption.__name__]
    assert kinds("text_embed") == [TextEmbedding.__name__]
    assert kinds("loop") == [ClipScores.__name__]
    summaries = before.entries.read("cut", "config", source_summary).values()
    states = {record.state for summary in summaries for record in summary.records}
    assert states == {"kept", "filtered", "failed"}
    scored = before.entries.read("embed", "config", clip_result)["scored"]
    assert isinstance(scored, ClipEmbedding)
    assert scored.scores == {"aesthetic": 5.25}


@pytest.mark.parametrize("shape", [(3,), (2, 3), (0, 4)])
@pytest.mark.parametrize("dtype", ["<f2", "<f4", "u1"])
def test_arrays_come_back_from_their_packing(dtype: str, shape: tuple[int, ...]) -> None:
    array = np.arange(np.prod(shape)).reshape(shape).astype(dtype)
    back = PackedArray.of(array.T).array
    assert back.dtype == array.dtype
    np.testing.assert_array_equal(back, array.T)
