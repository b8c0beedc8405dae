"""Columns decide as records do: each rule over tables beside the same rule for one clip."""

import hashlib
import math
import pickle
import random
from collections import defaultdict
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from reelweave.curate.caption.types import Caption
from reelweave.curate.config import BinConfig, ShardConfig
from reelweave.curate.dedup.text_hashes import hashes
from reelweave.curate.filters import FilterConfig
from reelweave.curate.ledger.records import (
    ClipEmbedding,
    ClipResult,
    ClipScores,
    PackedArray,
    Record,
    TextEmbedding,
    to_columns,
)
from reelweave.curate.models.clip_frames import Fault
from reelweave.curate.run.clip_verdict import judge_record as judged_record
from reelweave.curate.run.shard import ShardPlan, plan_shards
from reelweave.curate.run.tables.clips import KEPT, concat_clips, from_records, scores_map, to_records
from reelweave.curate.run.tables.columns import column
from reelweave.curate.run.tables.compare import qualities
from reelweave.curate.run.tables.judge import judge_clips, token_counts
from reelweave.curate.run.tables.kept import KeptClips, half_digests
from reelweave.curate.run.tables.remarks import describe_empty_sources
from reelweave.curate.run.tables.results import RESULTS, from_entries, to_results
from reelweave.curate.run.tables.samples import samples_of, vector_column, vectors_of
from reelweave.curate.sources.inputs import SourceRef
from reelweave.loader.errors import RunError
from reelweave.loader.text import count_tokens

FILTERS = FilterConfig(
    min_motion=0.3, max_motion=0.9, min_aesthetic=4.0, max_text_share=0.6, min_short_side_px=128.0
)
SHARD = ShardConfig(max_shard_mb=0.002, val_share=0.4, bins=BinConfig(aspect=(1.0, 1.5), frames=(50, 90)))
WAITING = {"embed": ("aesthetic",)}
TEXTS = (
    "",
    "a kite over the sea",
    "Zwei Häuser, ein Weg",
    "雪の 日",
    "one_word 2 three's",
    "e\u0301te\u0301 kelvin \u212a",
)
STAGES = ("embed", "captions", "text_embed")


def records(count: int, seed: int = 1) -> list[Record]:
    rng = random.Random(seed)
    made = []
    for number in range(count):
        names = (
            "motion",
            "text_share",
            "duration_s",
            "short_side_px",
            "black_share",
            "white_share",
            "frozen_share",
        )
        scores = {name: rng.choice((0.0, 0.3, rng.random(), rng.random(), math.nan)) for name in names}
        scores |= {"duration_s": rng.choice((0.5, 1.0, 4.0)), "short_side_px": rng.choice((128.0, 720.0))}
        if rng.random() < 0.1:
            del scores[rng.choice(names)]
        if rng.random() < 0.2:
            scores["motion_source"] = float(rng.randrange(3))
        made.append(
            Record(
                source=f"{number // 7:02d}.mp4",
                part=number % 7,
                parts=7,
                start_s=float(number),
                end_s=number + rng.random(),
                state=rng.choice(("kept", "kept", "kept", "kept", "failed")),
                key=f"{rng.randrange(16**12):020x}",
                source_sha256=f"{rng.randrange(16**12):012x}{'0' * 52}",
                frames=rng.choice((25, 50, 89, 90, 125)),
                fps=25.0,
                height=rng.choice((360, 720)),
                width=rng.choice((360, 540, 1280)),
                duration_s=rng.choice((2.675, 0.15, 0.25, 0.35, rng.random() * 9)),
                sha256=f"{rng.randrange(16**12):064x}",
                clip_bytes=rng.choice((0, 300, 900, 1100, 5000)),
                scores=scores,
            )
        )
    return made


def results(count: int) -> list[dict[str, ClipResult]]:
    rng = random.Random(2)
    found: list[dict[str, ClipResult]] = []
    for number in range(count):
        packed = PackedArray.of(np.full(4, number, np.float16))
        one: dict[str, ClipResult] = {
            "embed": rng.choice(
                (
                    ClipEmbedding(packed, {"aesthetic": rng.uniform(3, 7)}),
                    ClipEmbedding(packed),
                    Fault("no picture"),
                )
            ),
            "captions": rng.choice(
                (
                    Caption(rng.choice(TEXTS), "input"),
                    Caption("seen", "model:m", {"seed": "1", "a": "b"}),
                    Fault("mute"),
                )
            ),
            "text_embed": rng.choice((TextEmbedding(9, f"text-{number}", "0" * 64), Fault("long"))),
        }
        for name in STAGES:
            if rng.random() < 0.15:
                del one[name]
        found.append(one)
    return found


def from_results(found: dict[str, ClipResult]) -> pa.Table:
    ids = pa.array(list(found), pa.string())
    return from_entries(pa.table({"id": ids, **to_columns(list(found.values()))}))


