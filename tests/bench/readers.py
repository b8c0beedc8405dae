"""Other people's readers, loaders and clients around a dataset of ours: what each makes of all samples.

python -m tests.bench.readers [--only NAME]... [--aws PROGRAM] [--s3fs PYTHON]

Makes a dataset with `reelweave curate`, reads it with each of them in a process of its own, and compares key, clip and
caption of every sample with what the dataset's own reader gives. Prints a JSON line for each, with its version.
"""

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping
from importlib.metadata import PackageNotFoundError, version
from itertools import islice
from pathlib import Path
from typing import Any

from tests.media import write_video
from tests.s3server import make_bucket, s3_client, s3_server

Found = dict[str, tuple[str, str]]
"""By key: sha256 of the clip, and the caption."""


def found_of(samples: Iterable[Mapping[str, Any]]) -> Found:
    """Samples whose values are bytes, or decoded as most libraries do it."""
    found = {}
    for sample in samples:
        caption, clip = sample["txt"], sample["mp4"]
        text = caption.decode() if isinstance(caption, bytes) else caption
        content = clip["bytes"] if isinstance(clip, dict) else clip
        found[str(sample["__key__"])] = (hashlib.sha256(content).hexdigest(), text)
    return found


def expected(folder: str) -> Found:
    from reelweave.loader.dataset import open_dataset

    dataset = open_dataset(folder)
    return {
        row["key"]: (hashlib.sha256(dataset.read_media(number)).hexdigest(), row["caption"])
        for number, row in enumerate(dataset.index.to_pylist())
    }


def shards(folder: str) -> list[str]:
    return sorted(str(path) for path in Path(folder, "shards").glob("*.tar"))


def webdataset_plain(folder: str) -> Found:
    import webdataset

    return found_of(webdataset.WebDataset(shards(folder), shardshuffle=False))


def webdataset_pipeline(folder: str) -> Found:
    """Shuffled, decoded, batched and in worker processes, as its documentation shows it."""
    import webdataset

    pipeline = webdataset.WebDataset(
        shards(folder), shardshuffle=True, nodesplitter=None, workersplitter=webdataset.split_by_worker
    )
    tuples = pipeline.shuffle(10).decode().to_tuple("__key__", "mp4", "txt", "json").batched(2)
    loader = webdataset.WebLoader(tuples, batch_size=None, num_workers=2)
    found = {}
    for names, clips, captions, rows in loader:
        for key, clip, caption, row in zip(names, clips, captions, rows, strict=True):
            assert row["key"] == key
            found[key] = (hashlib.sha256(clip).hexdigest(), caption)
    return found


def ray_plain(folder: str) -> Found:
    import ray

    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    ray.data.DataContext.get_current().enable_progress_bars = False
    return found_of(ray.data.read_webdataset(folder + "/shards", file_extensions=["tar"]).iter_rows())


def ray_folder(folder: str) -> Found:
    """The list of tars, without the extension to look for."""
    import ray

    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    return found_of(ray.data.read_webdataset(shards(folder)).iter_rows())


def energon(folder: str) -> Found:
    """A CrudeWebdataset with a cooker, in worker processes, stopped, saved and restored."""
    from megatron.energon import WorkerConfig, get_savable_loader, get_train_dataset

    from tests.bench.energon_clips import Encoder

    def loader() -> Any:
        dataset = get_train_dataset(
            folder,
            worker_config=WorkerConfig(rank=0, world_size=1, num_workers=2),
            batch_size=None,
            shuffle_buffer_size=None,
            max_samples_per_sequence=None,
            task_encoder=Encoder(),
        )
        return get_savable_loader(dataset)

    first, other, found = loader(), loader(), {}
    samples = iter(first)
    taken = [next(samples) for _ in range(3)]
    other.restore_state_rank(first.save_state_rank())
    for one in [*taken, *islice(other, len(expected(folder)) - len(taken))]:
        found[one.__key__.split("/")[-1]] = (hashlib.sha256(one.clip).hexdigest(), one.caption)
    return found


def energon_lint(folder: str) -> Found:
    """Its command line."""
    for command in (["lint"], ["info"]):
        program = Path(sys.executable).with_name("energon")
        subprocess.run([program, *command, folder], check=True, capture_output=True)
    return expected(folder)


def hf_streaming(folder: str) -> Found:
    import datasets

    files = {"train": shards(folder)}
    read = datasets.load_dataset("webdataset", data_files=files, split="train", streaming=True)
    return found_of(read.cast_column("mp4", datasets.Video(decode=False)))


