"""Stages that users write: one file becomes part of a curation, of its accounting and of what a restart repeats."""

import io
import json
import pickle
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from reelweave.curate.config import CurateConfig
from reelweave.curate.ledger.ledger import Ledger
from reelweave.curate.ledger.records import Record
from reelweave.curate.run.assembly import judge_of, model_stages
from reelweave.curate.run.curate import curate
from reelweave.curate.run.outlook.forecast import ForecastConfig
from reelweave.curate.run.sample_run import forecast_curation
from reelweave.curate.run.stages.model_stages import pipeline_stages
from reelweave.curate.source_pass.tasks import ClipTask
from reelweave.curate.takedown.removal import remove
from reelweave.loader.dataset import open_dataset, verify
from reelweave.loader.dataset.manifest import Removal
from reelweave.loader.errors import RunError, UsageError
from reelweave.loader.storage import open_storage
from reelweave.pipelines.cli import main
from reelweave.pipelines.configuration.config import read_given, resolve
from tests.curate.run.test_run import tree
from tests.media import write_video
from tests.printed import ROOT, printed
from tests.thorough import thorough

PAGE = ROOT / "docs/stages.md"
FRAMES = '''
"""Scores of the number of frames; `fails` names lengths that it cannot stand."""

from pathlib import Path

from pydantic import Field

from reelweave import CustomStage, Fault, StageConfig


class FramesConfig(StageConfig):
    """How many frames a clip has."""

    scale: float = Field(1.0, gt=0, description="factor of the score")
    fails: int = Field(0, description="length that raises")
    weights: str = Field("", description="a file")
    log: str = Field("", description="file with a line for each clip and load")


class Frames(CustomStage):
    Config = FramesConfig
    scores = {"length": "frames times scale", "green": "mean of the first picture"}

    def __init__(self, config, device):
        super().__init__(config, device)
        self.note(f"load {device}")

    @classmethod
    def models(cls, config):
        return [config.weights] if config.weights else []

    def note(self, text):
        if self.config.log:
            with Path(self.config.log).open("a") as file:
                file.write(text + chr(10))

    def __call__(self, clips):
        return [self.one(clip) for clip in clips]

    def one(self, clip):
        self.note(f"clip {clip.frames}")
        if clip.frames == self.config.fails:
            raise ValueError(f"cannot stand {clip.frames} frames")
        if clip.frames == 50:
            return Fault("fifty is no length")
        picture = clip.pictures(1, size=16)[0]
        return {"length": clip.frames * self.config.scale, "green": picture[..., 1].mean()}
'''


@pytest.fixture(scope="module")
def raw(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Clips of 30, 40, 50 and 60 frames; the last is dark, and a threshold of ours rejects it."""
    folder = tmp_path_factory.mktemp("raw")
    for frames in (30, 40, 50):
        write_video(folder / f"{frames}.mp4", (frames,), first_scene=frames)
    write_video(folder / "60.mp4", (60,), size=(96, 64))
    return folder


@pytest.fixture
def own(tmp_path: Path) -> Path:
    file = tmp_path / "frames.py"
    file.write_text(FRAMES)
    return file


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of `sys.path` with an installed distribution that has the stage as an entry point, and a broken one."""
    site = tmp_path_factory.mktemp("site")
    (site / "frames_package.py").write_text(FRAMES)
    (site / "broken_package.py").write_text("raise SystemExit('imported')")
    info = site / "frames_package-1.2.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: frames-package\nVersion: 1.2\n")
    points = "frames = frames_package:Frames\nbroken = broken_package:Nothing\n"
    (info / "entry_points.txt").write_text(f"[reelweave.stages]\n{points}")
    return site


def config(own: Path, filters: dict[str, Any] | None = None, **keys: Any) -> CurateConfig:
    log = str(own.parent / "log")
    return CurateConfig.model_validate(
        {
            "run": {"runner": "sequential", "isolate": False},
            "spans": {"min_clip_s": 1.0},
            "stages": {"frames": {"use": f"{own}:Frames", "log": log, **keys}},
            "filters": filters or {},
        }
    )


def log(own: Path) -> list[str]:
    """What the stage did since the last call; the batch of a clip that raises is done again, clip by clip."""
    file = own.parent / "log"
    lines = file.read_text().splitlines() if file.exists() else []
    file.unlink(missing_ok=True)
    return sorted(set(lines))


