"""No byte of a dataset gives a traceback: damaged files, and manifests that somebody made to fit them."""

import io
import json
import os
import random
import shutil
import tarfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)

from reelweave.loader.dataset import open_dataset, verify
from reelweave.loader.dataset.plan_index import from_arrow, to_arrow
from reelweave.loader.dataset.samples.clip import training_sample
from reelweave.loader.dataset.schema import TABLES
from reelweave.loader.dataset.tables.parquet import from_parquet, to_parquet, to_rows, to_table
from reelweave.loader.errors import RunError
from reelweave.loader.storage import StorageConfig, open_storage
from reelweave.pipelines.cli import main
from tests.hostile import exchange, rewrite
from tests.loader.dataset.test_dataset import make_sample, write
from tests.s3server import make_bucket, s3_server


def tar_of(folder: Path) -> str:
    return str(min((folder / "shards").glob("*.tar")).relative_to(folder))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("made") / "dataset", [make_sample(number) for number in range(5)])


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "dataset"))


def wrong(folder: Path) -> str:
    """What opening and verifying say, in words; fails where nothing is wrong."""
    try:
        found = verify(open_storage(folder)).problems
    except RunError as error:
        return str(error)
    assert found
    return "\n".join(found)


def changed_table(folder: Path, name: str, change: Callable[[list[dict[str, Any]]], object]) -> None:
    rows = to_rows(from_parquet((folder / f"{name}.parquet").read_bytes()))
    change(rows)
    exchange(folder, f"{name}.parquet", to_parquet(to_table(rows, TABLES[name])))


MANIFESTS: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "no files": (lambda body: body.update(files=[]), r"lists no index\.parquet"),
    "no accounting": (
        lambda body: body.update(files=[f for f in body["files"] if f["path"] != "accounting.parquet"]),
        r"lists no accounting\.parquet",
    ),
    "negative revision": (lambda body: body.update(revision=-1), "revision"),
    "another revision": (lambda body: body.update(revision=3), r"lists no index\.000003\.parquet"),
    "negative size": (lambda body: body["shards"][0].update(size=-1), r"shards\.0\.size"),
    "a huge size": (lambda body: body["shards"][0].update(size=10**30), r"shards\.0\.size"),
    "no digest": (lambda body: body["files"][0].update(sha256="x"), "sha256"),
    "samples by shard": (lambda body: body["shards"][0].update(samples=99), "in its shards"),
    "samples in all": (lambda body: body["totals"].update(samples=99), "99 samples"),
    "kept": (lambda body: body["totals"]["accounting"].update(kept=1), "1 kept"),
    "states": (lambda body: body["totals"].update(accounting={}), "does not count kept"),
    "endless": (lambda body: body["totals"].update(duration_s=1e400), "Infinity"),
    "twice": (lambda body: body["files"].append(body["files"][0]), "twice"),
    "half a character": (lambda body: body["files"][0].update(path="a\ud800"), "half a character"),
    "parent": (lambda body: body["files"][0].update(path="../index.parquet"), r"\.\."),
    "absolute": (lambda body: body["shards"][0].update(path="/etc/passwd"), "/etc/passwd"),
    "another folder": (lambda body: body["shards"][0].update(path="raw/film.tar"), "raw/film.tar"),
    "other totals": (lambda body: body["totals"].update(clip_bytes=1), "bytes of clips"),
    "other seconds": (lambda body: body["totals"].update(duration_s=1.0), "1.0 s"),
    "other sources": (lambda body: body["totals"].update(sources=1), "sources"),
    "no history": (
        lambda body: body.update(revision=0, ancestors=[{"revision": 0, "index_sha256": "ab" * 32}]),
        "history",
    ),
}


@pytest.mark.parametrize("name", MANIFESTS)
def test_a_manifest_that_cannot_be_is_refused_in_words(folder: Path, name: str) -> None:
    change, words = MANIFESTS[name]
    rewrite(folder, change)
    with pytest.raises(AssertionError, match=words):
        raise AssertionError(wrong(folder))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[" * 100_000, "nested too deeply"),
        ('{"format_version": 2, "format_version": 2}', "comes twice"),
        ('{"sha256": NaN}', "NaN"),
        ("[]", "damaged"),
        ("9" * 5000, "damaged"),
        ("\udcff", "damaged"),
        ("", "damaged"),
    ],
)
def test_json_that_readers_disagree_on_is_refused(folder: Path, text: str, words: str) -> None:
    (folder / "manifest.json").write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(RunError, match=words):
        open_dataset(folder)


