"""Memory and time of `publish`, `verify`, `report`, `remove` and search over datasets of many rows.

    python -m tests.bench.index_scale --rows 100000 1000000 [--steps publish verify] [--folder /tmp]

Rows are generated shard by shard, with the columns and sizes of a curation: a key and three checksums of 64
hexadecimal digits that do not compress, a caption, a map of 25 scores, four members. There are no tars: `publish`
writes tables, plan index, Energon's metadata and manifest of shards that it is told of, and `verify` checks all of
these against each other, and not the bytes of shards. Each step is a fresh process; its peak memory above that of its
imports is reported.
"""

import argparse
import hashlib
import itertools
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from reelweave.loader.dataset import Content, ShardRecord, publish, read_manifest
from reelweave.loader.dataset.publishing.publication import read_once
from reelweave.loader.dataset.schema import ACCOUNTING, INDEX, SCORES, TABLES
from reelweave.loader.dataset.shard import idx_bytes
from reelweave.loader.dataset.tables.shard_rows import CRC32, TableRows
from reelweave.loader.storage import open_storage
from tests.bench.big_index import status

PER_SHARD, PER_SOURCE = 500, 10
SAMPLE_BYTES = 1 << 20
NAMES = [f"score_{number:02d}" for number in range(25)]
WORDS = [
    "a",
    "the",
    "red",
    "small",
    "kite",
    "dog",
    "river",
    "night",
    "street",
    "man",
    "woman",
    "child",
    "car",
    "boat",
    "walks",
    "runs",
    "over",
    "under",
    "slowly",
    "towards",
]
STEPS = ("publish", "verify", "report", "latents", "remove", "update")

_WITH_CRC32 = INDEX.append(pa.field(CRC32, pa.uint32(), nullable=False))


