"""A model captions what is kept once duplicates are known, whatever earlier runs asked; another model captions anew."""

import json
import shutil
from pathlib import Path

import pytest

from reelweave.curate.config import CurateConfig
from reelweave.curate.run.curate import curate
from reelweave.loader.dataset import open_dataset, verify
from reelweave.loader.errors import UsageError
from reelweave.loader.storage import open_storage
from tests.curate.run.test_run import tree
from tests.media import write_video
from tests.thorough import thorough
from tests.tiny_vlm import tiny_vlm

SAYS = "a red kite flies over the sea ."


@pytest.fixture(scope="module")
def raw(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One film, whole and cut off, which are duplicates, and another."""
    folder = tmp_path_factory.mktemp("raw")
    write_video(folder / "long.mp4", (60,))
    write_video(folder / "short.mp4", (50,))
    write_video(folder / "other.mp4", (50,), first_scene=5)
    return folder


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_vlm(tmp_path_factory.mktemp("vlm") / "model", says=(SAYS,))


def run(raw: Path, model: Path, out: Path, dedup: bool = True, update: bool = False) -> Path:
    curate([str(raw)], str(out), config_of(model, dedup), update=update)
    return out


@pytest.fixture(scope="module")
def made(raw: Path, model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run(raw, model, tmp_path_factory.mktemp("made") / "dataset")


def config_of(model: Path, dedup: bool = True) -> CurateConfig:
    return CurateConfig.model_validate(
        {
            "run": {"runner": "sequential", "isolate": False},
            "spans": {"min_clip_s": 1.0},
            "captions": {"model": str(model), "short_side_px": 32, "max_new_tokens": 24},
            "filters": {"min_short_side_px": 64},
            "dedup": {"exact": {"enabled": dedup}, "perceptual": {"enabled": dedup}},
        }
    )


def states(folder: Path) -> dict[str, str]:
    return {Path(row["source"]).name: row["state"] for row in open_dataset(folder).accounting.to_pylist()}


def captioned(folder: Path) -> list[Path]:
    return [path for path in folder.glob(".ledger/captions/*/*.json") if path.is_file()]


def unpublished(folder: Path, to: Path) -> Path:
    """A copy of what an interrupted run leaves: its ledger."""
    shutil.copytree(folder / ".ledger", to / ".ledger")
    return to


def fail_caption_of(folder: Path, key: str) -> None:
    (entry,) = (path for path in captioned(folder) if path.name.startswith(key))
    entry.write_text(json.dumps({"fault": "the model says nothing"}))


def test_a_duplicate_is_not_captioned(made: Path) -> None:
    assert states(made) == {"long.mp4": "kept", "short.mp4": "duplicate", "other.mp4": "kept"}
    assert len(captioned(made)) == 2
    assert set(open_dataset(made).index.column("caption").to_pylist()) == {SAYS}


def test_captioned_while_sources_are_cut_the_dataset_is_the_same(
    raw: Path, model: Path, made: Path, tmp_path: Path
) -> None:
    config = config_of(model)
    beside = config.model_copy(update={"run": config.run.model_copy(update={"caption_while_cutting": True})})
    curate([str(raw)], str(tmp_path), beside)
    assert len(captioned(tmp_path)) == 3  # the duplicate too
    assert tree(tmp_path) == tree(made)


@thorough
def test_where_the_kept_clip_has_no_caption_its_duplicate_takes_its_place(
    raw: Path, model: Path, made: Path, tmp_path: Path
) -> None:
    rows = open_dataset(made).accounting.to_pylist()
    long = next(row["key"] for row in rows if row["source"].endswith("long.mp4"))
    everything = run(raw, model, tmp_path / "everything", dedup=False)
    assert len(captioned(everything)) == 3
    found = []
    for number, before in enumerate((made, everything)):
        folder = unpublished(before, tmp_path / str(number))
        fail_caption_of(folder, long)
        run(raw, model, folder)
        assert states(folder) == {"long.mp4": "failed", "short.mp4": "kept", "other.mp4": "kept"}
        assert verify(open_storage(folder)).problems == []
        found.append(tree(folder))
    # Which clips an earlier run captioned makes no difference.
    assert found[0] == found[1]


@thorough
def test_what_another_run_failed_to_caption_is_a_duplicate_all_the_same(
    raw: Path, model: Path, made: Path, tmp_path: Path
) -> None:
    everything = run(raw, model, tmp_path / "everything", dedup=False)
    rows = open_dataset(everything).accounting.to_pylist()
    folder = unpublished(everything, tmp_path / "again")
    fail_caption_of(folder, next(row["key"] for row in rows if row["source"].endswith("short.mp4")))
    run(raw, model, folder)
    assert tree(folder) == tree(made)


@thorough
def test_another_model_under_the_same_path_captions_anew(
    raw: Path, model: Path, made: Path, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(made, tmp_path / "dataset"))
    place = Path(shutil.copytree(model, tmp_path / "models" / "model"))
    run(raw, place, folder, update=True)
    times = {path: path.stat().st_mtime_ns for path in captioned(folder)}
    assert run(raw, place, folder) == folder  # the same files: nothing to do
    tiny_vlm(place, says=("two people walk along the street .",))
    with pytest.raises(UsageError, match=r"another model at captions\.model; .*--update"):
        run(raw, place, folder)
    run(raw, place, folder, update=True)
    assert set(open_dataset(folder).index.column("caption").to_pylist()) == {
        "two people walk along the street ."
    }
    assert {path: path.stat().st_mtime_ns for path in times} == times
    assert verify(open_storage(folder)).problems == []
