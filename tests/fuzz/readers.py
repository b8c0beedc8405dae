"""Readers of bytes that somebody else wrote, each with whole inputs to begin from.

A reader is called with an empty folder of its own, and with bytes. It may return, or raise one of `OURS` in words.
"""

import hashlib
import io
import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from reelweave.loader.dataset.tars.tar_format import TarError
from reelweave.loader.errors import RunError, UsageError

OURS = (RunError, UsageError)  # ObjectError is a RunError
CONFIGS = Path(__file__).parents[2] / "pipelines" / "configs"


class Reader(NamedTuple):
    """One reader.

    Attributes:
        read: called with a folder and the bytes.
        seeds: makes whole inputs, in an empty folder.
    """

    read: Callable[[Path, bytes], object]
    seeds: Callable[[Path], list[bytes]]


def _file(folder: Path, name: str, data: bytes) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


# -- tar


def _tars(folder: Path) -> list[bytes]:
    import tarfile

    made = []
    for kind in (tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT):
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w", format=kind) as tar:
            for key in ("a", "b" * (90 if kind == tarfile.USTAR_FORMAT else 200)):
                for suffix, size in (("json", 40), ("txt", 10), ("mp4", 700)):
                    info = tarfile.TarInfo(f"{key}.{suffix}")
                    info.size = size
                    tar.addfile(info, io.BytesIO(b"x" * size))
        made.append(buffer.getvalue())
    return made


def _tar(folder: Path, data: bytes) -> object:
    from reelweave.loader.dataset.tars.tar_samples import read_sample
    from reelweave.loader.dataset.tars.tar_scan import TarScan

    samples = list(TarScan(io.BytesIO(data)))
    with suppress(*OURS, TarError):
        read_sample(data)
    return samples


# -- dataset: one file of it is replaced, and every checksum made anew

_DATASET: dict[str, bytes] = {}


def _dataset(folder: Path) -> dict[str, bytes]:
    from tests.loader.stream_clips import make_sample, write

    if not _DATASET:
        write(folder / "made", [make_sample(f"key{n}", b"clip" * n, 9, (80, 64)) for n in range(1, 4)])
        for path in sorted((folder / "made").rglob("*")):
            if path.is_file():
                _DATASET[str(path.relative_to(folder / "made"))] = path.read_bytes()
        shutil.rmtree(folder / "made")
    return _DATASET


