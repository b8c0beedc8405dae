"""The recipe of docs/filters.md for a score of one's own, word for word, on a dataset that was finished before."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from reelweave.curate.filters import ClipSample, scores
from reelweave.curate.filters.measure import ADDED, FIRST
from reelweave.curate.run.curate import curate
from reelweave.loader.dataset import open_dataset, verify
from reelweave.loader.errors import RunError
from reelweave.loader.storage import open_storage
from tests.commands import reelweave
from tests.curate.run.test_run import SMALL_WORDS, config
from tests.media import write_video
from tests.recipes.recipe import Code
from tests.thorough import thorough

ROOT = Path(__file__).parents[3]
AUDIT = """
import os, sys
def audit(event, arguments):
    if event == "open" and str(arguments[0]).startswith(os.environ["WATCHED"] + "/"):
        with os.fdopen(os.open(os.environ["OPENED"], os.O_APPEND | os.O_CREAT | os.O_WRONLY), "w") as file:
            file.write(f"{arguments[0]}\\n")
sys.addaudithook(audit)
"""
"""Notes each source that is opened."""


@pytest.fixture(scope="module")
def changed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Our code with the score of the recipe, which touches three files."""
    code = Code(tmp_path_factory.mktemp("code"))
    code.perform("filters.md", "## A score of your own")
    assert len(code.files) == 3
    code.check()
    (code.home / "sitecustomize.py").write_text(AUDIT)
    return code.home


def run(home: Path, raw: Path, out: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [
        sys.executable,
        "-m",
        "reelweave.pipelines.cli",
        "curate",
        str(raw),
        "--out",
        str(out),
        *SMALL_WORDS,
    ]
    environment = {**os.environ, "PYTHONPATH": str(home), "WATCHED": str(raw), "OPENED": str(out) + ".opened"}
    return subprocess.run([*command, *words], capture_output=True, text=True, env=environment, cwd=home)


@pytest.fixture(scope="module")
def raw(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("raw")
    for number in range(2):
        write_video(folder / f"{number}.mp4", (40, 30), first_scene=2 * number)
    write_video(folder / "tiny.mp4", (40,), size=(96, 64), first_scene=8)
    return folder


def test_a_new_score_is_measured_from_the_clips_of_a_finished_dataset(
    raw: Path, changed: Path, tmp_path: Path
) -> None:
    out = tmp_path / "dataset"
    curate([str(raw)], str(out), config())
    before = {row["key"]: row for row in open_dataset(out).index.to_pylist(maps_as_pydicts="strict")}
    ended = run(changed, raw, out, "--set=filters.min_warmth=-200", "--update")
    assert ended.returncode == 0, ended.stderr
    assert not Path(f"{out}.opened").exists()
    dataset = open_dataset(out)
    after = {row["key"]: row for row in dataset.index.to_pylist(maps_as_pydicts="strict")}
    assert after.keys() == before.keys()
    assert all("warmth" in dict(row["scores"]) for row in after.values())
    rows = dataset.accounting.to_pylist()
    assert "failed" not in {row["state"] for row in rows}
    assert verify(open_storage(out)).problems == []
    for key, row in after.items():
        own = dict(row["scores"])
        own.pop("warmth")
        assert own == dict(before[key]["scores"])
        assert row["sha256"] == before[key]["sha256"]


@thorough
def test_a_source_whose_clip_is_gone_is_cut_anew_and_no_other(
    raw: Path, changed: Path, tmp_path: Path
) -> None:
    out = tmp_path / "dataset"
    curate([str(raw)], str(out), config(run={"keep_rejected": False}))
    ended = run(changed, raw, out, "--set=filters.min_warmth=-200", "--update")
    assert ended.returncode == 0, ended.stderr
    opened = {Path(line).name for line in Path(f"{out}.opened").read_text().splitlines()}
    assert opened == {"tiny.mp4"}
    found = [dict(row) for row in open_dataset(out).index.column("scores").to_pylist()]
    measured = sorted(row["warmth"] for row in found)
    assert len(measured) == 4
    Path(f"{out}.opened").unlink()
    bound = (measured[0] + measured[-1]) / 2
    ended = run(changed, raw, out, f"--set=filters.min_warmth={bound}", "--update")
    assert ended.returncode == 0, ended.stderr
    assert not Path(f"{out}.opened").exists()
    assert 0 < len(open_dataset(out).index) < 4


def test_a_score_without_a_version_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing would tell which clips of a finished dataset have it."""
    monkeypatch.setattr("reelweave.curate.filters.measure.FIRST", FIRST - {"sharpness"})
    pictures, numbers = np.zeros((2, 32, 48, 3), np.uint8), np.zeros(2, np.float32)
    shape = {"width": 48, "height": 32, "frames": 2, "fps": 2.0, "duration_s": 1.0}
    sample = ClipSample(pictures, np.arange(2) / 2, numbers, numbers, None, **shape, audio_dbfs=None)
    with pytest.raises(RunError, match=r"the score sharpness has no version.*measure\.py"):
        scores(sample)
    monkeypatch.setitem(ADDED, "sharpness", 1)
    assert "sharpness" in scores(sample)


def test_a_score_that_nothing_measures_is_not_to_be_retried(raw: Path, tmp_path: Path) -> None:
    words = ("curate", raw / "0.mp4", "--out", tmp_path / "dataset", *SMALL_WORDS)
    ended = reelweave(*words, "--set=filters.max_ocr_share=0.5")
    assert ended.returncode == 1
    assert "ocr_share was not measured" in ended.stderr
    assert "leave that threshold out, with --update" in ended.stderr
    assert "--retry-failed" not in ended.stderr
    assert reelweave(*words, "--update").returncode == 0
