"""Readers that know no manifest: they find the newest revision under the names of the first one, whatever strikes."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from reelweave.loader.dataset import open_dataset, verify
from reelweave.loader.errors import RunError
from reelweave.loader.storage import open_storage
from tests.curate.run.test_run import SMALL_WORDS
from tests.energon import energon_samples
from tests.loader.dataset.test_card import READ
from tests.media import write_video
from tests.thorough import nightly, thorough
from tests.warm import Warm

TABLES = ("index", "accounting", "scores")
STRICTER = "--set=filters.min_duration_s=1.5"
WORDS = (*SMALL_WORDS, "--set=shard.val_share=0.5")


@pytest.fixture(scope="module")
def raw(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("raw")
    for number in range(4):
        write_video(folder / f"{number}.mp4", (40, 30 + 2 * number), first_scene=2 * number)
    return folder


@pytest.fixture(scope="module")
def original(raw: Path, warm: Warm, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("made") / "dataset"
    assert warm.start("curate", str(raw), "--out", str(out), *WORDS).ended()[0] == 0
    return out


@pytest.fixture
def made(original: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(original, tmp_path / "dataset"))


def keys_by_name(folder: Path) -> set[str]:
    """Keys in the index as scripts read it, all of whose shards must be there."""
    table = pq.read_table(folder / "index.parquet", columns=["key", "shard"])
    assert all((folder / shard).exists() for shard in table.column("shard").to_pylist())
    return set(table.column("key").to_pylist())


def keys_of_datasets(folder: Path) -> set[str]:
    """Keys that Hugging Face's `datasets` finds in the folder."""
    offline = {"HF_HUB_OFFLINE": "1", "HF_HOME": str(folder.parent / "home"), "PATH": os.environ["PATH"]}
    ran = subprocess.run(
        [sys.executable, "-c", READ, str(folder)], env=offline, capture_output=True, text=True, check=True
    )
    splits = json.loads(ran.stdout.splitlines()[-1])
    assert splits.keys() == {"train", "validation"}
    return {key for rows in splits.values() for key, _ in rows}


def keys_of_energon(folder: Path) -> set[str]:
    rows = open_dataset(folder).index.to_pylist()
    train = [row for row in rows if row["split"] == "train"]
    found = {key for key, _ in energon_samples(folder, len(train))}
    return {key.rsplit("/", 1)[-1] for key in found}


def check_newest(folder: Path) -> set[str]:
    """Check that the names of the first revision hold what the manifest names, and return the keys."""
    dataset = open_dataset(folder)
    for name in TABLES:
        entry = dataset.manifest.table(name)
        assert (folder / f"{name}.parquet").read_bytes() == (folder / entry.path).read_bytes()
    assert dataset.manifest.plan_index is not None
    plan = folder / dataset.manifest.plan_index.path
    assert (folder / "plan.arrow").read_bytes() == plan.read_bytes()
    assert verify(open_storage(folder)).problems == []
    keys = set(dataset.index.column("key").to_pylist())
    assert keys_by_name(folder) == keys
    return keys


def test_after_an_update_and_a_take_down_readers_of_the_folder_see_the_newest_revision(
    raw: Path, made: Path, warm: Warm
) -> None:
    before = keys_by_name(made)
    assert warm.start("curate", str(raw), "--out", str(made), *WORDS, STRICTER, "--update").ended()[0] == 0
    updated = check_newest(made)
    assert updated < before
    gone = min(updated)
    assert warm.start("remove", str(made), "--key", gone, "--reason", "asked").ended()[0] == 0
    left = check_newest(made)
    assert left == updated - {gone}
    assert gone not in (made / "index.parquet").read_bytes().decode("latin-1")
    splits = dict(open_dataset(made).splits())
    assert keys_of_datasets(made) == left
    assert keys_of_energon(made) == {
        row["key"] for row in open_dataset(made).index.to_pylist() if splits[row["shard"]] == "train"
    }


@pytest.mark.parametrize(
    "behind",
    [
        pytest.param(r"^manifest\.json$", marks=thorough),
        pytest.param(r"^README\.md$", marks=nightly),
        pytest.param(r"^index\.parquet$", marks=nightly),
        pytest.param(r"^plan\.arrow$", marks=nightly),
    ],
)
def test_killed_between_the_manifest_and_its_names_readers_see_a_whole_revision(
    raw: Path, made: Path, warm: Warm, behind: str
) -> None:
    command = ("curate", str(raw), "--out", str(made), *WORDS, STRICTER, "--update")
    before = keys_by_name(made)
    status, _ = warm.start(*command, killed_behind=behind).ended()
    assert status == -signal.SIGKILL
    assert open_dataset(made).manifest.revision == 1
    now = set(open_dataset(made).index.column("key").to_pylist())
    assert keys_by_name(made) in (before, now)
    assert keys_of_datasets(made) in (before, now)
    if behind == r"^manifest\.json$":
        assert keys_by_name(made) == before
        problems = "\n".join(verify(open_storage(made)).problems)
        assert "index.parquet is of another revision than manifest.json" in problems
    assert warm.start(*command).ended()[0] == 0
    assert check_newest(made) == now
    if behind != r"^manifest\.json$":
        assert keys_of_datasets(made) == now


def test_a_reader_of_the_first_revision_is_told_that_it_has_changed(
    raw: Path, made: Path, warm: Warm, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A large index is read by parts without its checksum, and its name holds other rows by then."""
    monkeypatch.setattr("reelweave.loader.dataset.tables.table_reader.GROUP_ROWS", 1)
    early, late = open_dataset(made), open_dataset(made)
    assert len(early.column("key")) == 8
    assert warm.start("curate", str(raw), "--out", str(made), *WORDS, STRICTER, "--update").ended()[0] == 0
    for dataset in (early, late):
        with pytest.raises(RunError, match="was changed just now; run the same command again"):
            dataset.column("caption")
        with pytest.raises(RunError, match="was changed just now; run the same command again"):
            dataset.row(0)
    with pytest.raises(RunError, match="was changed just now"):
        _ = late.plan_index