def hf_table(folder: str) -> Found:
    """The way of diffusers' training scripts: a table in a cache, a transform of examples, a shuffled DataLoader."""
    import datasets
    import torch

    read = datasets.load_dataset(
        "webdataset", data_files={"train": shards(folder)}, cache_dir=tempfile.mkdtemp()
    )
    read = read["train"].cast_column("mp4", datasets.Video(decode=False))

    def transform(examples: Mapping[str, list[Any]]) -> dict[str, list[Any]]:
        import io

        import av

        for clip in examples["mp4"]:
            with av.open(io.BytesIO(clip["bytes"])) as container:
                assert next(container.decode(video=0)).width
        return {"__key__": examples["__key__"], "mp4": examples["mp4"], "txt": examples["txt"]}

    loader = torch.utils.data.DataLoader(
        read.with_transform(transform), shuffle=True, batch_size=2, collate_fn=list, num_workers=2
    )
    return found_of(sample for batch in loader for sample in batch)


def hf_folder(folder: str) -> Found:
    """The whole folder by its name, as a person would try first."""
    import datasets

    read = datasets.load_dataset(folder, split="train", streaming=True)
    return found_of(read.cast_column("mp4", datasets.Video(decode=False)))


def pandas_index(folder: str) -> Found:
    """The tables, by pandas, polars and DuckDB, and the clips by the offsets in them."""
    import pandas

    table = pandas.read_parquet(f"{folder}/index.parquet")
    found = {}
    for row in table.to_dict("records"):
        members = {one["suffix"]: one for one in row["members"]}
        with Path(folder, row["shard"]).open("rb") as file:
            file.seek(members["mp4"]["offset"])
            clip = file.read(members["mp4"]["size"])
        found[row["key"]] = (hashlib.sha256(clip).hexdigest(), row["caption"])
    return found


def polars_index(folder: str) -> Found:
    import polars

    keys = polars.read_parquet(f"{folder}/index.parquet")["key"].to_list()
    assert polars.read_parquet(f"{folder}/accounting.parquet").height >= len(keys)
    wanted = expected(folder)
    return {key: wanted[key] for key in keys}


def duckdb_index(folder: str) -> Found:
    import duckdb

    rows = duckdb.sql(f"select key, members[1].suffix from '{folder}/index.parquet' order by key").fetchall()
    wanted = expected(folder)
    return {key: wanted[key] for key, _ in rows}


def tar_program(folder: str) -> Found:
    """GNU tar unpacks all shards over each other."""
    with tempfile.TemporaryDirectory() as out:
        for path in shards(folder):
            subprocess.run(["tar", "xf", path, "-C", out], check=True)
        return found_of(
            {"__key__": path.stem, "mp4": path.read_bytes(), "txt": path.with_suffix(".txt").read_bytes()}
            for path in Path(out).rglob("*.mp4")
        )


def decoders(folder: str) -> Found:
    """Clips by the decoders that people use: OpenCV, decord."""
    import cv2
    import decord

    from reelweave.loader.dataset import open_dataset

    dataset = open_dataset(folder)
    with tempfile.TemporaryDirectory() as out:
        for number, row in enumerate(dataset.index.to_pylist()):
            path = Path(out, f"{row['key']}.mp4")
            path.write_bytes(dataset.read_media(number))
            assert len(decord.VideoReader(str(path))) == row["frames"]
            capture = cv2.VideoCapture(str(path))
            assert int(capture.get(cv2.CAP_PROP_FRAME_COUNT)) == row["frames"]
            assert abs(capture.get(cv2.CAP_PROP_FPS) - row["fps"]) < 0.01
    return expected(folder)


def boto3_ranges(folder: str, endpoint: str) -> Found:
    """What we wrote to S3, listed, and each clip by a range of bytes."""
    client, found = s3_client(endpoint), {}
    from reelweave.loader.dataset import open_dataset

    for row in open_dataset("s3://theirs/set").index.to_pylist():
        [one] = [member for member in row["members"] if member["suffix"] == "mp4"]
        span = f"bytes={one['offset']}-{one['offset'] + one['size'] - 1}"
        body = client.get_object(Bucket="theirs", Key=f"set/{row['shard']}", Range=span)["Body"].read()
        found[row["key"]] = (hashlib.sha256(body).hexdigest(), row["caption"])
    return found


def aws_sync(folder: str, endpoint: str, program: str) -> Found:
    """Copied down and up again by the command line, then verified by ours and read."""
    s3 = [program, "--endpoint-url", endpoint, "s3"]
    with tempfile.TemporaryDirectory() as out:
        subprocess.run([*s3, "sync", "s3://theirs/set", out], check=True, capture_output=True)
        subprocess.run([*s3, "sync", out, "s3://theirs/again"], check=True, capture_output=True)
        environment = os.environ | {"AWS_ENDPOINT_URL": endpoint}
        for dataset in (out, "s3://theirs/again"):
            subprocess.run(
                [sys.executable, "-m", "reelweave.pipelines.cli", "verify", dataset],
                check=True,
                env=environment,
            )
        return expected(out)