def hexes(seed: int, count: int, digits: int = 64) -> pa.Array:
    """Return random hexadecimal text."""
    raw = np.random.default_rng(seed).integers(0, 256, count * digits // 2, np.uint8)
    alphabet = np.frombuffer(b"0123456789abcdef", np.uint8)
    text = alphabet[np.stack([raw >> 4, raw & 15], axis=1).ravel()]
    offsets = np.arange(0, (count + 1) * digits, digits, dtype=np.int32)
    return pa.Array.from_buffers(pa.string(), count, [None, pa.py_buffer(offsets), pa.py_buffer(text)])


def keys_of(first: int, count: int) -> pa.Array:
    """Return keys that rise with the row: its number, and a digest."""
    return pa.array([f"{hash_of(row)}" for row in range(first, first + count)], pa.string())


def hash_of(row: int) -> str:
    """Return the key of a row: 24 hexadecimal digits that rise with it."""
    return f"{row:010x}{(row * 2654435761) % 2**56:014x}"


def scores_of(seed: int, count: int) -> pa.Array:
    """Return maps of `NAMES` to numbers of six decimals."""
    values = np.round(np.random.default_rng(seed).random(count * len(NAMES)), 6)
    names = pa.array(NAMES * count, pa.string())
    offsets = pa.array(np.arange(0, (count + 1) * len(NAMES), len(NAMES), dtype=np.int32))
    return pa.MapArray.from_arrays(offsets, names, pa.array(values))


def members_of(offset_N: NDArray[np.int64]) -> pa.Array:
    """Return the members of samples: json, txt, an embedding and a clip."""
    suffixes, begins, sizes = (
        ["json", "txt", "video.npy", "mp4"],
        [512, 3072, 4096, 6656],
        [2048, 90, 1152, 1 << 20],
    )
    flat = pa.StructArray.from_arrays(
        [
            pa.array(suffixes * len(offset_N), pa.string()),
            pa.array((offset_N[:, None] + np.array(begins)).ravel()),
            pa.array(np.tile(np.array(sizes, np.int64), len(offset_N))),
        ],
        fields=list(INDEX.field("members").type.value_type),
    )
    return pa.ListArray.from_arrays(np.arange(0, 4 * len(offset_N) + 1, 4, dtype=np.int32), flat)


def repeated(word: str, count: int) -> pa.Array:
    """Return a constant column."""
    return pa.array([word] * count, pa.string())


def sources_of(first: int, count: int) -> pa.Array:
    """Return the sources of rows."""
    return pa.array(
        [f"s3://footage/raw/2026/{source:010d}.mp4" for source in places_in_sources(first, count)[0].tolist()]
    )


def places_in_sources(first: int, count: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the source of each row and its place in it; all of the first shard are of source 0."""
    row_N = np.arange(first, first + count)
    begun = row_N < PER_SHARD
    return np.where(begun, 0, row_N // PER_SOURCE), np.where(begun, row_N, row_N % PER_SOURCE)


def size_of_sample() -> int:
    """Return the bytes of a sample with headers and padding."""
    return 6656 + (1 << 20)


def shard_table(number: int, rows: int) -> pa.Table:
    """Return the index rows of a shard."""
    first = number * PER_SHARD
    count = min(PER_SHARD, rows - first)
    generator = np.random.default_rng(number)
    offset_N = np.arange(count, dtype=np.int64) * size_of_sample()
    word_NW = generator.integers(0, len(WORDS), (count, 18))
    start_N = places_in_sources(first, count)[1] * 5.0
    empty = pa.MapArray.from_arrays(
        np.zeros(count + 1, np.int32), pa.array([], pa.string()), pa.array([], pa.string())
    )
    model = pa.MapArray.from_arrays(
        np.arange(0, 2 * count + 1, 2, dtype=np.int32),
        pa.array(["model", "prompt_sha256"] * count),
        pa.array(["Qwen2.5-VL-7B", "ab" * 32] * count),
    )
    digests = pa.MapArray.from_arrays(
        np.arange(count + 1, dtype=np.int32), repeated("video.npy", count), hexes(4 * number + 3, count)
    )
    source_sha256 = hexes(number + 10**9, count // PER_SOURCE + 1).take(
        pa.array(np.arange(count) // PER_SOURCE)
    )
    columns: dict[str, Any] = {
        "key": keys_of(first, count),
        "shard": repeated(path_of(number), count),
        "offset": pa.array(offset_N),
        "size": pa.array(np.full(count, size_of_sample(), np.int64)),
        "members": members_of(offset_N),
        "frames": pa.array(generator.integers(60, 240, count).astype(np.int32)),
        "fps": pa.array(generator.choice([24.0, 25.0, 30.0], count)),
        "height": pa.array(np.full(count, 720, np.int32)),
        "width": pa.array(np.full(count, 1280, np.int32)),
        "duration_s": pa.array(np.full(count, 5.0)),
        "text_tokens": pa.array(generator.integers(10, 200, count).astype(np.int32)),
        "caption": pa.array([" ".join([WORDS[word] for word in row]) for row in word_NW.tolist()]),
        "caption_source": repeated("model:Qwen2.5-VL-7B", count),
        "caption_provenance": model,
        "source": sources_of(first, count),
        "source_sha256": source_sha256,
        "attributes": empty,
        "start_s": pa.array(start_N),
        "end_s": pa.array(start_N + 5.0),
        "scores": scores_of(number, count),
        "audio": repeated("none", count),
        "split": repeated("train", count),
        "bin": repeated("all", count),
        "sha256": hexes(4 * number, count),
        "embeddings": digests,
        "sample_sha256": hexes(4 * number + 1, count),
        CRC32: pa.array(generator.integers(0, 2**32, count).astype(np.uint32)),
    }
    return pa.table(columns).cast(_WITH_CRC32)


def path_of(number: int) -> str:
    """Return the path of a shard."""
    return f"shards/{number:06d}-{hashlib.sha256(str(number).encode()).hexdigest()[:12]}.tar"


def accounting_table(first: int, count: int) -> pa.Table:
    """Return accounting rows of samples."""
    start_N = places_in_sources(first, count)[1] * 5.0
    nothing = pa.nulls(count, pa.float64())
    columns = [
        sources_of(first, count),
        pa.array(start_N),
        pa.array(start_N + 5.0),
        keys_of(first, count),
        repeated("kept", count),
        repeated("shard", count),
        repeated("", count),
        nothing,
        nothing,
        pa.nulls(count, pa.string()),
    ]
    return pa.Table.from_arrays(columns, schema=ACCOUNTING)


def scores_table(first: int, count: int) -> pa.Table:
    """Return score rows of samples."""
    start_N = places_in_sources(first, count)[1] * 5.0
    columns = [
        keys_of(first, count),
        sources_of(first, count),
        pa.array(start_N),
        pa.array(start_N + 5.0),
        repeated("kept", count),
        scores_of(first + 1, count),
    ]
    return pa.Table.from_arrays(columns, SCHEMA_NAMES).cast(SCORES)


SCHEMA_NAMES = SCORES.names


def parts(rows: int, size: int = 1 << 16) -> Iterator[tuple[int, int]]:
    """Yield first row and number of rows of parts."""
    for first in range(0, rows, size):
        yield first, min(size, rows - first)


def records(rows: int) -> list[ShardRecord]:
    """Return shards whose rows are made each time they are read."""
    made = []
    for number in range(-(-rows // PER_SHARD)):
        own = TableRows(partial(shard_table, number, rows), min(PER_SHARD, rows - number * PER_SHARD))
        made.append(ShardRecord(path_of(number), PER_SHARD * size_of_sample() + 1024, "ab" * 32, own))
    return made


def reader(make: Callable[[int, int], pa.Table], rows: int) -> pa.RecordBatchReader:
    """Return a table that is made as it is read."""
    batches = (batch for part in parts(rows) for batch in make(*part).to_batches())
    return pa.RecordBatchReader.from_batches(make(0, 1).schema, batches)


def publish_step(folder: Path, rows: int) -> None:
    """Publish a dataset."""
    content = Content(
        reader(accounting_table, rows), reader(scores_table, rows), {"curate": {}}, {"reelweave": "bench"}
    )
    publish(open_storage(folder), records(rows), content)


def making_s(rows: int) -> float:
    """Return the seconds it takes to make what `publish` reads, which it does two or three times."""
    began = time.process_time()
    for number in range(min(200, rows // PER_SHARD)):
        shard_table(number, rows)
    return (time.process_time() - began) / (min(200, rows // PER_SHARD) * PER_SHARD)


def write_idx(folder: Path, rows: int) -> None:
    """Write the ``.idx`` files of the shards."""
    folder.joinpath("shards").mkdir(parents=True)
    for first, count in parts(rows, PER_SHARD):
        offsets = [size_of_sample() * row for row in range(count)]
        path = folder / f"{path_of(first // PER_SHARD)}.idx"
        path.write_bytes(idx_bytes(offsets, size_of_sample() * count))


def verify_step(folder: Path) -> dict[str, Any]:
    """Verify a dataset without tars."""
    from reelweave.loader.dataset import verify

    found = verify(open_storage(folder))
    wrong = [one for one in found.problems if "is missing, or is no file" not in one]
    return {"problems": len(found.problems), "others": wrong[:3]}


def update_step(folder: Path) -> None:
    """Publish a revision with a shard more, and with what an updated curation holds of the present one."""
    from reelweave.curate.run.tables.places import identities_of, places_of
    from reelweave.loader.dataset import open_dataset

    dataset = open_dataset(folder)
    places = places_of(dataset)
    present = dataset.shards()
    first = (len(present) + 1) * PER_SHARD
    rows = TableRows(shard_table(len(present) + 1, first + PER_SHARD))
    new = ShardRecord(path_of(len(present) + 1), PER_SHARD * size_of_sample() + 1024, "ab" * 32, rows)
    accounting, scores = (
        read_once(itertools.chain(dataset.table_parts(name), [make(first, PER_SHARD)]), TABLES[name])
        for name, make in (("accounting", accounting_table), ("scores", scores_table))
    )
    content = Content(accounting, scores, dataset.manifest.config, dataset.manifest.versions)
    publish(dataset.storage, [*present, new], content, dataset.manifest)
    assert sum(map(len, identities_of(open_dataset(folder)))) == len(places) + PER_SHARD


def latents_step(folder: Path, rows: int) -> dict[str, Any]:
    """Plan a version with latents, read the rows of its shards as workers would, and publish it; encode nothing."""
    from reelweave.loader.buckets.assignment import BucketConfig, assign
    from reelweave.loader.dataset import open_dataset
    from reelweave.loader.read.stream_config import StreamConfig
    from reelweave.pipelines.configuration.train_config import TrainRunConfig
    from reelweave.pipelines.latents.buckets import described, plan_shards, size_of
    from reelweave.pipelines.latents.publish import publish_version
    from reelweave.pipelines.latents.work import MeasuredBucket
    from reelweave.train.config.run import TrainConfig

    train = TrainConfig()
    buckets = BucketConfig(
        frames=(17, 33),
        sizes=((176, 320),),
        compression=train.compression,
        max_text_tokens=256,
        memory_tokens=20_000,
    )
    config = TrainRunConfig(
        dataset=str(folder), out=folder.parent / "run", stream=StreamConfig(buckets=buckets), train=train
    )
    source = open_dataset(folder)
    assignment = assign(source.plan_index, buckets)
    measured = [
        MeasuredBucket(size_of(assignment, place), (16, 5, 22, 40), 0.1, "cpu", None)
        for place in range(len(assignment.buckets))
    ]
    asked = {"text": None, "source_index": source.fingerprint, "tokenizer": {}, "shapes": {}, "seed": 0}
    latents = described(source, config, assignment, asked, measured)
    plans = plan_shards(source, config, assignment, latents)

    for plan in plans:
        source.rows_at(plan.rows, INDEX.names)
    publish_version(source, open_storage(folder.parent / "version"), records(rows), {}, asked, latents, {})
    return {"shards": len(plans)}


def main(arguments: list[str] | None = None) -> int:
    """Print a JSON line for each step."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, nargs="+", default=[100_000])
    parser.add_argument("--steps", nargs="+", default=list(STEPS), choices=STEPS)
    parser.add_argument("--folder", default=None)
    parser.add_argument("--step", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.step:
        print(json.dumps(measured(options.step[0], Path(options.step[1]), int(options.step[2]))))
        return 0
    for rows in options.rows:
        with tempfile.TemporaryDirectory(prefix="reelweave-index-", dir=options.folder) as name:
            write_idx(Path(name) / "dataset", rows)
            for step in options.steps:
                command = [
                    sys.executable,
                    "-m",
                    "tests.bench.index_scale",
                    "--step",
                    step,
                    f"{name}/dataset",
                    str(rows),
                ]
                done = subprocess.run(command, stdout=subprocess.PIPE, check=False)
                found = json.loads(done.stdout) if done.returncode == 0 else {"failed": done.returncode}
                print(json.dumps({"rows": rows, "step": step, **found}), flush=True)
            sizes = {
                path.name: round(path.stat().st_size / rows, 1)
                for path in Path(name).rglob("*")
                if path.suffix in (".parquet", ".arrow", ".sqlite", ".json")
            }
            print(json.dumps({"rows": rows, "bytes_per_row": sizes}), flush=True)
    return 0


def measured(step: str, folder: Path, rows: int) -> dict[str, Any]:
    """Run a step in this process, and return its time and memory."""
    import pyarrow.parquet  # noqa: F401

    before = status("VmHWM")
    began, began_cpu = time.perf_counter(), time.process_time()
    found: dict[str, Any] = {}
    if step == "publish":
        publish_step(folder, rows)
        found["making_us_per_row"] = round(making_s(rows) * 1e6, 2)
    elif step == "verify":
        found = verify_step(folder)
    elif step == "latents":
        found = latents_step(folder, rows)
    elif step == "report":
        from reelweave.loader.dataset import open_dataset
        from reelweave.pipelines.commands.look.report import NOT_READ, spare_memory, write_report
        from reelweave.pipelines.report.buckets import report_config

        spare_memory()
        config = report_config(str(folder), None, [])
        write_report(open_dataset(folder, config.storage, NOT_READ), config)
    else:
        from reelweave.curate.takedown.removal import remove
        from reelweave.loader.dataset import Removal

        storage = open_storage(folder)
        if step == "remove":
            source = sources_of(0, 1)[0].as_py()
            done = remove(storage, Removal(source=source, date="2026-01-01", reason="asked for", samples=0))
            found = {"samples": done.samples}
        else:
            update_step(folder)
        found["revision"] = read_manifest(storage).revision
    passed, cpu, peak = time.perf_counter() - began, time.process_time() - began_cpu, status("VmHWM") - before
    return {
        **found,
        "us_per_row": round(passed / rows * 1e6, 2),
        "cpu_us_per_row": round(cpu / rows * 1e6, 2),
        "bytes_per_row": round(peak / rows, 1),
        "peak_gib": round(peak / 2**30, 2),
    }


if __name__ == "__main__":
    sys.exit(main())