ROWS: dict[str, tuple[str, Callable[[list[dict[str, Any]]], object], str]] = {
    "negative offset": ("index", lambda rows: rows[0].update(offset=-512), "within its shard"),
    "1 TiB": ("index", lambda rows: rows[0].update(size=2**40), "within its shard"),
    "far": ("index", lambda rows: rows[0].update(offset=2**63 - 1), "within its shard"),
    "other shard": ("index", lambda rows: rows[0].update(shard="shards/000099.tar"), "not listed"),
    "member": ("index", lambda rows: rows[0]["members"][0].update(size=2**40), "member"),
    "no members": ("index", lambda rows: rows[0].update(members=[]), "no members"),
    "frames": ("index", lambda rows: rows[0].update(frames=0), "frames"),
    "fps": ("index", lambda rows: rows[0].update(fps=float("nan")), "fps"),
    "span": ("index", lambda rows: rows[0].update(start_s=float("inf")), "span"),
    "split": ("index", lambda rows: rows[0].update(split="private"), "split"),
    "key twice": ("index", lambda rows: rows[0].update(key=rows[1]["key"]), "twice"),
    "order": ("index", lambda rows: rows.reverse(), "after the next"),
    "fewer rows": ("index", lambda rows: rows.pop(), "4 rows"),
    "state": ("accounting", lambda rows: rows[0].update(state="lost"), "state"),
    "half a span": ("accounting", lambda rows: rows[0].update(end_s=None), "span"),
    "no key": ("accounting", lambda rows: rows[0].update(key=None), "no key"),
    "another kept": ("accounting", lambda rows: rows[0].update(key="x" * 20), "kept"),
    "score state": (
        "scores",
        lambda rows: rows.append(
            {"key": "a", "source": "b", "start_s": 0.0, "end_s": 1.0, "state": "?", "scores": {}}
        ),
        "state",
    ),
    "score of nothing": (
        "scores",
        lambda rows: rows.append(
            {"key": "a", "source": "b", "start_s": 0.0, "end_s": 1.0, "state": "kept", "scores": {}}
        ),
        "does not have it",
    ),
}


@pytest.mark.parametrize("name", ROWS)
def test_a_row_that_cannot_be_is_named(folder: Path, name: str) -> None:
    table, change, words = ROWS[name]
    changed_table(folder, table, change)
    with pytest.raises(AssertionError, match=words):
        raise AssertionError(wrong(folder))


def test_text_that_is_none_is_found(folder: Path) -> None:
    table = from_parquet((folder / "index.parquet").read_bytes())
    text = pa.array([b"\xff\xfe"] * len(table), pa.binary()).view(pa.string())
    place = table.schema.get_field_index("caption")
    exchange(folder, "index.parquet", to_parquet(table.set_column(place, table.schema.field(place), text)))
    assert "no table that can be read" in wrong(folder)


def test_a_table_that_unfolds_to_far_more_than_its_file_is_refused(folder: Path) -> None:
    rows = 5_000
    row = {"source": "x" * 200_000, "state": "failed", "stage": "s", "reason": "r"}
    column = pa.array([row["source"]]).dictionary_encode()
    nulls = {
        name: pa.nulls(rows, TABLES["accounting"].field(name).type) for name in TABLES["accounting"].names
    }
    many = pa.DictionaryArray.from_arrays(pa.array(np.zeros(rows, np.int32)), column.dictionary)
    texts = {name: pa.array([row[name]] * rows) for name in ("state", "stage", "reason")}
    schema = TABLES["accounting"].set(
        0, pa.field("source", pa.dictionary(pa.int32(), pa.string()), nullable=False)
    )
    data = to_parquet(pa.Table.from_pydict({**nulls, **texts, "source": many}, schema=schema))
    exchange(folder, "accounting.parquet", data)
    rewrite(folder, lambda body: body["totals"]["accounting"].update(failed=rows - 5))
    assert "accounting.parquet" in wrong(folder)


PLANS: dict[str, Callable[[Any], object]] = {
    "shard": lambda plan: plan["shard"].__setitem__(2, 99),
    "negative shard": lambda plan: plan["shard"].__setitem__(2, -1),
    "offset": lambda plan: plan["offset"].__setitem__(2, -512),
    "far": lambda plan: plan["offset"].__setitem__(2, 2**63 - 1),
    "size": lambda plan: plan["size"].__setitem__(2, 2**32 - 1),
    "nothing": lambda plan: plan["size"].__setitem__(2, 0),
    "fps": lambda plan: plan["fps"].__setitem__(2, np.nan),
    "frames": lambda plan: plan["frames"].__setitem__(2, 0),
    "width": lambda plan: plan["width"].__setitem__(2, 0),
    "text": lambda plan: plan["text_tokens"].__setitem__(2, -1),
}


@pytest.mark.parametrize("name", PLANS)
def test_a_plan_index_that_points_nowhere_is_refused_before_a_plan(folder: Path, name: str) -> None:
    found = from_arrow((folder / "plan.arrow").read_bytes(), "plan.arrow", 5)
    columns = {column: values.copy() for column, values in found.columns().items()}
    PLANS[name](columns)
    exchange(folder, "plan.arrow", to_arrow(type(found)(**columns)))
    assert "row 2" in wrong(folder)
    with pytest.raises(RunError, match=r"plan\.arrow: row 2"):
        _ = open_dataset(folder).plan_index


