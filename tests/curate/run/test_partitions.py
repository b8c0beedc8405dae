"""Clips in many partitions on disk give the bytes that they give in one partition in memory."""

import hashlib
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from reelweave.curate.caption.types import Caption
from reelweave.curate.config import CurateConfig
from reelweave.curate.dedup.text_hashes import TextPlaces, hashes
from reelweave.curate.ledger.blobs import LedgerBlobs
from reelweave.curate.ledger.ledger import Ledger
from reelweave.curate.run.assembly import curation_state, model_stages
from reelweave.curate.run.curate import curate
from reelweave.curate.run.shard import WriteShard
from reelweave.curate.run.stages.clip_stages import caption_identity
from reelweave.curate.run.tables.closed import ClosedSources
from reelweave.curate.run.tables.partitions import Partitions
from reelweave.curate.source_pass.cut_source import STAGE, arrays_name, source_id
from reelweave.curate.source_pass.tasks import clip_task
from reelweave.curate.sources.inputs import list_sources
from reelweave.loader.storage import open_storage
from tests.bench.curate_scale import cut, make_list
from tests.thorough import thorough

SOURCES, CLIPS = 44, 4


def config(**changes: Any) -> CurateConfig:
    values = {
        "filters": {"min_motion": 0.1, "max_text_share": 0.9},
        "shard": {"max_shard_mb": 0.002, "val_share": 0.2},
        "run": {"runner": "sequential", "isolate": False},
    }
    return CurateConfig.model_validate({**values, **changes})


def work_done(folder: Path) -> None:
    """Leave what workers leave: some sources twice under two names, and some clips with the same bytes."""
    make_list(folder, SOURCES)
    ledger = Ledger(open_storage(folder / "dataset"))
    state = curation_state(config(), ledger, [], None, model_stages(config()), {})
    [captions] = state.inputs.stages
    clips = folder / "dataset/.ledger/clips"
    clips.mkdir(parents=True)
    summaries, results = {}, {}
    before = None
    for number, source in enumerate(list_sources([str(folder / "list.csv")], config().storage)):
        summary, arrays = cut(source, CLIPS, 0 if number % 3 else 2)
        if before is not None and number % 7 == 0:  # the content of the source before it
            summary = _as(source.uri, before)
        before = summary
        for record in summary.records:
            if record.key is None:
                continue
            clips.joinpath(f"{record.clip_id}.mp4").write_bytes(record.sha256.encode())
            task = clip_task(source, summary, record)
            results[caption_identity(task)] = Caption(f"a film of {record.key}", "input")
        ledger.blobs.write_arrays(arrays_name(source, state.inputs.cut.fingerprint), arrays)
        summaries[source_id(source)] = summary
    half = SOURCES // 2
    for some in (
        list(summaries)[:half],
        list(summaries)[half - 5 :],
    ):  # a later segment replaces an earlier one
        ledger.entries.append(STAGE, state.inputs.cut.fingerprint, {name: summaries[name] for name in some})
    ledger.entries.append(captions.name, captions.fingerprint, results)


def _as(uri: str, summary: Any) -> Any:
    return replace(summary, records=tuple(replace(record, source=uri) for record in summary.records))


def content(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and ".ledger" not in path.parts
    }


def revisions(folder: Path) -> list[dict[str, str]]:
    """Curate, then change the dataset twice, and return the bytes after each step."""
    found: list[dict[str, str]] = []
    for min_motion in (0.1, 0.2, 0.05):
        changed = config(filters={"min_motion": min_motion, "max_text_share": 0.9})
        curate([str(folder / "list.csv")], str(folder / "dataset"), changed, update=bool(found))
        found.append(content(folder / "dataset"))
    return found


def test_partitions_on_disk_give_the_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    work_done(tmp_path)
    dataset = tmp_path / "dataset"
    shutil.copytree(dataset, tmp_path / "again")
    whole = revisions(tmp_path)
    assert len({step["index.parquet"] for step in whole[:1]} | {str(step) for step in whole}) == 4
    shutil.rmtree(dataset)
    tmp_path.joinpath("again").rename(dataset)
    monkeypatch.setattr("reelweave.curate.run.tables.partitions.SOURCES", 8)
    monkeypatch.setattr("reelweave.curate.run.write_shards._ROWS", 32)
    for left in (0, 4):  # interrupted at the first shard, and among those of a later partition
        with monkeypatch.context() as patched:
            patched.setattr(WriteShard, "_write", interrupted(WriteShard._write, left))
            with pytest.raises(KeyboardInterrupt):
                revisions(tmp_path)
    assert not (dataset / "manifest.json").exists()
    assert len(list(dataset.glob("shards/*.tar"))) == 4
    assert revisions(tmp_path) == whole


