"""Metrics of videos whose answer is known, and `reelweave evaluate`."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from reelweave.pipelines.cli import main
from reelweave.pipelines.evaluation.frechet import frechet_distance
from reelweave.pipelines.evaluation.metrics import (
    compare_videos,
    motion,
    motion_smoothness_linear,
    scores,
    temporal_flickering,
)
from reelweave.pipelines.evaluation.run_scores import read_score_lines
from reelweave.pipelines.evaluation.videos import read_video
from reelweave.pipelines.terminal.mp4 import encode_mp4
from tests.tiny_models import tiny_open_clip


def texture(height: int, width: int, seed: int = 0) -> np.ndarray:
    """Smooth random detail, float [height, width], 0 to 255."""
    noise = np.random.default_rng(seed).normal(size=(height, width))
    for axis in (0, 1):
        noise = sum(np.roll(noise, step, axis) for step in range(-2, 3)) / 5
    return np.clip(128 + 128 * noise / np.abs(noise).max(), 0, 255)


def moving(pixels_per_frame: int, frames: int = 16, height: int = 96, width: int = 128) -> np.ndarray:
    """A texture that moves to the right; uint8 [3, frames, height, width]."""
    whole = texture(height, 4 * width)
    offsets = (2 * width - pixels_per_frame * number for number in range(frames))
    video_THW = np.stack([whole[:, at : at + width] for at in offsets])
    return np.repeat(video_THW.round().astype(np.uint8)[None], 3, axis=0)


def flashing(levels: list[int]) -> np.ndarray:
    """Grey frames of these levels."""
    return np.broadcast_to(np.array(levels, np.uint8)[None, :, None, None], (3, len(levels), 16, 16)).copy()


def test_flicker_is_the_mean_step_of_neighbours() -> None:
    assert temporal_flickering(flashing([7] * 5)) == 1
    assert temporal_flickering(flashing([0, 255, 0])) == 0
    assert temporal_flickering(flashing([0, 51, 51])) == pytest.approx(0.9)
    assert temporal_flickering(flashing([0])) is None


def test_smoothness_is_the_step_from_the_mean_of_both_neighbours() -> None:
    assert motion_smoothness_linear(flashing([0, 50, 100, 150])) == 1  # an even fade
    assert motion_smoothness_linear(flashing([0, 255, 0])) == 0
    assert motion_smoothness_linear(flashing([0, 0, 102])) == pytest.approx(0.8)
    assert motion_smoothness_linear(flashing([0, 255])) is None


@pytest.mark.parametrize("fps", [8.0, 24.0])
@pytest.mark.parametrize(("pixels", "dynamic"), [(0, 0), (1, 0), (6, 1)])
def test_motion_is_what_the_texture_moves_by(pixels: int, dynamic: int, fps: float) -> None:
    """Per frame of 8 a second, of which 24 has three; 6 / 256 of 96 rows are 2.25 pixels."""
    every = round(fps / 8)
    video = moving(pixels, frames=1 + 15 * every) if every == 1 else np.repeat(moving(pixels), every, axis=1)
    found = motion(video[0].astype(np.float32), fps)
    per_second = pixels * 8 / np.hypot(96, 128)
    assert found["motion"] == pytest.approx(per_second, rel=0.1, abs=0.005)
    assert found["dynamic_degree"] == dynamic


def test_a_blur_costs_sharpness() -> None:
    sharp = moving(1, frames=3)
    blurred = sharp.astype(float)
    for axis in (2, 3):
        blurred = sum(np.roll(blurred, step, axis) for step in range(-3, 4)) / 7
    found = [scores(video, 8.0)["sharpness"] for video in (sharp, blurred.round().astype(np.uint8))]
    assert found[1] < 0.5 * found[0]


def test_likeness_is_psnr_and_ssim_over_frames() -> None:
    video = moving(2, frames=2)
    same = compare_videos(video, video, None)
    assert same["psnr"] == pytest.approx(100)
    assert same["ssim"] == pytest.approx(1)
    one_off = np.where(video < 255, video + 1, video - 1).astype(np.uint8)
    assert compare_videos(one_off, video, None)["psnr"] == pytest.approx(20 * np.log10(255), abs=1e-3)
    assert "ssim" not in compare_videos(video[..., :8], video[..., :8], None)


def test_frechet_distance_is_that_of_gaussians() -> None:
    """Features with exact moments: means and covariances are what they were made to be."""
    random = np.random.default_rng(0)

    def features(mean: list[float], root: list[list[float]]) -> np.ndarray:
        drawn = random.normal(size=(40, 2))
        drawn -= drawn.mean(axis=0)
        white = drawn @ np.linalg.inv(np.linalg.cholesky(np.cov(drawn, rowvar=False))).T
        return np.array(mean) + white @ np.array(root).T

    one = features([0, 0], [[1, 0], [0, 2]])
    assert frechet_distance(one, one) == pytest.approx(0, abs=1e-12)
    assert frechet_distance(one, features([3, 4], [[1, 0], [0, 2]])) == pytest.approx(25)
    # Diagonal covariances: the sum of squared differences of deviations.
    assert frechet_distance(one, features([0, 0], [[2, 0], [0, 5]])) == pytest.approx(1 + 9)
    # A turn by 90 degrees: tr(C1 + C2) - 2 tr((C1 C2)^1/2), both of deviations 1 and 2.
    assert frechet_distance(one, features([0, 0], [[0, 2], [1, 0]])) == pytest.approx(10 - 2 * 4)
    # More features than videos: covariances without an inverse.
    few = random.normal(size=(3, 6))
    assert frechet_distance(few, few + 1) == pytest.approx(6)


def folder(path: Path, videos: dict[str, np.ndarray], step: int | None = None) -> Path:
    path.mkdir()
    for name, video in videos.items():
        (path / name).write_bytes(encode_mp4(video, 8))
    if step is not None:
        records = [{"file": name, "step": step, "prompt": "a wave"} for name in videos]
        (path / "manifest.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def test_each_folder_is_a_row(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    real = folder(tmp_path / "real", {"a.mp4": moving(6), "b.mp4": moving(0)})
    good = folder(tmp_path / "good", {"a.mp4": moving(6), "b.mp4": moving(0)}, step=200)
    bad = folder(tmp_path / "bad", {"a.mp4": moving(0)}, step=100)
    out = tmp_path / "scores.json"
    command = ["evaluate", str(bad), str(good), "--reference", str(real), "--out", str(out)]
    assert main([*command, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found == json.loads(out.read_text())
    first, second = found["folders"]
    assert [(row["step"], row["videos"]) for row in (first, second)] == [(100, 1), (200, 2)]
    assert second["metrics"]["dynamic_degree"] == 0.5
    assert first["metrics"]["dynamic_degree"] == 0
    assert second["metrics"]["psnr"] == pytest.approx(100)
    assert first["metrics"]["psnr"] < 25
    assert [one["file"] for one in second["by_video"]] == ["a.mp4", "b.mp4"]
    assert second["by_video"][1]["temporal_flickering"] > 0.99
    assert main(command) == 0
    printed = capsys.readouterr().out
    assert "temporal_flickering" in printed
    assert "200" in printed

    features = {name: tmp_path / f"{name}.npy" for name in ("one", "other")}
    for number, path in enumerate(features.values()):
        np.save(path, np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32) + number)
    options = ["--features", str(features["one"]), "--reference-features", str(features["other"])]
    assert main(["evaluate", str(bad), *options, "--json"]) == 0
    distance = json.loads(capsys.readouterr().out)["folders"][0]["metrics"]["frechet_distance"]
    assert distance == pytest.approx(3, rel=1e-5)


def test_what_is_missing_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty").mkdir()
    made = folder(tmp_path / "made", {"a.mp4": moving(0, frames=3)})
    other = folder(tmp_path / "other", {"b.mp4": moving(0, frames=3)})
    short = folder(tmp_path / "short", {"a.mp4": moving(0, frames=2)})
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "a.mp4").write_bytes(b"no video")
    pickled = tmp_path / "pickled.npy"
    np.save(pickled, np.array([{}]), allow_pickle=True)
    run = tmp_path / "run"
    run.mkdir()
    (run / "metrics.jsonl").touch()
    for words, status, told in [
        ([str(tmp_path / "empty")], 2, "is no folder with .mp4 files"),
        ([str(made), "--reference", str(other)], 2, "a.mp4 has no video of the same name"),
        ([str(made), "--reference", str(short)], 2, "has 2 frames, fewer than the 3"),
        ([str(broken)], 1, "a.mp4 is no video"),
        ([str(made), "--lpips", "vgg.pth"], 2, "--lpips compares with --reference"),
        ([str(made), "--clip", "nowhere"], 2, "--clip nowhere is no folder"),
        ([str(made), "--features", "x.npy"], 2, "belong together"),
        (
            [str(made), "--features", str(pickled), "--reference-features", str(pickled)],
            2,
            "is no .npy file of numbers",
        ),
        (
            [str(made), "--lpips", str(pickled), "--reference", str(made)],
            2,
            f"--lpips={str(pickled)!r} could not",
        ),
        ([str(run)], 2, "has sampled no validation videos"),
    ]:
        assert main(["evaluate", *words]) == status, words
        said = capsys.readouterr().err
        assert told in said
        assert "unsafe" not in said  # what numpy and torch advise
        assert "weights_only" not in said


def run_of(path: Path, steps: dict[int, int]) -> Path:
    """A run with two captions, of which one moves by so many pixels at each step, and the other failed at step 1."""
    for step, pixels in steps.items():
        made = path / "validation" / f"step-{step:06d}"
        made.mkdir(parents=True, exist_ok=True)
        (made / "000.mp4").write_bytes(encode_mp4(moving(pixels), 8))
        videos = [{"prompt": "a wave", "file": "000.mp4", "failed": None}]
        videos.append({"prompt": "a cat", "file": None, "failed": "not finite"})
        record = {"step": step, "weights": "ema", "sample": {"seed": 7}, "videos": videos}
        (made / "validation.json").write_text(json.dumps(record))
    return path


def test_the_steps_of_a_run_are_scored_once_and_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = run_of(tmp_path / "run", {20: 6, 100: 0, 3: 6})
    (run / "tensorboard").mkdir()
    decoded: list[str] = []

    def counted(path: Path, *more: object) -> tuple[np.ndarray, float]:
        decoded.append(path.parent.name)
        if len(decoded) == stops:
            raise KeyboardInterrupt
        return read_video(path, *more)

    monkeypatch.setattr("reelweave.pipelines.evaluation.evaluate.read_video", counted)
    stops = 2  # a kill in the second step
    assert main(["evaluate", str(run), "--json"]) == 130
    assert [line["step"] for line in read_score_lines(run)] == [3]
    stops = 0
    decoded.clear()
    assert main(["evaluate", str(run), "--json"]) == 0
    assert decoded == ["step-000020", "step-000100"]
    rows = json.loads(capsys.readouterr().out)["folders"]
    assert [row["step"] for row in rows] == [3, 20, 100]
    lines = read_score_lines(run)
    assert [(line["step"], line["metrics"]["dynamic_degree"]) for line in lines] == [
        (3, 1),
        (20, 1),
        (100, 0),
    ]
    assert [line["metrics"] for line in lines] == [row["metrics"] for row in rows]
    assert len({line["prompt_set"] for line in lines}) == 1
    assert [one["file"] for one in lines[0]["by_video"]] == ["000.mp4"]

    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(run / "tensorboard" / "scores"))
    events.Reload()
    shown = {event.step: event.value for event in events.Scalars("scores/dynamic_degree")}
    assert shown == {3: 1, 20: 1, 100: 0}

    # Other videos of a step are scored again, other captions beside, and other options anew.
    decoded.clear()
    run_of(run, {100: 6})
    assert main(["evaluate", str(run), "--json"]) == 0
    assert decoded == ["step-000100"]
    assert [line["metrics"]["dynamic_degree"] for line in read_score_lines(run)] == [1, 1, 1]
    manifest = run / "validation/step-000003/validation.json"
    manifest.write_text(manifest.read_text().replace("a cat", "a dog"))
    assert main(["evaluate", str(run), "--json"]) == 0
    assert [line["step"] for line in read_score_lines(run)] == [3, 3, 20, 100]
    decoded.clear()
    assert main(["evaluate", str(run), "--reference", str(run / "validation/step-000020"), "--json"]) == 0
    assert len(decoded) == 2 * 3
    assert all("psnr" in line["metrics"] for line in read_score_lines(run)[-2:])
    capsys.readouterr()
    for path, told in (
        (run / "scores.jsonl", "scores.jsonl is damaged"),
        (manifest, "validation.json is damaged"),
    ):
        path.write_text("[]\n")
        assert main(["evaluate", str(run)]) == 1
        assert told in capsys.readouterr().err
        path.unlink()


def test_captions_that_clip_cuts_off_are_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    model = tiny_open_clip(tmp_path / "clip")  # it reads 16 tokens: 14 words, a start and an end
    run = run_of(tmp_path / "run", {3: 2})
    manifest = run / "validation/step-000003/validation.json"
    text = manifest.read_text()
    for words, lines in ((14, 0), (15, 1)):
        manifest.write_text(text.replace("a wave", " ".join(["wave"] * words)))
        caplog.clear()
        for _ in range(2):  # the second time the scores are read back
            assert main(["evaluate", str(run), "--clip", str(model), "--json"]) == 0
            row = json.loads(capsys.readouterr().out)["folders"][-1]
            assert row.get("cut_captions", 0) == lines
            assert row["metrics"]["clip_similarity"] is not None
        assert caplog.text.count("1 of 1 captions are longer than the model of --clip reads") == lines


WRONG_MODELS = {
    "--clip {0}/none": "is no folder with an open_clip model",
    "--clip {0}": "holds no open_clip_config.json",
    "--clip ViT-B-3:{0}/videos/a.mp4": "near: ViT-B-32",
    "--clip ViT-B-32:{0}/none.pth": "is no file with weights",
    "--lpips {0}/none.pth --reference {0}/videos": "--lpips='{0}/none.pth' could not be read",
}


def test_models_are_refused_before_any_library_is_loaded(tmp_path: Path) -> None:
    (tmp_path / "videos").mkdir()
    (tmp_path / "videos/a.mp4").touch()
    calls = [["evaluate", f"{tmp_path}/videos", *words.format(tmp_path).split()] for words in WRONG_MODELS]
    code = f"""
import sys
from reelweave.pipelines.cli import main
assert [main(call) for call in {calls}] == [2] * {len(calls)}
assert not {{"torch", "open_clip"}} & sys.modules.keys()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    lines = done.stderr.splitlines()
    for line, said in zip(lines, WRONG_MODELS.values(), strict=True):
        assert said.format(tmp_path) in line
