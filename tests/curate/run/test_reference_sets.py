"""Clips that evaluation sets or older datasets hold already are filtered, whatever they are called and encoded."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from reelweave.curate.config import CurateConfig
from reelweave.curate.run.curate import curate
from reelweave.loader.dataset import Row, open_dataset, verify
from reelweave.loader.dataset.tables.parquet import to_rows
from reelweave.loader.errors import UsageError
from tests.filter_footage import encode, pan
from tests.thorough import thorough


def made(raw: Path, out: Path, *, update: bool = False, **dedup: Any) -> list[Row]:
    """The rows of a dataset's accounting."""
    config = CurateConfig.model_validate({"run": {"runner": "sequential", "isolate": False}, "dedup": dedup})
    curate([str(raw)], str(out), config, update=update)
    assert verify(open_dataset(out).storage).ok
    return to_rows(open_dataset(out).accounting)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Path]:
    """Raw videos, and two datasets: of the first, encoded otherwise; of the second, byte for byte."""
    base = tmp_path_factory.mktemp("others")
    raw = base / "raw"
    raw.mkdir()
    for seed in range(3):
        encode(raw / f"{seed}.mp4", pan(60, 2, seed))
    (base / "a").mkdir()
    (base / "b").mkdir()
    encode(base / "a" / "other name.mp4", pan(60, 2, 0), options={"crf": "30", "preset": "veryfast"})
    shutil.copyfile(raw / "1.mp4", base / "b" / "same.mp4")
    for name in "ab":
        made(base / name, base / f"dataset {name}")
    return raw, base / "dataset a", base / "dataset b"


def fates(rows: list[Row]) -> dict[str, tuple[str, str]]:
    return {Path(row["source"]).name: (row["state"], row["stage"]) for row in rows}


def test_what_others_hold_is_filtered_and_says_where(
    folders: tuple[Path, Path, Path], tmp_path: Path
) -> None:
    raw, evaluation, older = folders
    rows = made(raw, tmp_path / "out", evaluation=[str(evaluation)], older=[str(older)])
    found = fates(rows)
    assert found["0.mp4"] == ("filtered", "dedup.evaluation")
    assert found["1.mp4"] == ("filtered", "dedup.older")
    assert found["2.mp4"][0] == "kept"
    (key,) = open_dataset(evaluation).index.column("key").to_pylist()
    (row,) = (row for row in rows if row["stage"] == "dedup.evaluation")
    assert f"{evaluation}#{key}" in row["reason"]
    assert row["score"] >= row["threshold"]


def test_a_dataset_is_cleaned_of_an_evaluation_set_but_not_of_an_older_one(
    folders: tuple[Path, Path, Path], tmp_path: Path
) -> None:
    raw, evaluation, older = folders
    out = tmp_path / "out"
    assert {state for state, _ in fates(made(raw, out)).values()} == {"kept"}
    found = fates(made(raw, out, update=True, evaluation=[str(evaluation)], older=[str(older)]))
    assert found["0.mp4"] == ("filtered", "dedup.evaluation")
    assert found["1.mp4"][0] == "kept"


@thorough
def test_another_content_of_the_same_name_is_noticed(
    folders: tuple[Path, Path, Path], tmp_path: Path
) -> None:
    raw, evaluation, _ = folders
    there = tmp_path / "evaluation"
    shutil.copytree(folders[2], there)
    assert fates(made(raw, tmp_path / "out", evaluation=[str(there)]))["1.mp4"][0] == "filtered"
    shutil.rmtree(there)
    shutil.copytree(evaluation, there)
    with pytest.raises(UsageError, match="--update"):
        made(raw, tmp_path / "out", evaluation=[str(there)])
    found = fates(made(raw, tmp_path / "out", update=True, evaluation=[str(there)]))
    assert (found["0.mp4"][0], found["1.mp4"][0]) == ("filtered", "kept")


def test_what_is_no_dataset_or_has_no_ledger_is_said(
    folders: tuple[Path, Path, Path], tmp_path: Path
) -> None:
    raw, evaluation, _ = folders
    with pytest.raises(UsageError, match="nowhere"):
        made(raw, tmp_path / "out", older=[str(tmp_path / "nowhere")])
    assert not (tmp_path / "out" / "manifest.json").exists()
    bare = tmp_path / "bare"
    shutil.copytree(evaluation, bare, ignore=shutil.ignore_patterns(".ledger"))
    with pytest.raises(UsageError, match=r"no fingerprints in its \.ledger"):
        made(raw, tmp_path / "out", older=[str(bare)])
