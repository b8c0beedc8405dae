"""`reelweave sample` from given first frames, with a cache of blocks behind its gate, and within memory."""

import json
from pathlib import Path

import pytest
from PIL import Image

from reelweave.pipelines.cli import main
from reelweave.pipelines.evaluation.videos import read_video
from reelweave.train.config.first_frames import FirstFramesConfig
from reelweave.train.loop.trainer import Trainer
from tests.thorough import thorough
from tests.train.clips import ClipStream, tiny_config

SIZE = ["--size", "16x24", "--frames", "5", "--steps", "6", "--seed", "3"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of two blocks that was given first frames."""
    out = tmp_path_factory.mktemp("run")
    config = tiny_config(2, every_steps=2)
    model = config.model.model_copy(update={"layers": 2})
    changes = {"model": model, "first_frames": FirstFramesConfig(dropout=0.5)}
    Trainer(config.model_copy(update=changes), ClipStream(), out).run()
    return out


def ends(capsys: pytest.CaptureFixture[str], trained: Path, *words: str) -> tuple[int, dict, str]:
    status = main(["sample", "--checkpoint", str(trained), *SIZE, "--json", *words])
    said = capsys.readouterr()
    return status, json.loads(said.out or "{}"), said.err


def picture(path: Path, colour: tuple[int, int, int]) -> Path:
    Image.new("RGB", (60, 40), colour).save(path)
    return path


def test_a_picture_decides_the_video_and_stands_in_the_record(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    red, _ = (
        picture(tmp_path / f"{name}.png", rgb) for name, rgb in (("r", (200, 0, 0)), ("b", (0, 0, 200)))
    )
    prompts = tmp_path / "prompts.jsonl"
    lines = [
        {"prompt": "a wave", "seed": 1},
        {"prompt": "a wave", "seed": 1, "image": "r.png"},
        {"prompt": "a wave", "seed": 1, "image": "b.png"},
    ]
    prompts.write_text("\n".join(json.dumps(line) for line in lines))
    out = tmp_path / "out"
    status, _, err = ends(capsys, trained, "--prompts", str(prompts), "--out", str(out))
    assert status == 0, err
    made = {record["sha256"] for record in map(json.loads, (out / "manifest.jsonl").read_text().splitlines())}
    assert len(made) == 3
    # The file is part of what a video is of: another picture under its name is another video.
    picture(red, (0, 200, 0))
    status, _, err = ends(capsys, trained, "--prompts", str(prompts), "--out", str(out))
    assert status == 2
    assert "another image" in err


def test_a_video_of_ours_can_be_gone_on_with(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, again = tmp_path / "first.mp4", tmp_path / "again.mp4"
    common = ("--prompt", "a wave", "--guidance", "2", "--image-guidance", "1.5")
    assert ends(capsys, trained, "--prompt", "a wave", "--out", str(first))[0] == 0
    status, said, err = ends(capsys, trained, *common, "--image", str(first), "--out", str(again))
    assert status == 0, err
    assert said["image_guidance"] == 1.5
    assert read_video(again)[0].shape == (3, 5, 16, 24)
    status, _, err = ends(
        capsys,
        trained,
        *common,
        "--image",
        str(first),
        "--image-frames",
        "3",
        "--out",
        str(again),
    )
    assert status == 2
    assert "give fewer" in err


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--image", __file__], "--image"),
        (["--image-frames", "0"], "--image-frames 0"),
        (["--image-guidance", "2"], "needs first frames"),
        (["--cache-threshold", "0.1"], "belong to --cache"),
        (["--cache", "first_block", "--cache-threshold", "-1"], "--cache-threshold"),
    ],
)
def test_a_wrong_option_is_said_in_words(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], expected: str
) -> None:
    out = tmp_path / "out.mp4"
    status, _, err = ends(capsys, trained, "--prompt", "a wave", "--out", str(out), *words)
    assert status == 2
    assert expected in err
    assert "Traceback" not in err
    assert not out.exists()


@pytest.mark.parametrize("kind", ["first_block", "teacache"])
def test_a_cache_reports_its_hits_and_its_quality(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    out = tmp_path / "out.mp4"
    words = ("--prompt", "a wave", "--out", str(out), "--cache", kind, "--cache-threshold")
    status, said, err = ends(capsys, trained, *words, "5", "--cache-min-psnr", "0")
    assert status == 0, err
    quality = said["cache_quality"]
    assert quality["evaluations"] == 12  # two passes of six steps
    assert 0 < quality["hits"] <= 10
    assert quality["psnr_db"] > 0
    out.unlink()
    status, _, err = ends(capsys, trained, *words, "5", "--cache-min-psnr", "99.5")
    assert status == 1
    assert "lower its threshold" in err
    assert not out.exists()
    status, _, err = ends(capsys, trained, *words, "0")
    assert status == 1
    assert "skipped nothing" in err


@thorough
def test_a_decode_keeps_its_memory_or_is_refused_before_the_first_step(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole, tiled = tmp_path / "whole.mp4", tmp_path / "tiled.mp4"
    large = ("--prompt", "a wave", "--size", "128x192", "--steps", "1")
    status, said, err = ends(capsys, trained, *large, "--decode-gib", "1", "--out", str(whole))
    assert status == 0, err
    [plan] = said["decode"]
    assert plan["tiles"] == 1
    less = 0.93 * plan["peak_gib"]
    status, said, err = ends(capsys, trained, *large, "--decode-gib", str(less), "--out", str(tiled))
    assert status == 0, err
    [plan] = said["decode"]
    assert plan["tiles"] > 1
    assert plan["peak_gib"] <= less
    # Our tokenizer is exact in any tiles.
    assert (read_video(whole)[0] == read_video(tiled)[0]).all()
    refused = tmp_path / "refused.mp4"
    status, _, err = ends(capsys, trained, *large, "--decode-gib", "0.0001", "--out", str(refused))
    assert status == 2
    assert "smallest tiles" in err
    assert not refused.exists()


def test_a_prompt_that_is_cut_off_is_said(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    long = "a wave " * 5
    status, _, err = ends(capsys, trained, "--prompt", long, "--out", str(tmp_path / "long.mp4"))
    assert status == 0
    assert "1 of 1 captions have more than text.max_text_tokens = 8 tokens; the rest is cut off" in err
    status, _, err = ends(capsys, trained, "--prompt", "a wave", "--out", str(tmp_path / "short.mp4"))
    assert status == 0
    assert "cut off" not in err


@pytest.mark.parametrize("option", [("--negative-prompt", "blurred"), ("--rescale", "0.7")])
def test_what_guidance_of_one_would_pass_over_is_refused(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], option: tuple[str, str]
) -> None:
    out = tmp_path / "out.mp4"
    status, _, err = ends(capsys, trained, "--prompt", "a", "--guidance", "1", *option, "--out", str(out))
    assert status == 2
    assert f"guidance=1 runs the caption alone, and {option[0][2:].replace('-', '_')} would do nothing" in err


class PlannedClips(ClipStream):
    """A stream whose last stage has shapes of its own."""

    dataset_names = ("clips",)
    plan_keys = {  # noqa: RUF012 - as a stream has them
        "buckets": {"frames": [1, 5], "sizes": [[16, 24], [25, 33], [24, 16]]},
        "curriculum": [{"until_step": 1}, {"until_step": None, "frames": [1, 9, 5], "sizes": None}],
    }


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("streamed") / "run"
    Trainer(tiny_config(1), PlannedClips(), out).run()
    return out


def test_what_is_left_out_is_the_runs(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["sample", "--checkpoint", str(run), "--prompt", "a wave", "--steps", "1", "--json"]
    assert main([*words, "--out", str(tmp_path / "x.mp4")]) == 0
    said = capsys.readouterr()
    values = json.loads(said.out)
    # An MP4 has no odd sizes, and of equal areas the first counts.
    assert (values["height"], values["width"], values["frames"], values["guidance"]) == (16, 24, 9, 5.0)
    assert "--size 16x24 --frames 9, the largest of its buckets" in " ".join(said.err.split())
    assert main([*words, "--out", str(tmp_path / "y.mp4"), "--size", "24x16"]) == 0
    said = capsys.readouterr()
    assert json.loads(said.out)["height"] == 24
    assert "step-000001: --frames 9, the largest of its buckets" in " ".join(said.err.split())


def test_a_run_without_a_stream_needs_a_size(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sample", "--checkpoint", str(trained), "--prompt", "a wave"]) == 2
    assert "give --size, such as --size 64x112: " in capsys.readouterr().err


def test_a_run_that_knows_no_empty_caption_is_sampled_without_guidance(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tiny_config(1)
    objective = config.objective.model_copy(update={"caption_dropout": 0.0})
    Trainer(config.model_copy(update={"objective": objective}), ClipStream(), tmp_path / "run").run()
    words = ["sample", "--checkpoint", str(tmp_path / "run"), *SIZE, "--prompt", "a wave", "--json"]
    assert main([*words, "--out", str(tmp_path / "x.mp4")]) == 0
    said = capsys.readouterr()
    assert json.loads(said.out)["guidance"] == 1.0
    assert "--guidance 1, since it was trained with objective.caption_dropout=0" in " ".join(said.err.split())
    assert main([*words, "--out", str(tmp_path / "x.mp4"), "--guidance", "3"]) == 2
    assert "sample with guidance=1" in capsys.readouterr().err


def test_any_other_name_than_a_video_is_a_folder(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, video, prompts = tmp_path / "videos", tmp_path / "x.mp4", tmp_path / "prompts.txt"
    status, said, err = ends(capsys, trained, "--prompt", "a wave", "--out", str(folder))
    assert (status, said["made"]) == (0, 1), err
    assert ends(capsys, trained, "--prompt", "a wave", "--out", str(video))[0] == 0
    assert (folder / "000000.mp4").read_bytes() == video.read_bytes()
    assert ends(capsys, trained, "--prompt", "a wave", "--out", str(folder))[1]["made"] == 0
    prompts.write_text("a wave\n")
    status, _, err = ends(capsys, trained, "--prompts", str(prompts), "--out", str(video))
    assert status == 2
    assert "--prompts makes a folder of videos" in err