@thorough
def test_on_ray_partitions_give_the_same_bytes(
    ray_local: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work_done(tmp_path)
    dataset, listed = tmp_path / "dataset", [str(tmp_path / "list.csv")]
    shutil.copytree(dataset, tmp_path / "again")
    curate(listed, str(dataset), config())
    whole = content(dataset)
    shutil.rmtree(dataset)
    tmp_path.joinpath("again").rename(dataset)
    monkeypatch.setattr("reelweave.curate.run.tables.partitions.SOURCES", 8)
    monkeypatch.setattr("reelweave.curate.run.write_shards._SMALL_BYTES", 0)  # workers write shards
    monkeypatch.setattr("reelweave.curate.run.runners.pipeline.AT_ONCE", 2)
    curate(listed, str(dataset), config(run={"runner": "ray", "isolate": False}))
    assert content(dataset) == whole


def test_without_perceptual_duplicates_no_arrays_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work_done(tmp_path)
    sources = list_sources([str(tmp_path / "list.csv")], config().storage)
    asked = config(dedup={"perceptual": {"enabled": False}})
    ledger = Ledger(open_storage(tmp_path / "dataset"))
    state = curation_state(asked, ledger, sources, None, model_stages(asked), {})
    monkeypatch.setattr(LedgerBlobs, "many_arrays", lambda *_: pytest.fail("arrays were read"))
    states = state.verdict.decide(state.inputs.sources.keys(), set()).read(0).column("state").to_pylist()
    assert {"kept", "duplicate"} <= set(states)


def test_sources_of_many_clips_become_a_segment_before_there_are_many_sources(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("reelweave.curate.run.tables.closed._RECORDS", 10)
    make_list(tmp_path, 7)
    sources = list_sources([str(tmp_path / "list.csv")], config().storage)
    ledger = Ledger(open_storage(tmp_path / "dataset"))
    closed = ClosedSources(ledger, "f", sorted(sources, key=lambda source: source.uri))
    packed = tmp_path / "dataset/.ledger" / STAGE / "f/packed"
    segments = []
    for source in sources:
        summary, _ = cut(source, CLIPS, 0)
        ledger.entries.write(STAGE, "f", source_id(source), summary)
        closed.add(source.uri, summary)
        segments.append(len(list(packed.glob("*.parquet"))))
    assert segments == [0, 0, 1, 1, 1, 2, 2]
    again = ClosedSources(ledger, "f", closed.sources)
    assert again.clips(0).equals(closed.clips(0))
    assert len(closed.clips(0)) == 7 * CLIPS


def interrupted(write: Any, left: int) -> Any:
    """Return the function, which is interrupted after some calls."""
    calls = iter([True] * left)

    def wrapped(*arguments: Any) -> Any:
        if not next(calls, False):
            raise KeyboardInterrupt
        return write(*arguments)

    return wrapped


def test_rows_come_back_in_order_from_partitions_on_disk() -> None:
    table = pa.table({"row": pa.array(range(3000)), "text": pa.array(map(str, range(3000)))})
    numbers = np.random.default_rng(1).integers(0, 5, len(table))
    parts = Partitions(5, table.schema, True)
    for first in range(0, len(table), 1000):
        parts.scatter(table.slice(first, 1000), numbers[first : first + 1000])
    assert [part.equals(table.filter(pa.array(numbers == at))) for at, part in enumerate(parts)] == [True] * 5
    wider = table.append_column("more", table["row"])
    parts.add(3, wider)
    assert parts.read(3)["more"].null_count == int((numbers == 3).sum())
    parts.replace(3, wider)
    assert parts.read(3).equals(wider)


def test_numbers_of_texts_find_their_places(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = pa.array(["", "a", "b", "abcdefgh", "abcdefghi", *(f"{number:020x}" for number in range(500))])
    asked = pa.array(["b", None, "missing", "abcdefghi", *texts.to_pylist()[::-3]])
    expected = pc.fill_null(pc.index_in(asked, value_set=texts), -1).to_pylist()
    assert len(set(hashes(texts).tolist())) == len(texts)
    assert (hashes(texts[3:20]) == hashes(texts)[3:20]).all()
    assert TextPlaces(texts).find(asked).tolist() == expected
    monkeypatch.setattr("reelweave.curate.dedup.text_hashes.hashes", lambda some: hashes(some) % np.uint64(7))
    assert TextPlaces(texts).find(asked).tolist() == expected  # texts that share a number
