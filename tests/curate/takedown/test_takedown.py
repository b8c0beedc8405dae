"""After a take-down no byte of a sample is left: not in a table, the report, the ledger, nor in a bucket's versions."""

import csv
import gzip
import io
import itertools
import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from reelweave.curate.config import CurateConfig
from reelweave.curate.ledger.ledger import Ledger
from reelweave.curate.run.curate import curate
from reelweave.loader.dataset import Dataset, open_dataset, verify
from reelweave.loader.storage import StorageConfig, open_storage
from reelweave.pipelines.commands.look.report import write_report
from reelweave.pipelines.report.buckets import default_config
from reelweave.pipelines.report.gallery.strips import strip
from tests.commands import reelweave
from tests.curate.run.test_run import config
from tests.media import write_video
from tests.s3server import make_bucket, s3_client, s3_server
from tests.thorough import beyond, but
from tests.tiny_models import tiny_text_encoder

CAPTIONS = {
    "gone.mp4": "a red kite over the pier at dawn",
    "the copy.mp4": "the very same film under another name",
    "stays.mp4": "two boats race around a buoy",
}


@pytest.fixture(scope="module")
def raw(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("raw")
    write_video(folder / "gone.mp4", (40,), first_scene=1, metadata={"comment": "secret words of a tag"})
    shutil.copy(folder / "gone.mp4", folder / "the copy.mp4")
    write_video(folder / "stays.mp4", (40,), first_scene=7)
    with (folder / "list.csv").open("w") as out:
        rows = csv.writer(out)
        rows.writerow(["path", "caption", "photographer"])
        rows.writerows([name, caption, f"author of {name}"] for name, caption in CAPTIONS.items())
    return folder


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> CurateConfig:
    model = tiny_text_encoder(tmp_path_factory.mktemp("model"), "t5")
    return config(text_embed={"model": str(model), "device": "cpu"})


@pytest.fixture(scope="module")
def made(raw: Path, full: CurateConfig, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("made") / "dataset"
    curate([str(raw / "list.csv")], str(out), full)
    write_report(open_dataset(out), default_config(StorageConfig()))
    # A run that was killed between writing a clip and closing its source.
    ledger = Ledger(open_storage(out))
    ledger.blobs.write_clip(
        "0123-orphan", open_dataset(out).read_member(number(open_dataset(out), "gone.mp4"), "mp4")
    )
    return out


@pytest.fixture(scope="module")
def s3() -> Iterator[StorageConfig]:
    with s3_server() as endpoint:
        yield StorageConfig(endpoint_url=endpoint)


def number(dataset: Dataset, source: str) -> int:
    """Row of the only sample of a source, or of its copy."""
    (found,) = (n for n, row in enumerate(dataset.index.to_pylist()) if row["source"].endswith(f"/{source}"))
    return found


def traces_of(dataset: Dataset, name: str) -> dict[str, bytes]:
    """What must be found nowhere once the sample is gone, by what it is."""
    row = number(dataset, name)
    clip = dataset.read_member(row, "mp4")
    arrays = {
        suffix: np.load(io.BytesIO(dataset.read_member(row, suffix))).tobytes()
        for suffix in ("text.npy", "video.npy")
    }
    picture = strip(clip, dataset.index["frames"][row].as_py())
    assert picture
    return {
        "clip": clip[len(clip) // 2 :][:64],
        "caption": dataset.index["caption"][row].as_py().encode(),
        "attribute": f"author of {name}".encode(),
        "picture": picture.jpeg,
        **{suffix: data[:48] for suffix, data in arrays.items()},
    }


def opened(path: str, data: bytes) -> bytes:
    """A file's bytes, behind them what its compression hides."""
    if path.endswith(".parquet"):
        return data + json.dumps(pq.read_table(io.BytesIO(data)).to_pylist()).encode()
    return data + gzip.decompress(data) if path.endswith(".gz") else data


def report_data(files: dict[str, bytes]) -> dict[str, bytes]:
    return {path: data for path, data in files.items() if "report/data/" in path}


def found_in(files: dict[str, bytes], traces: dict[str, bytes]) -> dict[str, set[str]]:
    whole = {path: opened(path, data) for path, data in files.items()}
    return {what: {path for path, data in whole.items() if trace in data} for what, trace in traces.items()}


@pytest.fixture
def place(request: pytest.FixtureRequest, made: Path, tmp_path: Path) -> tuple[str, StorageConfig]:
    """The dataset, in a folder or in a bucket that keeps versions."""
    if request.param == "folder":
        return str(shutil.copytree(made, tmp_path / "dataset")), StorageConfig()
    config = request.getfixturevalue("s3")
    name = f"bucket-{tmp_path.name[-12:].strip('-_').replace('_', '-')}"
    make_bucket(config.endpoint_url, name)
    s3_client(config.endpoint_url).put_bucket_versioning(
        Bucket=name, VersioningConfiguration={"Status": "Enabled"}
    )
    storage = open_storage(f"s3://{name}/set", config)
    for path in (path for path in made.rglob("*") if path.is_file()):
        storage.write(str(path.relative_to(made)), path.read_bytes())
    return f"s3://{name}/set", config


def everything(uri: str, config: StorageConfig) -> dict[str, bytes]:
    """Every file, and every version of every object."""
    if not uri.startswith("s3://"):
        return {
            str(path.relative_to(uri)): path.read_bytes() for path in Path(uri).rglob("*") if path.is_file()
        }
    bucket, client = uri.split("/")[2], s3_client(config.endpoint_url)
    return {
        f"{found['VersionId']}/{found['Key']}": client.get_object(
            Bucket=bucket, Key=found["Key"], VersionId=found["VersionId"]
        )["Body"].read()
        for page in client.get_paginator("list_object_versions").paginate(Bucket=bucket)
        for found in page.get("Versions", ())
    }


@pytest.mark.parametrize(
    ("place", "by"),
    but(
        [("folder", "key")],
        itertools.product(("folder", "bucket"), ("key", "source")),
        [("folder", "source"), ("bucket", "key")],
    ),
    indirect=["place"],
)
def test_nothing_of_a_sample_is_left(raw: Path, place: tuple[str, StorageConfig], by: str) -> None:
    uri, config = place
    dataset = open_dataset(uri, config)
    gone, stays = (traces_of(dataset, name) for name in ("gone.mp4", "stays.mp4"))
    assert all(found_in(everything(uri, config), gone).values())
    key = dataset.index["key"][number(dataset, "gone.mp4")].as_py()
    of_gallery = {"key": key.encode(), "source": b"gone.mp4"}
    assert all(found_in(report_data(everything(uri, config)), of_gallery).values())
    what = ("--key", key) if by == "key" else ("--source", str(raw / "gone.mp4"))
    endpoint = ("--endpoint-url", config.endpoint_url) if config.endpoint_url else ()
    done = reelweave("remove", uri, *what, *endpoint)
    assert done.returncode == 0, done.stderr
    files = everything(uri, config)
    assert found_in(files, gone) == {trace: set() for trace in gone}
    assert found_in(report_data(files), of_gallery) == {"key": set(), "source": set()}
    assert all(found_in(files, stays).values())
    assert verify(open_storage(uri, config)).problems == []


@pytest.mark.parametrize(
    ("left", "by"),
    beyond(
        1,
        [
            ("report", "source"),
            ("clip", "key"),
            ("map.parquet", "key"),
            ("report", "key"),
            ("map.parquet", "source"),
        ],
    ),
)
def test_verify_tells_what_an_interrupted_take_down_left(
    raw: Path, made: Path, tmp_path: Path, left: str, by: str
) -> None:
    folder = Path(shutil.copytree(made, tmp_path / "dataset"))
    dataset = open_dataset(folder)
    key = dataset.index["key"][number(dataset, "gone.mp4")].as_py()
    what = ("--key", key) if by == "key" else ("--source", raw / "gone.mp4")
    reelweave("remove", folder, *what)
    if left == "report":
        shutil.copytree(made / "report", folder / "report", dirs_exist_ok=True)
    elif left == "map.parquet":
        shutil.copy(made / "report" / left, folder / "report" / left)
    else:
        Ledger(open_storage(folder)).blobs.write_clip(f"{key}-1234", b"clip")
    (problem,) = verify(open_storage(folder)).problems
    assert (
        f"clips/{key}-1234.mp4 is left" if left == "clip" else "shows samples that were taken down"
    ) in problem
    reelweave("remove", folder, *what)
    assert verify(open_storage(folder)).problems == []


@pytest.mark.parametrize("by", beyond(1, ["key", "source"]))
def test_what_went_comes_back_by_no_later_run(
    raw: Path, made: Path, full: CurateConfig, tmp_path: Path, by: str
) -> None:
    folder = Path(shutil.copytree(made, tmp_path / "dataset"))
    dataset = open_dataset(folder)
    gone = traces_of(dataset, "gone.mp4")
    key = dataset.index["key"][number(dataset, "gone.mp4")].as_py()
    reelweave("remove", folder, *(("--key", key) if by == "key" else ("--source", raw / "gone.mp4")))
    for changes in (
        {"filters": {"min_motion": 0.0}},  # a threshold
        {"captions": {"max_chars": 1000}},  # other captions
        {"spans": {"max_clip_s": 1.5, "min_clip_s": 0.3}},  # the same seconds cut otherwise
    ):
        other = full.model_copy(
            update={name: getattr(full, name).model_copy(update=values) for name, values in changes.items()}
        )
        curate([str(raw / "list.csv")], str(folder), other, update=True)
        assert found_in(everything(str(folder), StorageConfig()), gone) == {trace: set() for trace in gone}
        names = {row["source"].rsplit("/", 1)[-1] for row in open_dataset(folder).index.to_pylist()}
        assert names == {"stays.mp4"}
        assert verify(open_storage(folder)).problems == []
