"""Updates after an upgrade, killed at named writes: the same command ends with the bytes of an undisturbed one."""

import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

from reelweave.curate.config import SourceStageConfig
from reelweave.curate.cut import encode
from reelweave.curate.ledger.ledger import Ledger
from reelweave.curate.run.curate import curate
from reelweave.curate.run.sample_run import forecast_update
from reelweave.loader.dataset import open_dataset, verify
from reelweave.loader.storage import open_storage
from tests.curate.run.test_run import SMALL_WORDS, config, published
from tests.media import write_video
from tests.thorough import but
from tests.warm import Warm

NEW_SCORE = """
from reelweave.curate.filters.measure import ADDED
ADDED["flicker"] = 3
"""


@pytest.fixture(scope="module")
def raw(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("raw")
    for number in range(3):
        write_video(folder / f"{number}.mp4", (40, 34), first_scene=2 * number)
    return folder


@pytest.fixture(scope="module")
def older(raw: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset of the revision before, whose clips have other bytes."""
    out, real = tmp_path_factory.mktemp("older") / "dataset", encode.options

    def coarse(*arguments: Any) -> dict[str, object]:
        return {**real(*arguments), "crf": "35"}

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SourceStageConfig, "REVISION", SourceStageConfig.REVISION - 1)
        patch.setattr(encode, "options", coarse)
        curate([str(raw)], str(out), config())
    return out


@pytest.fixture(scope="module")
def present(raw: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("present") / "dataset"
    curate([str(raw)], str(out), config())
    return out


@pytest.fixture(scope="module")
def warm_with_score(warm: Warm) -> Warm:
    return warm.prepared(NEW_SCORE)


def updated(warm: Warm, raw: Path, before: Path, out: Path, words: tuple[str, ...], behind: str) -> Path:
    """Update a copy of a dataset, at first killed behind a write where one is named."""
    shutil.copytree(before, out)
    command = ("curate", str(raw), "--out", str(out), *SMALL_WORDS, *words)
    if behind:
        assert warm.start(*command, killed_behind=behind).ended()[0] == -signal.SIGKILL, behind
    status, said = warm.start(*command).ended()
    assert status == 0, said
    return out


REDO = ("--redo-older",)
REDONE = [
    r"^\.ledger/clips/",
    r"^\.ledger/arrays/",
    r"^\.ledger/cut/.*\.json$",
    r"^\.ledger/captions/.*\.json$",
    r"^\.ledger/shard/",
    r"^shards/",
    r"^index\.000001\.parquet$",
    r"^accounting\.000001\.parquet$",
    r"^manifest\.json$",
    r"^index\.parquet$",
]


@pytest.fixture(scope="module")
def redone(warm: Warm, raw: Path, older: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    found = published(updated(warm, raw, older, tmp_path_factory.mktemp("redone") / "dataset", REDO, ""))
    assert not {name for name in published(older) if name.startswith("shards/")} & found.keys()
    return found


@pytest.mark.parametrize("behind", but([REDONE[2]], REDONE, [*REDONE[5::5], REDONE[8]]))
def test_killed_while_older_sources_are_cut_anew(
    warm: Warm, raw: Path, older: Path, redone: dict[str, bytes], tmp_path: Path, behind: str
) -> None:
    out = updated(warm, raw, older, tmp_path / "dataset", REDO, behind)
    assert published(out) == redone
    assert verify(open_storage(out)).problems == []


MEASURE = ("--redo-older", "--set=filters.max_flicker=99")
MEASURED = [
    r"^\.ledger/cut/.*\.json$",
    r"^\.ledger/status\.json$",
    r"^index\.000001\.parquet$",
    r"^manifest\.json$",
]


@pytest.fixture(scope="module")
def measured(
    warm_with_score: Warm, raw: Path, present: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, bytes]:
    out = tmp_path_factory.mktemp("measured") / "dataset"
    return published(updated(warm_with_score, raw, present, out, MEASURE, ""))


@pytest.mark.parametrize("behind", but([MEASURED[0]], MEASURED, MEASURED[3:]))
def test_killed_while_a_new_score_is_measured(
    warm_with_score: Warm, raw: Path, present: Path, measured: dict[str, bytes], tmp_path: Path, behind: str
) -> None:
    out = updated(warm_with_score, raw, present, tmp_path / "dataset", MEASURE, behind)
    assert published(out) == measured
    assert verify(open_storage(out)).problems == []


def test_a_redo_that_did_not_publish_is_said(warm: Warm, raw: Path, older: Path, tmp_path: Path) -> None:
    out = Path(shutil.copytree(older, tmp_path / "dataset"))
    command = ("curate", str(raw), "--out", str(out), *SMALL_WORDS)
    assert warm.start(*command, *REDO, killed_behind="^shards/").ended()[0] == -signal.SIGKILL
    for words in ((), ("--update",)):
        status, said = warm.start(*command, *words).ended()
        assert (status, said.count("a run with --redo-older ended before it published")) == (0, 1), said
    status, said = warm.start(*command, "--update", "--forecast").ended()
    assert (status, said) == (0, "")
    [work] = forecast_update([str(raw)], str(out), config())
    assert (work.what, work.now) == ("redone", False)
    assert [
        (one.what, one.now) for one in forecast_update([str(raw)], str(out), config(), redo_older=True)
    ] == [("redone", True)]
    assert published(out).keys() == published(older).keys() | {
        name for name in published(out) if name.startswith("shards/")
    }


@pytest.mark.parametrize("behind", but([REDONE[5]], [*REDONE[2:4], *REDONE[5:8]], [REDONE[7]]))
def test_a_take_down_between_an_interrupted_redo_and_its_repeat_holds(
    warm: Warm, raw: Path, older: Path, redone: dict[str, bytes], tmp_path: Path, behind: str
) -> None:
    out = Path(shutil.copytree(older, tmp_path / "dataset"))
    command = ("curate", str(raw), "--out", str(out), *SMALL_WORDS)
    assert warm.start(*command, *REDO, killed_behind=behind).ended()[0] == -signal.SIGKILL
    rows = open_dataset(out).index.to_pylist()
    gone = rows[0]
    status, said = warm.start("remove", str(out), "--key", gone["key"], "--reason", "asked").ended()
    assert status == 0, said
    status, said = warm.start(*command, *REDO).ended()
    assert status == 0, said
    dataset = open_dataset(out)
    assert verify(dataset.storage).problems == []
    (tmp_path / "redone").mkdir()
    for name, data in redone.items():
        (tmp_path / "redone" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "redone" / name).write_bytes(data)
    expected = {row["sha256"] for row in open_dataset(tmp_path / "redone").index.to_pylist()}
    made = {(row["source"], row["start_s"]): row["sha256"] for row in dataset.index.to_pylist()}
    assert len(made) == len(rows) - 1
    assert (gone["source"], gone["start_s"]) not in made
    assert set(made.values()) < expected  # all others are those of this version
    [down] = [row for row in dataset.accounting.to_pylist() if "taken down" in (row["reason"] or "")]
    assert (down["source"], down["start_s"]) == (gone["source"], gone["start_s"])
    ledger = Ledger(dataset.storage)
    lost = expected - set(made.values())
    assert not [clip for clip in ledger.blobs.staged_clips() if any(clip.endswith(sha[:16]) for sha in lost)]
    assert not any(
        gone["key"] in path for path in (info.path for info in dataset.storage.list(".ledger/clips/"))
    )
    status, said = warm.start(*command, "--update").ended()
    assert (status, said.count("ended before it published")) == (0, 0), said