def tables_of(found: list[dict[str, ClipResult]]) -> dict[str, pa.Table]:
    """The results of each stage, a row for each clip."""
    tables = {}
    for stage in STAGES:
        there = {str(row): one[stage] for row, one in enumerate(found) if stage in one}
        rows = [list(there).index(str(row)) if str(row) in there else None for row in range(len(found))]
        tables[stage] = from_results(there).take(pa.array(rows, pa.int64()))
    return tables


def numbers_of(clips: list[Record]) -> dict[str, int]:
    return {uri: number for number, uri in enumerate(sorted({clip.source for clip in clips}))}


def as_records(clips: pa.Table, uris: list[str]) -> list[Record]:
    added = clips.select(KEPT.names).to_pylist(maps_as_pydicts="strict")
    return [replace(one, **more) for one, more in zip(to_records(clips, uris), added, strict=True)]


def same(one: Record, other: Record) -> bool:
    """Whether two records are equal, NaN among their scores too; maps of tables are sorted."""

    def shown(record: Record) -> str:
        maps = {
            name: dict(sorted(getattr(record, name).items())) for name in ("scores", "caption_provenance")
        }
        return repr(replace(record, **maps))

    return shown(one) == shown(other)


def test_columns_are_judged_as_records_are() -> None:
    clips, found = records(1500), results(1500)
    numbers = numbers_of(clips)
    table = judge_clips(from_records(clips, numbers), tables_of(found), FILTERS, SHARD, WAITING)
    reasons = set()
    for clip, own, now in zip(clips, found, as_records(table, list(numbers)), strict=True):
        expected = judged_record(clip, own, FILTERS, SHARD, WAITING)
        assert same(now, expected), (now, expected)
        reasons.add((expected.state, expected.stage, expected.bin, expected.split))
    assert len(reasons) > 20
    again = judge_clips(table, tables_of(found), FILTERS, SHARD, WAITING)
    assert again.drop_columns(_nan(again)).equals(table.drop_columns(_nan(table)))


def _nan(table: pa.Table) -> list[str]:
    """Columns with NaN, which equals nothing."""
    return [name for name in table.column_names if table.schema.field(name).type == pa.float64()]


def test_records_and_results_come_back_from_their_columns() -> None:
    clips = records(50)
    numbers = numbers_of(clips)
    assert all(map(same, to_records(from_records(clips, numbers), list(numbers)), clips))
    found = {str(row): one for row, own in enumerate(results(50)) for one in own.values()}
    found["scored"] = ClipScores({"loop": 0.5})
    back = to_results(from_results(found))
    assert back == list(found.values())
    assert to_results(RESULTS.empty_table().take(pa.array([], pa.int64()))) == []


def test_scores_without_a_value_are_not_in_the_map() -> None:
    clips = records(200)
    found = scores_map(from_records(clips, numbers_of(clips))).to_pylist(maps_as_pydicts="strict")
    assert repr(found) == repr([dict(sorted(clip.scores.items())) for clip in clips])
    assert scores_map(from_records([Record("00.mp4")], {"00.mp4": 0})).to_pylist() == [[]]


def quality(one: Record) -> tuple[float, ...]:
    """Pixels, aesthetic score, length, bits per second."""
    bits = one.clip_bytes / max(one.duration_s, 1e-6)
    return (
        float(one.width * one.height),
        one.scores.get("aesthetic", 0.0),
        round(one.duration_s, 1),
        round(bits),
    )


def test_qualities_and_words_are_those_of_one_clip() -> None:
    clips = [replace(one, scores={**one.scores, "aesthetic": 1.0}) for one in records(300)] + records(300, 2)
    expected = [quality(one) for one in clips]
    assert qualities(from_records(clips, numbers_of(clips))).tolist() == [list(one) for one in expected]
    assert token_counts(pa.array(TEXTS)).to_pylist() == [count_tokens(text) for text in TEXTS]
    parts = [kept_of(clips[:300]), kept_of(clips[300:])]
    assert (parts[0].quality.dtype, parts[1].quality.dtype) == (np.float64, np.int32)
    left = [list(quality(one)) for one in clips if one.state == "kept" and one.key]
    assert KeptClips.concat(parts).quality.tolist() == left


def kept_of(clips: list[Record]) -> KeptClips:
    count = sum(one.state == "kept" and one.key is not None for one in clips)
    return KeptClips.of(
        from_records(clips, numbers_of(clips)), np.zeros(count, bool), np.zeros(count, np.int64)
    )