def s3fs_reads(folder: str, endpoint: str, python: str) -> Found:
    """fsspec's S3 file system, in a Python of its own."""
    code = (
        "import hashlib, json, sys, tarfile, s3fs\n"
        "files, found = s3fs.S3FileSystem(endpoint_url=sys.argv[1]), {}\n"
        "for path in files.glob('theirs/set/shards/*.tar'):\n"
        "    with files.open(path) as file, tarfile.open(fileobj=file) as tar:\n"
        "        members = {one.name: tar.extractfile(one).read() for one in tar}\n"
        "    for name, clip in members.items():\n"
        "        if name.endswith('.mp4'):\n"
        "            found[name[:-4]] = [hashlib.sha256(clip).hexdigest(), members[name[:-4] + '.txt'].decode()]\n"
        "print(json.dumps(found))\n"
    )
    done = subprocess.run([python, "-c", code, endpoint], check=True, capture_output=True, text=True)
    return {key: tuple(value) for key, value in json.loads(done.stdout).items()}


READERS: dict[str, tuple[Callable[..., Found], str]] = {
    "webdataset": (webdataset_plain, "webdataset"),
    "webdataset, decoded, in workers": (webdataset_pipeline, "webdataset"),
    "Ray read_webdataset, folder": (ray_plain, "ray"),
    "Ray read_webdataset, tars": (ray_folder, "ray"),
    "Energon, saved and restored": (energon, "megatron-energon"),
    "energon lint, energon info": (energon_lint, "megatron-energon"),
    "datasets, webdataset, streaming": (hf_streaming, "datasets"),
    "datasets, webdataset, as diffusers' scripts": (hf_table, "datasets"),
    "datasets, the folder": (hf_folder, "datasets"),
    "pandas and offsets": (pandas_index, "pandas"),
    "polars": (polars_index, "polars"),
    "DuckDB": (duckdb_index, "duckdb"),
    "GNU tar": (tar_program, ""),
    "OpenCV, decord": (decoders, "decord"),
    "boto3, ranges": (boto3_ranges, "boto3"),
    "aws s3 sync": (aws_sync, ""),
    "s3fs": (s3fs_reads, ""),
}


def make(root: Path) -> str:
    """A curated dataset of some shards."""
    for number in range(4):
        write_video(root / f"raw/{number}.mp4", (60, 50), size=(320, 192), first_scene=3 * number)
    folder = str(root / "my-dataset")
    command = [sys.executable, "-m", "reelweave.pipelines.cli", "curate", str(root / "raw"), "--out", folder]
    subprocess.run(
        [*command, "--set", "run.runner=sequential", "--set", "shard.max_shard_mb=0.1"], check=True
    )
    return folder


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", action="append", help="name of a reader")
    parser.add_argument("--one", nargs="*", help=argparse.SUPPRESS)
    parser.add_argument("--aws", default="aws", help="the AWS command line")
    parser.add_argument("--s3fs", default=sys.executable, help="a Python with s3fs")
    parser.add_argument("--folder", help="a dataset that is there")
    asked = parser.parse_args()
    if asked.one:
        name, *arguments = asked.one
        Path(arguments.pop()).write_text(json.dumps(READERS[name][0](*arguments)))
        return
    with tempfile.TemporaryDirectory() as scratch, s3_server() as endpoint:
        folder = asked.folder or make(Path(scratch))
        make_bucket(endpoint, "theirs")
        for path in Path(folder).rglob("*"):
            if path.is_file():
                s3_client(endpoint).upload_file(str(path), "theirs", f"set/{path.relative_to(folder)}")
        extra = {
            "boto3, ranges": [endpoint],
            "aws s3 sync": [endpoint, asked.aws],
            "s3fs": [endpoint, asked.s3fs],
        }
        for name, (_, package) in READERS.items():
            if asked.only and name not in asked.only:
                continue
            out = Path(scratch, "found.json")
            command = [
                sys.executable,
                "-m",
                "tests.bench.readers",
                "--one",
                name,
                folder,
                *extra.get(name, []),
            ]
            words = _run([*command, str(out)], endpoint)
            found = {} if words else json.loads(out.read_text())
            wanted = {key: list(value) for key, value in expected(folder).items()}
            right = sum(found.get(key) == value for key, value in wanted.items())
            report = {"reader": name, "version": _version(package), "samples": len(wanted), "right": right}
            if words:
                report["error"] = words
            elif extra_keys := sorted(set(found) - set(wanted)):
                report["keys"] = extra_keys[:3]
            print(json.dumps(report), flush=True)
            out.unlink(missing_ok=True)


def _run(command: list[str], endpoint: str) -> str:
    """What went wrong; nothing where all went well."""
    try:
        environment = os.environ | {"AWS_ENDPOINT_URL": endpoint}
        done = subprocess.run(command, capture_output=True, text=True, timeout=100, env=environment)
    except subprocess.TimeoutExpired:
        return "no end in 100 s"
    return done.stderr.strip().splitlines()[-1][:300] if done.returncode else ""


def _version(package: str) -> str:
    try:
        return version(package) if package else ""
    except PackageNotFoundError:
        return "not installed"


if __name__ == "__main__":
    main()
