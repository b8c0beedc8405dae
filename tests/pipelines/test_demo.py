"""The newcomer's first command on short films; and training killed and resumed through the command line.

`make demo` renders the same films at their full length (`python -m tests.bench.docs_commands --page README.md`).
"""

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import yaml

from reelweave.loader.dataset import open_dataset, verify
from reelweave.loader.storage import open_storage
from reelweave.pipelines.commands.begin.demo import CLIPS
from reelweave.pipelines.configuration.config import resolve
from reelweave.pipelines.configuration.train_config import TrainRunConfig
from reelweave.pipelines.evaluation.nearest import clip_frames, mean_colours
from reelweave.pipelines.evaluation.shown import MARGIN_DB
from reelweave.pipelines.footage import REELS, make_footage
from tests.commands import reelweave
from tests.thorough import nightly, thorough
from tests.train.loop import worlds
from tests.train.ranks import Ranks
from tests.warm import Warm

CONFIGS = Path(__file__).parents[2] / "pipelines" / "configs"
FRAMES, SIZE = 17, (48, 80)
SMALLER = {
    "train.model.hidden": 192,
    "stream.buckets.frames": [FRAMES],
    "stream.buckets.sizes": [list(SIZE), [80, 48]],
    "stream.buckets.memory_tokens": 840,
}
"""Half of the pixels of a frame, in as large a batch; three quarters of the width of the model."""
SHORT = [
    replace(
        reel,
        width=reel.width // 8 * 6,
        height=reel.height // 8 * 6,
        shots=tuple(replace(shot, seconds=1.3) for shot in reel.shots),
    )
    for reel in REELS
]
"""Every reel of the demo at half the length and three quarters of the size: a quarter of the pixels."""


def asked(request: pytest.FixtureRequest, marker: str) -> bool:
    """Return whether a test of this file with a marker will run."""
    here = (item for item in request.session.items if item.path == request.path)
    return any(item.get_closest_marker(marker) for item in here)


@pytest.fixture(scope="module")
def steps(request: pytest.FixtureRequest) -> int:
    """As many as videos that show their clips need, where a test asks for that; else half of them, or a few."""
    return 240 if asked(request, "nightly") else 120 if asked(request, "thorough") else 12


@pytest.fixture(scope="module")
def demo(
    tmp_path_factory: pytest.TempPathFactory, steps: int, request: pytest.FixtureRequest
) -> tuple[Path, dict]:
    """On the Ray of the tests where a test asks for that; `tests/curate/run/test_pipeline.py` starts one."""
    out = tmp_path_factory.mktemp("demo")
    make_footage(out / "footage", reels=SHORT)
    changes = {**SMALLER, "train.schedule.total_steps": steps}
    if asked(request, "thorough"):
        request.getfixturevalue("ray_local")
    else:
        changes |= {"curate.run.runner": "sequential", "curate.run.isolate": False}
    sets = [word for key, value in changes.items() for word in ("--set", f"{key}={value}")]
    done = reelweave("demo", "--videos", out / "footage", "--out", out, "--json", *sets)
    assert done.returncode == 0, done.stderr
    return out, json.loads(done.stdout)