def test_garbage_in_place_of_a_table_is_told_in_words(folder: Path) -> None:
    for name in ("index.parquet", "accounting.parquet", "scores.parquet", "plan.arrow"):
        data = (folder / name).read_bytes()
        for garbage in (b"", b"PAR1", random.Random(1).randbytes(5000), data[:-20]):
            exchange(folder, name, garbage)
            assert name in wrong(folder)
        exchange(folder, name, data)
    assert verify(open_storage(folder)).ok


@pytest.mark.timeout(120)  # a pipe would be waited for without end
@pytest.mark.parametrize("name", ["tar", "index.parquet", "plan.arrow", "accounting.parquet"])
@pytest.mark.parametrize("kind", ["pipe", "folder", "device", "gone", "loop"])
def test_what_is_no_file_is_never_waited_for(folder: Path, name: str, kind: str) -> None:
    name = tar_of(folder) if name == "tar" else name
    path = folder / name
    path.unlink()
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "device":
        path.symlink_to("/dev/zero")
    elif kind == "loop":
        path.symlink_to(path.name)
    began = time.process_time()
    assert name in wrong(folder)
    with pytest.raises((RunError, FileNotFoundError)):
        dataset = open_dataset(folder)
        _ = dataset.plan_index, dataset.accounting, [dataset.read_media(row) for row in range(5)]
    assert time.process_time() - began < 10


def test_a_link_that_leads_out_is_named(folder: Path, tmp_path: Path) -> None:
    path = folder / tar_of(folder)
    path.rename(tmp_path / "elsewhere.tar")
    path.symlink_to(tmp_path / "elsewhere.tar")
    assert f"{path.name} is a link that leads out" in wrong(folder)


def test_a_file_that_claims_to_be_small_is_not_read_to_its_end(folder: Path) -> None:
    tar = tar_of(folder)
    for name in (tar, "index.parquet", "plan.arrow"):
        with (folder / name).open("r+b") as file:
            file.truncate(2**40)
    began = time.process_time()
    assert tar in wrong(folder)
    assert time.process_time() - began < 10


def test_a_dataset_on_s3_is_read_with_the_same_care(folder: Path) -> None:
    with s3_server() as endpoint:
        make_bucket(endpoint, "bucket")
        storage = open_storage("s3://bucket/set", StorageConfig(endpoint_url=endpoint))
        found = from_arrow((folder / "plan.arrow").read_bytes(), "plan.arrow", 5)
        columns = {name: values.copy() for name, values in found.columns().items()}
        columns["size"][0] = 2**31
        exchange(folder, "plan.arrow", to_arrow(type(found)(**columns)))
        for path in folder.rglob("*"):
            if path.is_file():
                storage.write(str(path.relative_to(folder)), path.read_bytes())
        with pytest.raises(RunError, match=r"plan\.arrow: row 0"):
            _ = open_dataset("s3://bucket/set", StorageConfig(endpoint_url=endpoint)).plan_index
        tar = tar_of(folder)
        storage.delete(tar)
        storage.write(f"{tar}/x", b"a folder in its place")
        said = "\n".join(verify(storage).problems)
        assert f"{tar} is missing" in said
        assert "plan.arrow: row 0" in said
        with pytest.raises(RunError, match="no object has bytes"):
            storage.read("manifest.json", -5, 10)


def test_a_sample_without_its_caption_is_a_bad_sample() -> None:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        member = tarfile.TarInfo("a.mp4")
        member.size = 1
        tar.addfile(member, io.BytesIO(b"x"))
    with pytest.raises(RunError, match="no caption"):
        training_sample(buffer.getvalue()[:1024], foreign=False)


def test_manifests_stay_plain_json(folder: Path) -> None:
    assert json.loads((folder / "manifest.json").read_bytes())["format"] == "reelweave-dataset"


def test_a_signature_tells_who_published(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    keys = {}
    for name in ("own", "other"):
        private = Ed25519PrivateKey.generate()
        keys[name] = tmp_path / f"{name}.pem", tmp_path / f"{name}.pub.pem"
        keys[name][0].write_bytes(private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
        keys[name][1].write_bytes(
            private.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
        )
    own, other = keys["own"], keys["other"]
    assert main(["verify", str(folder), "--key", str(own[1])]) == 1
    assert "not signed" in capsys.readouterr().out
    assert main(["verify", str(folder), "--sign", str(own[0])]) == 0
    assert (folder / "manifest.json.sig").stat().st_size == 64
    assert main(["verify", str(folder), "--key", str(own[1])]) == 0
    assert main(["verify", str(folder), "--key", str(other[1])]) == 1
    rewrite(folder, lambda body: body.update(versions={"reelweave": "of somebody else"}))
    assert verify(open_storage(folder)).ok
    assert main(["verify", str(folder), "--key", str(own[1])]) == 1
    assert "not this key's signature" in capsys.readouterr().out
    assert main(["verify", str(folder), "--key", str(own[0])]) == 2
    assert "PRIVATE" not in capsys.readouterr().err
    (folder / "index.parquet").write_bytes(b"")
    (folder / "manifest.json.sig").unlink()
    assert main(["verify", str(folder), "--sign", str(own[0])]) == 1
    assert not (folder / "manifest.json.sig").exists()