def fates(out: Path) -> dict[str, tuple[str, str, str]]:
    rows = open_dataset(out).accounting.to_pylist()
    return {Path(row["source"]).stem: (row["state"], row["stage"], row["reason"]) for row in rows}


def scores(out: Path) -> dict[str, dict[str, float]]:
    rows = open_dataset(out).scores.to_pylist(maps_as_pydicts="strict")
    return {Path(row["source"]).stem: row["scores"] for row in rows}


def test_a_file_scores_clips_which_thresholds_decide_on(raw: Path, own: Path, tmp_path: Path) -> None:
    out = tmp_path / "dataset"
    asked = config(own, {"min_length": 60.0}, scale=2, fails=40)
    curate([str(raw)], str(out), asked)
    assert "load cpu" in log(own)
    assert fates(out) == {
        "30": ("kept", "cut", ""),
        "40": ("failed", "stages.frames", "ValueError: cannot stand 40 frames"),
        "50": ("failed", "stages.frames", "fifty is no length"),
        "60": ("filtered", "filter.short_side_px", fates(out)["60"][2]),
    }
    assert scores(out)["30"]["length"] == 60
    assert 0 < scores(out)["30"]["green"] < 255
    assert "length" not in scores(out)["60"]
    assert verify(open_storage(out)).problems == []
    manifest = open_dataset(out).manifest
    assert manifest.config["stages"]["frames"]["scores"]["length"] == "frames times scale"
    # A threshold decodes nothing and asks the stage nothing.
    curate([str(raw)], str(out), config(own, {"max_length": 59}, scale=2, fails=40), update=True)
    assert fates(out)["30"] == ("filtered", "filter.length", "length 60 is above filters.max_length = 59")
    assert log(own) == []
    # What speeds it up changes nothing; another key runs it alone, for what it is asked for.
    asked = config(own, {"max_length": 59}, scale=2, fails=40, batch_clips=1, cpus=2)
    assert curate([str(raw)], str(out), asked).already_there
    curate([str(raw)], str(out), config(own, {"max_length": 59}, fails=0), update=True)
    assert log(own) == ["clip 30", "clip 40", "clip 50", "load cpu"]
    assert {name: fate[0] for name, fate in fates(out).items()} == {
        "30": "kept",
        "40": "kept",
        "50": "failed",
        "60": "filtered",
    }


PREPARED = """
from reelweave import CustomStage


class Green(CustomStage):
    scores = {"green": "mean of the first picture", "data": "bytes of the clip that reach the model"}

    @classmethod
    def prepare(cls, config, clip):
        if clip.frames == 40:
            raise ValueError("cannot prepare 40 frames")
        return clip.pictures(1, size=16)[0][..., 1].mean()

    def __call__(self, clips):
        return [{"green": clip.prepared, "data": len(clip.data)} for clip in clips]
"""


def test_inputs_are_made_apart_from_the_model(raw: Path, own: Path, tmp_path: Path) -> None:
    own.write_text(PREPARED)
    keys = {"use": f"{own}:Green", "gpus": 0.5}
    run = {"runner": "sequential", "isolate": False}
    given = CurateConfig.model_validate({"run": run, "spans": {"min_clip_s": 1.0}, "stages": {"green": keys}})
    out = tmp_path / "dataset"
    curate([str(raw)], str(out), given)
    assert fates(out)["40"] == ("failed", "stages.green", "ValueError: cannot prepare 40 frames")
    assert [fates(out)[name][0] for name in ("30", "50")] == ["kept", "kept"]
    assert 0 < scores(out)["30"]["green"] < 255
    assert scores(out)["30"]["data"] == 0

    # With a GPU, inputs, model and record are steps of their own, and inputs travel between processes.
    ledger = Ledger(open_storage(tmp_path / "ledger"))
    asked = model_stages(given)
    [green] = [stage for stage in asked if stage.name == "stages.green"]
    stage = green.clip_stage(ledger, {}, judge_of(given, asked))
    record = Record("a.mp4", source_sha256="0" * 64, key="0" * 20, sha256="1" * 64, frames=30, fps=25.0)
    ledger.blobs.write_clip(record.clip_id, (raw / "30.mp4").read_bytes())
    task = ClipTask(record, todo=(stage.name,))
    steps = pipeline_stages([(stage, green)], 1.0, given.run.worker_memory_mb)
    assert [step.name for step in steps] == ["stages.green.input", "stages.green", "stages.green.record"]
    assert steps[0].memory_mb > given.run.worker_memory_mb
    tasks = [task]
    for step in steps:
        tasks = pickle.loads(pickle.dumps(list(step.function(tasks))))
    assert tasks[0].found == stage([task])[0].found