@thorough
def test_the_loss_falls_by_30_percent(demo: tuple[Path, dict], steps: int) -> None:
    out, result = demo
    lines = [json.loads(line) for line in (out / "train/metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == list(range(1, steps + 1))
    losses = [line["loss"] for line in lines]
    assert sum(losses[-10:]) <= 0.7 * sum(losses[:10])
    assert result["train"]["last_loss"] == pytest.approx(sum(losses[-10:]) / 10, rel=1e-6)


@thorough
def test_of_all_clips_each_video_is_nearest_to_that_of_its_prompt(demo: tuple[Path, dict]) -> None:
    out, result = demo
    learned = result["learned"]
    assert len(learned) == CLIPS == len({one["prompt"] for one in learned})
    kept = json.loads((out / "dataset/report/sampled/videos.json").read_text())
    assert [one["nearest"] for one in kept] == [one["key"] for one in learned]
    assert all(one["psnr_db"] >= one["other_psnr_db"] + MARGIN_DB for one in kept)
    page = Path(result["report"]).read_text()
    assert all(f"sampled/{one['file']}" in page for one in kept)


@thorough
def test_it_curates_on_ray(demo: tuple[Path, dict]) -> None:
    out, _ = demo
    assert yaml.safe_load((out / "dataset/curate.yaml").read_text())["run"]["runner"] == "ray"


@nightly
def test_the_sampled_videos_show_the_clips_of_their_prompts(demo: tuple[Path, dict]) -> None:
    """The one that moves most is nearer to its clip than any still picture is.

    In its whole length the demo comes nearer to all three than their best stills (docs/notes/demo.md).
    """
    out, result = demo
    dataset, learned = open_dataset(out / "dataset"), result["learned"]
    assert learned[0]["shown"]
    assert learned[0]["psnr_db"] >= learned[0]["unlearned_db"] + 3 * MARGIN_DB
    kept = json.loads((out / "dataset/report/sampled/videos.json").read_text())
    assert all(one["psnr_db"] >= one["other_psnr_db"] + 3 * MARGIN_DB for one in kept)
    rows = {key: row for row, key in enumerate(dataset.index.column("key").to_pylist())}
    for one in learned:
        clip_CTHW = mean_colours(clip_frames(dataset, rows[one["key"]], SIZE, FRAMES))
        held_db = -10 * np.log10(np.square(clip_CTHW - clip_CTHW[:, :1]).mean())
        assert one["psnr_db"] >= held_db + MARGIN_DB, "a first frame held comes as near"


def test_the_run_has_its_page(demo: tuple[Path, dict], steps: int) -> None:
    out, result = demo
    assert Path(result["run_page"]) == out / "train/report/index.html"
    assert f"{steps} of {steps}" in Path(result["run_page"]).read_text()


def test_every_file_of_the_footage_is_accounted_for(demo: tuple[Path, dict]) -> None:
    out, result = demo
    videos = {path.name for path in (out / "footage").iterdir() if path.suffix in (".mp4", ".webm")}
    rows = open_dataset(out / "dataset").accounting.to_pylist()
    assert {Path(row["source"]).name for row in rows} == videos
    assert result["accounting"]["failed"] == 1
    assert next(row for row in rows if row["state"] == "failed")["reason"].startswith("cannot be opened")


@thorough
def test_a_stop_signal_in_training_ends_it(demo: tuple[Path, dict], tmp_path: Path, warm: Warm) -> None:
    """As `kill` or a scheduler sends it; the demo went on with sampling."""
    out = Path(shutil.copytree(demo[0], tmp_path / "demo", ignore=shutil.ignore_patterns("train", "samples")))
    sets = [f"--set={key}={value}" for key, value in {**SMALLER, "train.schedule.total_steps": 10**5}.items()]
    sets += ["--set=curate.run.runner=sequential"]
    words = ["demo", "--videos", str(demo[0] / "footage"), "--out", str(out), "--json", *sets]
    running = warm.start(*words)
    deadline = time.monotonic() + 300
    while not (out / "train/metrics.jsonl").exists():
        assert time.monotonic() < deadline
        time.sleep(0.1)
    os.kill(running.pid, signal.SIGTERM)
    status, said = running.ended()
    assert status == 75, said
    assert "the same command goes on" in said
    assert not (out / "samples").exists()


def test_the_dataset_is_whole_and_the_report_is_there(demo: tuple[Path, dict]) -> None:
    out, result = demo
    assert verify(open_storage(out / "dataset")).problems == []
    assert result["samples"] >= 20
    assert "kaleidoscope" in Path(result["report"]).read_text()


def proposed(result: dict) -> list[list[str]]:
    """Return the words of each command to try next."""
    # "reelweave WORDS" where it is on the path, else "python -m reelweave.pipelines.cli WORDS".
    return [
        shlex.split(re.split(r"reelweave |-m reelweave\.pipelines\.cli ", one["command"], maxsplit=1)[-1])
        for one in result["try_next"]
    ]


@thorough
def test_what_takes_longer_begins_as_printed(
    demo: tuple[Path, dict], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Training ends behind two steps, and TensorBoard prints what it would serve."""
    out, result = demo
    monkeypatch.chdir(tmp_path)
    by_name = {words[0]: words for words in proposed(result)}
    done = reelweave(*by_name["train"], "--set", "train.schedule.total_steps=2")
    assert done.returncode == 0, done.stderr
    assert (out / "longer" / "metrics.jsonl").read_text().count("\n") == 2
    done = reelweave(*by_name["curate"], "--set", "run.runner=sequential", "--set", "run.isolate=false")
    assert done.returncode == 0, done.stderr
    made = (open_dataset(folder) for folder in ("my-dataset", out / "dataset"))
    assert len({one.manifest.totals.sources for one in made}) == 1
    [board] = [one["command"] for one in result["try_next"] if "tensorboard" in one["command"]]
    told = subprocess.run([*shlex.split(board), "--inspect"], capture_output=True, text=True, check=True)
    assert "loss" in told.stdout


def test_what_it_proposes_runs_as_printed(demo: tuple[Path, dict]) -> None:
    out, result = demo
    page = Path(result["report"]).read_text()
    ran = set()
    for words in proposed(result):
        if words[0] in ("verify", "report", "plan", "config"):  # others take minutes or do not end
            done = reelweave(*words)
            assert done.returncode == 0, (words, done.stderr)
            ran.add(words[0])
    assert ran == {"verify", "report", "plan", "config"}
    assert reelweave("report", out / "dataset").returncode == 0
    assert Path(result["report"]).read_text() == page
    kept = resolve(TrainRunConfig, out / "train" / "train.yaml", [])
    assert kept == resolve(TrainRunConfig, out / "train.yaml", [])


def train(ranks: Ranks, dataset: Path, out: Path, *sent: str) -> tuple[int, dict]:
    """How ``reelweave train`` ends and what it says, of a process that may get a signal."""
    changes = (
        f"dataset={dataset}", f"out={out}", "stream.buckets.frames=[9]", "stream.buckets.sizes=[[32,48],[48,32]]",
        "stream.buckets.memory_tokens=600", "train.dtype=float32", "train.model.layers=1", "train.model.hidden=96",
        "train.model.heads=4", "train.schedule.total_steps=12", "train.checkpoint.every_steps=3",
    )  # fmt: skip
    words = ["train", "--json", "--config", str(CONFIGS / "train.yaml")]
    for change in changes:
        words += ["--set", change]
    ended = ranks.run(worlds.command, 1, words, str(out), *sent)
    assert sent or ended.codes == [0], ended.errors
    return ended.codes[0], json.loads(Path(f"{out}.txt").read_text() or "{}")


@nightly
def test_training_killed_and_resumed_ends_at_the_same_loss(
    demo: tuple[Path, dict], ranks: Ranks, tmp_path: Path
) -> None:
    dataset = demo[0] / "dataset"
    _, expected = train(ranks, dataset, tmp_path / "undisturbed")
    code, _ = train(ranks, dataset, tmp_path / "killed", "kill", "checkpoints/step-*")
    assert code == -signal.SIGKILL
    _, resumed = train(ranks, dataset, tmp_path / "killed")
    assert resumed["last_loss"] == pytest.approx(expected["last_loss"], abs=1e-6)
    curves = [
        [json.loads(line)["loss"] for line in (tmp_path / name / "metrics.jsonl").read_text().splitlines()]
        for name in ("undisturbed", "killed")
    ]
    assert curves[0] == pytest.approx(curves[1], abs=1e-6)