def test_halves_of_digests_tell_clips_apart() -> None:
    texts = [hashlib.sha256(bytes([number])).hexdigest() for number in range(9)]
    halves = half_digests(pa.array([*texts, "", "of others", texts[0][:32] + "0" * 32]))
    assert [one.as_py().hex() for one in halves[:9]] == [text[:32] for text in texts]
    assert (len(set(halves.to_pylist())), halves[11]) == (11, halves[0])
    numbers = hashes(halves).tolist()
    assert (len(set(numbers)), hashes(halves[3:5]).tolist()) == (11, numbers[3:5])


def test_shards_are_filled_in_order_of_keys_up_to_their_limit() -> None:
    clips = [replace(one, state="kept") for one in records(400)]
    numbers = numbers_of(clips)
    filters = FilterConfig(**dict.fromkeys(FilterConfig.model_fields))
    table = judge_clips(from_records(clips, numbers), {}, filters, SHARD, {})
    sources = [SourceRef(uri, 1, "v", attributes={"licence": "CC-BY", "b": uri}) for uri in numbers]
    places = pa.table({name: pa.nulls(len(clips), pa.string()) for name in ("shard", "offset", "size")})
    vectors = vector_column(np.zeros((len(clips), 2), np.float16), np.arange(len(clips)) % 3 > 0)
    samples = samples_of(table, sources, places, vectors, None)
    plans = plan_shards(samples, SHARD, 5)
    groups: dict[tuple[str, str], list[tuple[str, int]]] = defaultdict(list)
    rows = samples.select(["split", "bin", "key", "clip_bytes"]).to_pylist()
    for row in sorted(rows, key=lambda row: row["key"]):
        groups[row["split"], row["bin"]].append((row["key"], row["clip_bytes"]))
    expected: list[list[str]] = []
    for _, members in sorted(groups.items()):
        filled = math.inf
        for key, size in members:
            if filled + size > SHARD.max_shard_mb * 1e6:
                expected.append([])
                filled = 0
            expected[-1].append(key)
            filled += size
    assert [column(plan.samples, "key").to_pylist() for plan in plans if plan.samples] == expected
    assert [plan.number for plan in plans] == list(range(5, 5 + len(expected)))
    own = samples.take(pc.index_in(pa.array(expected[1]), column(samples, "key")))
    assert ShardPlan.of(6, own).id == plans[1].id, "whatever lies beside it in memory"
    shuffled = samples.take(pc.sort_indices(column(samples, "sha256")))
    assert [plan.id for plan in plan_shards(shuffled, SHARD, 5)] == [plan.id for plan in plans]
    sent = pickle.dumps(plans[-1])
    assert len(sent) < 20_000  # the samples of one shard
    back = pickle.loads(sent)
    assert (back.number, back.id, back.clip_bytes) == (plans[-1].number, plans[-1].id, plans[-1].clip_bytes)
    assert back.samples.schema.names == samples.schema.names
    assert [one is None for one in vectors_of(back.samples)] == [
        not one for one in plans[-1].samples.column("video").is_valid().to_pylist()
    ]


def test_more_clips_than_columns_hold_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("reelweave.curate.run.tables.clips.MOST_CLIPS", 15)
    clips = records(10)
    table = from_records(clips, numbers_of(clips))
    assert len(concat_clips([table])) == 10
    with pytest.raises(RunError, match="one run holds 15 clips; curate parts"):
        concat_clips([table, table])
    none = np.zeros(0, bool)
    parts = [KeptClips.of(table.slice(0, 0), none, np.zeros(0, np.int64))] * 2
    assert len(KeptClips.concat(parts)) == 0
    monkeypatch.setattr("reelweave.curate.run.tables.kept.MOST_KEPT", -1)
    with pytest.raises(RunError, match="one run keeps -1 clips; curate parts"):
        KeptClips.concat(parts)


def test_sources_that_gave_no_clip_are_named() -> None:
    """They were in no line of a run's end, since they had not failed."""
    rows = [
        (0, "kept", 0.0, 3.0, ""),
        (0, "filtered", 3.0, 9.0, "short"),
        (1, "filtered", 0.0, 1.0, "1.00 s is shorter"),
        (1, "filtered", 1.0, 3.5, "blended frames"),
        (2, "failed", None, None, "damaged"),
        (3, "duplicate", 0.0, 3.0, "the same footage"),
        *((source, "filtered", None, None, "too large") for source in (4, 5, 6)),
    ]
    table = pa.table(
        dict(zip(("source", "state", "start_s", "end_s", "reason"), zip(*rows, strict=True), strict=True))
    )
    sources = [f"raw/{name}.mp4" for name in "abcdefg"]
    assert describe_empty_sources([table.slice(0, 2), table.slice(2)], sources) == (
        "4 sources gave no clip, since all of it was filtered: b.mp4 (blended frames), e.mp4 (too large),"
        " f.mp4 (too large), ...; the report and accounting.parquet have all rows",
    )
    assert describe_empty_sources([table.slice(0, 2)], sources) == ()