@pytest.mark.parametrize("changed", ["code", "weights"])
def test_other_code_or_weights_run_the_stage_again(
    raw: Path, own: Path, tmp_path: Path, changed: str
) -> None:
    out, weights = tmp_path / "dataset", tmp_path / "head.bin"
    weights.write_bytes(b"1")
    asked = {"weights": str(weights), "fails": 0}
    curate([str(raw / "30.mp4")], str(out), config(own, **asked))
    assert log(own) == ["clip 30", "load cpu"]
    if changed == "code":
        own.write_text(FRAMES.replace("* self.config.scale", "* 3 * self.config.scale"))
    else:
        weights.write_bytes(b"2")
    with pytest.raises(
        UsageError, match=f"{'code of' if changed == 'code' else 'model at'} stages.frames.*--up"
    ):
        curate([str(raw / "30.mp4")], str(out), config(own, **asked))
    curate([str(raw / "30.mp4")], str(out), config(own, **asked), update=True)
    assert log(own) == ["clip 30", "load cpu"]
    assert scores(out)["30"]["length"] == (90 if changed == "code" else 30)


def test_an_installed_stage_is_found_by_its_name_and_no_other_is_imported(
    raw: Path,
    package: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.syspath_prepend(str(package))
    for at_fault, said in (
        ("stages.frame={}", "no entry point of this name .* did you mean frames"),
        ("filters.min_length=3", "filters.min_length .* is no known key"),
        (
            "stages.frames.scal=3",
            r"stages.frames.scal \(--set\) cannot be 3: the stage has no such key; .*scale",
        ),
        ("stages.frames.scale=0", "stages.frames.scale .* greater than 0"),
        ("stages.frames.use=pathlib:Path", "pathlib:Path does not derive from reelweave.CustomStage"),
        ("stages.frames.use=nowhere.py:A", "nowhere.py is no file of Python"),
        ("stages.frames.use=no_such_module:A", "there is no module no_such_module"),
        ("stages.frames.use=A", "names no class"),
        ("stages.Frames={}", "lower-case letters"),
        (
            "stages={frames: {}, more: {use: 'frames_package:Frames'}}",
            "stages.more gives the score length, which",
        ),
    ):
        assert main(["curate", str(raw), "--out", str(tmp_path / "no"), "--set", at_fault]) == 2
        assert re.search(said, " ".join(capsys.readouterr().err.split())), at_fault
    assert not (tmp_path / "no").exists()
    assert main(["config", "stages", "--set", "stages.frames={}"]) == 0
    listed = capsys.readouterr().out
    assert "frames: frames_package:Frames of frames-package 1.2" in listed
    assert "score length: frames times scale; filters.min_length" in listed
    assert "stages.frames.scale: factor of the score" in listed
    assert "broken: broken_package:Nothing" in listed
    words = ["--set=run.runner=sequential", "--set=run.isolate=false", "--set=spans.min_clip_s=1"]
    words += ["--set=stages.frames={}", "--set=filters.max_length=35"]
    out = tmp_path / "dataset"
    assert main(["curate", str(raw / "30.mp4"), str(raw / "40.mp4"), "--out", str(out), *words]) == 0
    assert "broken_package" not in sys.modules
    assert {name: fate[:2] for name, fate in fates(out).items()} == {
        "30": ("kept", "cut"),
        "40": ("filtered", "filter.length"),
    }
    # The kept configuration repeats it, and the report lets both thresholds be moved.
    again = ["curate", str(raw / "30.mp4"), str(raw / "40.mp4"), "--out", str(out)]
    assert main([*again, "--config", str(out / "curate.yaml")]) == 0
    assert "already complete" in capsys.readouterr().out
    page = (out / "report/index.html").read_text()
    assert "min_length" in page
    assert "max_length" in page
    assert (out / "report/data/score-length.js").is_file()


def test_what_is_taken_down_leaves_the_results_of_stages_too(raw: Path, own: Path, tmp_path: Path) -> None:
    out = tmp_path / "dataset"
    curate([str(raw / "30.mp4"), str(raw / "40.mp4")], str(out), config(own))
    key = next(row["key"] for row in open_dataset(out).index.to_pylist() if row["source"].endswith("30.mp4"))
    entries = [path.name for path in (out / ".ledger/stages.frames").rglob("*.json")]
    assert len(entries) == 2
    assert any(key in name for name in entries)
    remove(open_storage(out), Removal(date="2026-11-26", reason="asked to", samples=0, key=key))
    left = [path.name for path in (out / ".ledger/stages.frames").rglob("*.json")]
    assert left == [name for name in entries if key not in name]


def test_a_stage_that_cannot_be_loaded_ends_the_run_in_words(raw: Path, own: Path, tmp_path: Path) -> None:
    own.write_text(FRAMES.replace('self.note(f"load {device}")', 'raise OSError("no weights here")'))
    with pytest.raises(RunError, match=r"stages\.frames cannot be loaded: OSError: no weights here"):
        curate([str(raw / "30.mp4")], str(tmp_path / "dataset"), config(own))


@thorough
def test_a_forecast_runs_stages_and_its_work_is_kept(raw: Path, own: Path, tmp_path: Path) -> None:
    out = tmp_path / "dataset"
    found = forecast_curation([str(raw)], str(out), config(own), ForecastConfig())
    assert found.clips.value == 2
    assert "load cpu" in log(own)
    curate([str(raw)], str(out), config(own))
    assert log(own) == []


@thorough
@pytest.mark.usefixtures("ray_local")
def test_ray_gives_the_bytes_of_one_process(raw: Path, own: Path, tmp_path: Path) -> None:
    """Workers run the file's text: it need not be on their node."""
    asked = config(own, {"min_length": 35}, fails=60)
    curate([str(raw)], str(tmp_path / "one"), asked)
    log(own)
    on_ray = asked.model_copy(update={"run": asked.run.model_copy(update={"runner": "ray"})})
    own.rename(own.with_suffix(".gone"))
    curate([str(raw)], str(tmp_path / "ray"), on_ray)
    assert log(own) == ["clip 30", "clip 40", "clip 50", "load cpu"]
    assert fates(tmp_path / "ray") == fates(tmp_path / "one")
    assert scores(tmp_path / "ray") == scores(tmp_path / "one")
    assert tree(tmp_path / "ray") == tree(tmp_path / "one")


EMBEDS = """
from reelweave import CustomStage, Embedded


class Lengths(CustomStage):
    scores = {"frames_in_all": "frames"}
    embeds = True

    def __call__(self, clips):
        return [self.vector(clip.frames) for clip in clips]

    def vector(self, frames):
        numbers = {30: [3.0, 4.0], 40: [0.0, 0.0], 50: [3.0, 4.1], 60: [1.0, 2.0, 3.0]}[frames]
        return Embedded(numbers, {"frames_in_all": frames})


class Late(Lengths):
    reads_caption = True


class Mute(CustomStage):
    def __call__(self, clips):
        return [Embedded([1.0], {}) for clip in clips]
"""


def test_vectors_of_a_stage_are_the_embedding_of_clips(
    raw: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("own.py").write_text(EMBEDS)
    sections: dict[str, Any] = {
        "run": {"runner": "sequential", "isolate": False},
        "spans": {"min_clip_s": 1.0},
        "stages": {"lengths": {"use": "own.py:Lengths"}, "mute": {"use": "own.py:Mute"}},
        "embed": {"backend": "stages.lengths"},
    }
    for change, said in (
        (
            {"embed": {"backend": "stages.length"}},
            "line 1.: backend names stages.length, and there is no such stage",
        ),
        ({"embed": {"backend": "stages.mute"}}, "gives no vectors"),
        ({"stages": {"lengths": {"use": "own.py:Late"}}}, "runs after the comparison"),
        ({"embed": {"backend": "lengths"}}, "embed.backend .* cannot be 'lengths': write none, perceptual"),
    ):
        (tmp_path / "my.yaml").write_text(json.dumps(sections | change))
        with pytest.raises(UsageError, match=said):
            resolve(CurateConfig, tmp_path / "my.yaml", [])
    del sections["stages"]["mute"]
    curate([str(raw)], "ds", CurateConfig.model_validate(sections))
    assert fates(Path("ds"))["40"] == (
        "failed",
        "stages.lengths",
        "ValueError: the vector is not finite, or zero",
    )
    dataset = open_dataset("ds")
    vectors = {
        sample.row["frames"]: np.load(io.BytesIO(sample.embeddings["video.npy"])) for sample in dataset
    }
    assert vectors[30].tolist() == np.array([0.6, 0.8], np.float16).tolist()
    assert vectors[50].dtype == np.float16
    assert scores(Path("ds"))["50"]["frames_in_all"] == 50
    key = next(row["key"] for row in dataset.index.to_pylist() if row["frames"] == 30)
    assert main(["search", "ds", "--like", key]) == 0
    assert main(["search", "ds", "a red kite"]) == 2
    assert "knows no words" in capsys.readouterr().err
    assert main(["search", "ds", "--like", str(raw / "30.mp4")]) == 2
    assert "by its key" in capsys.readouterr().err
    sections["dedup"] = {"semantic": {"enabled": True, "min_similarity": 0.999}}
    curate([str(raw)], "alike", CurateConfig.model_validate(sections))
    alike = sorted(fate[0] for fate in fates(Path("alike")).values())
    assert alike == ["duplicate", "failed", "filtered", "kept"]
    # Another dataset is compared by the same vectors only.
    sections["dedup"]["older"] = ["ds"]
    curate([str(raw / "30.mp4")], "newer", CurateConfig.model_validate(sections))
    Path("own.py").write_text(EMBEDS + "\n")
    with pytest.raises(UsageError, match="ds was embedded otherwise"):
        curate([str(raw / "30.mp4")], "newest", CurateConfig.model_validate(sections))
    sections |= {"dedup": {}, "embed": {"backend": "none"}, "filters": {"min_short_side_px": 32}}
    curate([str(raw / "60.mp4"), str(raw / "50.mp4")], "bare", CurateConfig.model_validate(sections))
    assert [sample.embeddings for sample in open_dataset("bare")] == [{}, {}]
    sections["embed"] = {"backend": "stages.lengths"}
    with pytest.raises(RunError, match="vectors of clips have different sizes"):
        curate(
            [str(raw / "60.mp4"), str(raw / "50.mp4")],
            "bare",
            CurateConfig.model_validate(sections),
            update=True,
        )


def test_the_page_shows_a_whole_stage(raw: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (block,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    Path("loop.py").write_text(block)
    shutil.copytree(raw, "raw")
    (command, _) = printed(PAGE)
    here = ["--set=run.runner=sequential", "--set=run.isolate=false", "--set=spans.min_clip_s=1"]
    assert main([*command.words, *here, "--set", "filters.min_loop=0"]) == 0
    alike = [row["loop"] for row in scores(Path("ds")).values() if "loop" in row]
    assert len(alike) == 3
    assert all(0.5 < score < 1 for score in alike)


def test_a_configuration_from_an_address_names_installed_code_only(own: Path, tmp_path: Path) -> None:
    text = f"stages:\n  frames:\n    use: {own}:Frames\n"
    (tmp_path / "my.yaml").write_text(text)
    file = tmp_path / "my.yaml"
    with pytest.raises(UsageError, match=r"stages\.frames\.use \(.*line 3\): .* installed stages only"):
        resolve(CurateConfig, file.as_uri(), [])
    assert resolve(CurateConfig, file, []).stages
    nested = tmp_path / "demo.yaml"
    nested.write_text(json.dumps({"curate": {"stages": {"frames": {"use": f"{own}:Frames"}}}}))
    with pytest.raises(UsageError, match=r"curate\.stages\.frames\.use .* installed stages only"):
        read_given(nested.as_uri(), [])
    assert resolve(CurateConfig, file.as_uri(), [f"stages.frames.use={own}:Frames"]).stages