def _signed(manifest: dict[str, Any]) -> bytes:
    body = {name: value for name, value in manifest.items() if name != "sha256"}
    digest = hashlib.sha256(json.dumps(body, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
    return json.dumps({**body, "sha256": digest}).encode()


def _with_file(ending: str) -> Reader:
    def named(folder: Path) -> str:
        return next(name for name in _dataset(folder) if name.endswith(ending))

    def read(folder: Path, data: bytes) -> object:
        name, files = named(folder), dict(_dataset(folder))
        files[name] = data
        if name == "manifest.json":
            with suppress(ValueError, RecursionError):
                held = json.loads(data)
                if isinstance(held, dict):
                    files[name] = _signed(held)
        else:
            manifest = json.loads(files["manifest.json"])
            for entry in (*manifest["files"], *manifest["shards"]):
                if entry["path"] == name:
                    entry |= {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
            files["manifest.json"] = _signed(manifest)
        for path, content in files.items():
            _file(folder / "dataset", path, content)
        return _opened(folder / "dataset")

    return Reader(read, lambda folder: [_dataset(folder)[named(folder)]])


def _opened(folder: Path) -> object:
    from reelweave.loader.dataset import open_dataset
    from reelweave.loader.dataset.checks.verify import verify
    from reelweave.loader.storage import open_storage

    with suppress(*OURS):
        verify(open_storage(folder))
    dataset = open_dataset(folder)
    for read in (
        lambda: dataset.plan_index,
        lambda: dataset.index,
        lambda: dataset.accounting.num_rows,
        lambda: dataset.clip(0, dataset.read_range(0, 0, 4096)),
    ):
        with suppress(*OURS, FileNotFoundError):  # as `Dataset.read_range` says of a shard
            read()
    return dataset.manifest


# -- plans


def _plan_seeds(folder: Path) -> list[bytes]:
    from reelweave.loader.dataset.plan_index import PlanIndex, to_arrow

    ones = np.ones(3)
    types = (np.int32, np.float32, np.uint16, np.uint16, np.int32, np.int32, np.int64, np.uint32, np.uint32)
    return [to_arrow(PlanIndex(*(ones.astype(kind) for kind in types)))]


def _plan(folder: Path, data: bytes) -> object:
    from reelweave.loader.dataset.history import RevisionHistory
    from reelweave.loader.dataset.plan_index import from_arrow

    with suppress(*OURS):
        RevisionHistory.from_arrow(data, "history.arrow")
    return from_arrow(data, "plan.arrow", 3)


# -- states of the loader and of training

_STATE = {
    "version": 5,
    "dataset": "ab" * 32,
    "config": "cd" * 32,
    "seed": 3,
    "step": 7,
    "epoch": 1,
    "settings": [{"policy": "balanced", "regime": "step", "lookahead": 1, "cost": None, "stage": 0}],
    "parts": [[0, 4, 2, 7]],
    "eras": [[0, 0]],
}


def _states(folder: Path) -> list[bytes]:
    reading = {"stream": _STATE, "rank": 0, "worker": 0, "workers": 1, "next": 2}
    worker = {"fetcher_state": {"dataset_iter_state": reading}}
    snapshot = {"_last_yielded_worker_id": 0, "_worker_snapshots": {"worker_0": worker}}
    kept = {"_snapshot": snapshot, "_steps_since_snapshot": 1}
    return [json.dumps(one).encode() for one in (_STATE, {"stream": _STATE}, reading, kept)]


def _state(folder: Path, data: bytes) -> object:
    from reelweave.loader.storage import StorageConfig
    from reelweave.loader.stream.cursor.loader_state import read_iterator_state, read_loader_state
    from reelweave.loader.stream.state_diff import diff_states
    from reelweave.pipelines.commands.train.state import _read, describe

    with suppress(ValueError, RecursionError):
        held = json.loads(data)
        if isinstance(held, dict):
            for read in (read_loader_state, read_iterator_state):
                with suppress(*OURS):
                    read(held)
    state = _read(str(_file(folder, "state.json", data)), StorageConfig()).state
    describe(state)
    return diff_states(state, state)


def _checkpoint_files(folder: Path) -> dict[str, bytes]:
    import torch

    from reelweave.loader.storage import open_storage
    from reelweave.train.checkpoint.saver import Checkpoints
    from reelweave.train.checkpoint.state import CheckpointState
    from reelweave.train.config.checkpoint import CheckpointConfig
    from reelweave.train.distributed.world import World

    groups = {"model": {"a.weight": torch.ones(2, 3), "a.bias": torch.ones(2).bfloat16()}}
    world = World(0, 1, torch.device("cpu"))
    Checkpoints(open_storage(folder / "made"), CheckpointConfig(), world, groups).save(
        CheckpointState(step=5, stream=_STATE, config={"seed": 1}), last=True
    )
    found = {
        str(path.relative_to(folder / "made")): path.read_bytes()
        for path in sorted((folder / "made").rglob("*"))
        if path.is_file()
    }
    shutil.rmtree(folder / "made")
    return found


_CHECKPOINT: dict[str, bytes] = {}


def _checkpoint(ending: str) -> Reader:
    def made(folder: Path) -> dict[str, bytes]:
        if not _CHECKPOINT:
            _CHECKPOINT.update(_checkpoint_files(folder))
        return _CHECKPOINT

    def read(folder: Path, data: bytes) -> object:
        from reelweave.loader.storage import open_storage
        from reelweave.train.checkpoint.export import export
        from reelweave.train.checkpoint.folder import locate_checkpoint
        from reelweave.train.checkpoint.state import read_checkpoint_state

        for path, content in made(folder).items():
            _file(folder / "run", path, data if path.endswith(ending) else content)
        storage, step = locate_checkpoint(str(folder / "run"))
        state = read_checkpoint_state(storage, step)
        return export(storage, step, state, "model", None, open_storage(folder / "out"), "w.safetensors")

    def seeds(folder: Path) -> list[bytes]:
        return [data for path, data in made(folder).items() if path.endswith(ending)]

    return Reader(read, seeds)


# -- configurations


def _config(folder: Path, data: bytes) -> object:
    from reelweave.curate.config import CurateConfig
    from reelweave.pipelines.configuration.config import resolve
    from reelweave.pipelines.configuration.train_config import TrainRunConfig

    file = _file(folder, "config.yaml", data)
    with suppress(*OURS):
        resolve(CurateConfig, file, [])
    return resolve(TrainRunConfig, file, ["dataset=x", "out=y"])


def _overrides(folder: Path, data: bytes) -> object:
    from reelweave.curate.config import CurateConfig
    from reelweave.pipelines.configuration.config import resolve

    return resolve(CurateConfig, None, data.decode("utf-8", "surrogateescape").split("\n"))


def _blend(folder: Path, data: bytes) -> object:
    from reelweave.loader.blend.reading import read_blend_file
    from reelweave.loader.storage import StorageConfig

    return read_blend_file(str(_file(folder, "blend.yaml", data)), StorageConfig())


_BLEND = b"""__module__: megatron.energon
__class__: MetadatasetV2
splits:
  train: {blend: [{path: a, weight: 2.0}, {path: b, subset: {range: [0%, 50%]}}], epoch_samples: 40}
  val: {path: c}
"""

# -- what people give to curate


def _sidecar(folder: Path, data: bytes) -> object:
    from reelweave.curate.caption.config import CaptionConfig
    from reelweave.curate.caption.written import find_written
    from reelweave.loader.storage import open_storage

    found = []
    for suffix in ("txt", "json"):
        _file(folder, f"{suffix}/a.{suffix}", data)
        with suppress(*OURS):
            storage = open_storage(folder / suffix)
            found.append(find_written(storage, "a.mp4", None, {}, CaptionConfig()))
    return found


def _listing(suffix: str) -> Callable[[Path, bytes], object]:
    def read(folder: Path, data: bytes) -> object:
        from reelweave.curate.sources.lists import read_list

        return list(read_list(io.BytesIO(data), f"list.{suffix}"))

    return read


_SEGMENTS = b"""{"path": "a.mp4", "timestamp": [["0:01", "0:03.5"], [4, 6]], "caption": ["x", "y"], "score": [1, 2]}
{"videoID": "b", "clip": "[{'span': ['0:01', '0:03,5'], 'text': \\"x\\"}]"}
{"path": "c.mp4", "start_frame": 3, "end_frame": "90", "fps": 29.97, "timestamp": "0:01 - 0:03"}
"""


_PANDA = b"""url,timestamp,caption,matching_score
a.mp4,"[['0:00:00.500', '0:00:03'], ['0:05', '0:08']]","['it\\'s', ""a 'kite'""]","[0.42, -1e3]"
"""


def _parquet(folder: Path) -> list[bytes]:
    buffer = io.BytesIO()
    columns = {"path": ["a.mp4", "b.mp4"], "caption": ["x", None], "n": [1, 2], "v": [[1.0], [2.0]]}
    pq.write_table(pa.table(columns), buffer)
    return [buffer.getvalue()]


def _address(folder: Path, data: bytes) -> object:
    from reelweave.loader.storage import open_object, open_storage, public_url
    from reelweave.loader.storage.names import redact_uri, without_secrets

    text = data.decode("utf-8", "surrogateescape")
    assert len(without_secrets(text)) <= 2 * len(text) + 10
    for read in (open_storage, open_object, redact_uri, public_url):
        # `public_url` is for addresses that were checked, whose parts urllib can tell.
        with suppress(*OURS, *((ValueError,) if read is public_url else ())):
            read(text)  # type: ignore[operator]
    return None


_S3_PAGE = b"""<?xml version="1.0" encoding="UTF-8"?>
<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/"><Name>bucket</Name><Prefix></Prefix><KeyCount>2</KeyCount>
<MaxKeys>1000</MaxKeys><IsTruncated>false</IsTruncated><Contents><Key>raw/a.mp4</Key><Size>10</Size><ETag>"1"</ETag>
<LastModified>2026-01-01T00:00:00.000Z</LastModified></Contents><Contents><Key>raw/b.mp4</Key><Size>11</Size><ETag>"2"</ETag>
<LastModified>2026-01-01T00:00:00.000Z</LastModified></Contents></ListBucketResult>"""
_S3_ERROR = b"""<?xml version="1.0"?><Error><Code>SlowDown</Code><Message>x</Message></Error>"""


def _s3_listing(folder: Path, data: bytes) -> object:
    """A listing as the endpoint answers it; nothing is sent."""
    import os
    import zlib

    from botocore.awsrequest import AWSResponse

    from reelweave.loader.storage import StorageConfig, open_storage
    from reelweave.loader.storage.s3.client import client_of

    os.environ |= {
        "AWS_ACCESS_KEY_ID": "x",
        "AWS_SECRET_ACCESS_KEY": "x",
        "AWS_EC2_METADATA_DISABLED": "true",
    }
    config = StorageConfig(
        endpoint_url="http://127.0.0.1:9",
        region="us-east-1",
        max_attempts=1,
        backoff_base_s=0,
        backoff_cap_s=0,
    )
    events = client_of(config, os.getpid()).meta.events
    status = 200 if data[:1] == b"<" else 100 + zlib.crc32(data) % 500

    class Body(io.BytesIO):
        def stream(self, *_: object) -> Iterator[bytes]:
            yield data

    def answer(request: Any, **_: object) -> AWSResponse:
        return AWSResponse(request.url, status, {"Content-Type": "application/xml"}, Body(data))

    events.register_first("before-send.s3", answer, unique_id="fuzz")
    try:
        return list(open_storage("s3://bucket/raw", config).list(""))
    finally:
        events.unregister("before-send.s3", answer, unique_id="fuzz")


# -- costs, timings, traces, records of a run

_TIMINGS = b"batch,length,step_s,peak_gib\n" + b"".join(
    b"%d,%d,%.3f,%.2f\n" % (n, 500 * n, 0.1 * n * n, 1 + n * n) for n in range(1, 9)
)
_TABLE = b"module,batch,frames,height,width,degree,seconds,memory_gib\n" + b"".join(
    b"dit,1,%d,480,832,%d,%.2f,3\n" % (frames, degree, frames / degree)
    for frames in (5, 9)
    for degree in (1, 2)
)
_TRACE = json.dumps(
    {"gpus": 8, "steps": [[{"frames": 9, "height": 480, "width": 832}, {"tokens": 900}]]}
).encode()
_PROFILE = b"module,batch,frames,height,width,length,degree,seconds,peak_gib\n" + b"".join(
    b"%s,1,%d,480,832,900,%d,0.5,\n" % (name, frames, degree)
    for name in (b"dit", b"vae", b"text")
    for frames in (5, 9)
    for degree in (1, 2)
)


def _csv(folder: Path, data: bytes) -> object:
    from reelweave.loader.buckets.cost_fit import read_timings
    from reelweave.loader.buckets.memory_fit import fit_memory
    from reelweave.pipelines.terminal.files import read_text
    from reelweave.train.cascade.costs.profile_csv import read_profile
    from reelweave.train.cascade.simulation.cost_table import read_cost_table

    text = read_text(_file(folder, "a.csv", data))
    for read in (read_timings, fit_memory, read_cost_table, read_profile):
        with suppress(*OURS):
            read(text, "a.csv")
    return None


def _cost_models(folder: Path) -> list[bytes]:
    from reelweave.train.cascade.placement.topology import PRESETS
    from reelweave.train.cascade.simulation.cases import HUNYUAN_720P

    return [
        HUNYUAN_720P.model_dump_json().encode(),
        *(PRESETS[name].model_dump_json().encode() for name in ("pcie", "single")),
        json.dumps(
            {"columns": ["module", "frames", "degree", "seconds"], "rows": [["dit", 5, 1, 2.0]]}
        ).encode(),
    ]


def _cost_model(folder: Path, data: bytes) -> object:
    from reelweave.pipelines.plans.execution import topology_of
    from reelweave.pipelines.plans.problems import _cost_model as costs
    from reelweave.train.cascade.training.clip_costs import read_costs

    file = _file(folder, "a.json", data)
    for read in (read_costs, costs, lambda path: topology_of(str(path)).holding(8)):
        with suppress(*OURS):
            read(file)
    return _csv(folder, data)


def _trace(folder: Path, data: bytes) -> object:
    from reelweave.loader.buckets.tokens import COMPRESSIONS
    from reelweave.train.cascade.simulation.trace import read_trace

    return read_trace(_file(folder, "trace.json", data)).samples(COMPRESSIONS["hunyuanvideo"])


_METRICS = {
    "step": 3,
    "epoch": 0,
    "loss": 0.5,
    "learning_rate": 1e-4,
    "gradient_norm": 1.0,
    "samples": 4,
    "tokens": 900,
}


def _records(folder: Path, data: bytes) -> object:
    from reelweave.pipelines.report.run.rank_waits import read_rank_waits
    from reelweave.train.loop.logs.record import LOSSES, METRICS, RANKS
    from reelweave.train.loop.logs.records import forget_after, read_metrics

    for name in (METRICS, LOSSES, RANKS):
        _file(folder, name, data)
    found = list(read_metrics(folder, 100))
    read_rank_waits(folder)
    forget_after(folder, 100)
    return found


def _record_seeds(folder: Path) -> list[bytes]:
    from dataclasses import MISSING, fields

    from reelweave.train.loop.logs.metrics import StepMetrics
    from reelweave.train.measure.step_times import StepTimes

    needed = {
        one.name: 1 for kind in (StepMetrics, StepTimes) for one in fields(kind) if one.default is MISSING
    }
    lines = [json.dumps({**needed, **_METRICS, "step": step}) for step in (1, 2, 3)]
    waits = {"steps": 1, "seconds": 2.0, "wait_s": [0.5, 0.0], "last": [0, 1], "peak_gib": [60.5, 61.0]}
    lines += [json.dumps({"step": step, **waits}) for step in (1, 2)]
    return ["\n".join([*lines, '{"step": 4, "lo']).encode()]


def _description(folder: Path, data: bytes) -> object:
    from reelweave.train.models.published.folder import read_json

    return read_json(_file(folder, "config.json", data), "train.model.path")


def _only(*data: bytes) -> Callable[[Path], list[bytes]]:
    return lambda folder: list(data)


READERS: dict[str, Reader] = {
    "tar": Reader(_tar, _tars),
    "dataset: manifest": _with_file("manifest.json"),
    "dataset: index": _with_file("index.parquet"),
    "dataset: accounting": _with_file("accounting.parquet"),
    "dataset: plan": _with_file("plan.arrow"),
    "dataset: shard": _with_file(".tar"),
    "plan": Reader(_plan, _plan_seeds),
    "loader state": Reader(_state, _states),
    "checkpoint: state": _checkpoint("state.json"),
    "checkpoint: tensors": _checkpoint(".safetensors"),
    "configuration": Reader(
        _config, lambda folder: [(CONFIGS / name).read_bytes() for name in ("demo.yaml", "train.yaml")]
    ),
    "--set": Reader(_overrides, _only(b"cut.crf=20\nrun={runner: ray}", b"storage.endpoint_url=http://h:1")),
    "blend": Reader(_blend, _only(_BLEND)),
    "sidecar": Reader(_sidecar, _only(b"A boat, slowly.", b'{"caption": "A boat", "n": [1, 2]}')),
    "list: txt": Reader(_listing("txt"), _only(b"# list\na.mp4\nhttps://h/b.mp4\n")),
    "list: csv": Reader(
        _listing("csv"), _only(b'url,caption,licence\nhttps://h/b.mp4,"A boat, slowly",CC\n', _PANDA)
    ),
    "list: jsonl": Reader(
        _listing("jsonl"), _only(b'{"path": "a.mp4", "caption": "x", "n": [1]}\n{"url": "u"}\n', _SEGMENTS)
    ),
    "list: json": Reader(
        _listing("json"),
        _only(
            b'{"a.mp4": {"timestamps": [[0, 1.5], [1, 4]], "sentences": ["x", "y"]}, "b": {"caption": "x"}}',
            b'{"data": [{"path": "a.mp4", "start": 1, "end": 2, "caption": ["x"]}], "meta": {"n": 1}}',
        ),
    ),
    "list: parquet": Reader(_listing("parquet"), _parquet),
    "address": Reader(
        _address,
        _only(
            b"https://u:p@h:80/a/b.mp4?x=1#f",
            b"s3://bucket/a/b",
            b"file:///a/b.mp4",
            b"/a/b.mp4",
            b"http://[::1]/x",
        ),
    ),
    "S3 listing": Reader(_s3_listing, _only(_S3_PAGE, _S3_ERROR)),
    "timings and cost tables": Reader(_csv, _only(_TIMINGS, _TABLE, _PROFILE)),
    "cost models and topologies": Reader(_cost_model, _cost_models),
    "trace": Reader(_trace, _only(_TRACE)),
    "records of a run": Reader(_records, _record_seeds),
    "description of a model": Reader(
        _description, _only(b'{"_class_name": "WanTransformer3DModel", "x": [1, 2]}')
    ),
}
