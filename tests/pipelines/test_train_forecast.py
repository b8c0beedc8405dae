"""`reelweave train --dry-run`: samples, steps, memory and time before anything is loaded."""

import json
from pathlib import Path

import pytest
import yaml

from reelweave.pipelines.cli import main
from tests.loader.stream_clips import make_sample, write
from tests.media import write_video
from tests.train.clips import tiny_config


@pytest.fixture(scope="module")
def run_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two shapes, and of one clip that fits none."""
    folder = tmp_path_factory.mktemp("forecast")
    clip = write_video(folder / "clip.mp4", (9,), size=(48, 32)).read_bytes()
    samples = [make_sample(f"key{n}", clip, 9 if n < 8 else 1, (48, 32)) for n in range(12)]
    write(folder / "clips", [*samples, make_sample("small", clip, 9, (16, 8))])
    train = tiny_config(20)
    buckets = {
        "frames": [1, 9], "sizes": [[32, 48]], "compression": train.compression.model_dump(), "max_text_tokens": 9,
        "memory_tokens": 300,
    }  # fmt: skip
    values = {
        "dataset": str(folder / "clips"),
        "out": str(folder / "run"),
        "stream": {"buckets": buckets, "microbatches": 2},
        "train": train.model_dump(mode="json"),
    }
    (folder / "train.yaml").write_text(yaml.safe_dump(values))
    return folder / "train.yaml"


def answer(run_file: Path, capsys, *words: str, status: int = 0) -> dict:
    assert main(["train", "--config", str(run_file), "--dry-run", "--json", *words]) == status
    return json.loads(capsys.readouterr().out)


def test_it_foretells_what_the_run_then_does(run_file: Path, capsys) -> None:
    forecast = answer(run_file, capsys, "--tflops", "0.5")
    assert not (run_file.parent / "run").exists()
    assert (forecast["samples"], forecast["unassigned"]) == (12, 1)
    assert [(shape["shape"], shape["samples"]) for shape in forecast["shapes"]] == [
        ("9x32x48", 8),
        ("1x32x48", 4),
    ]
    assert forecast["hours"] == pytest.approx(20 * forecast["step_s"] / 3600)
    assert forecast["step_s"] == pytest.approx(forecast["tflop_per_step"] / 0.5)
    # An epoch of the run: its samples, its steps, its work.
    steps = forecast["steps_per_epoch"]
    epoch = sum(shape["samples"] * shape["tflop"] for shape in forecast["shapes"])
    assert forecast["tflop_per_step"] * steps == pytest.approx(epoch)
    changes = [f"train.schedule.total_steps={steps}", "train.log.every_steps=1"]
    assert (
        main(["train", "--config", str(run_file), *(word for key in changes for word in ("--set", key))]) == 0
    )
    lines = [json.loads(line) for line in (run_file.parent / "run/metrics.jsonl").read_text().splitlines()]
    assert sum(line["samples"] for line in lines if "samples" in line) == 12


def test_the_memory_is_that_of_the_shapes_alone(run_file: Path, capsys) -> None:
    forecast = answer(run_file, capsys)
    assert forecast["hours"] is None
    assert main(["bench", "shapes", "--predict", "--config", str(run_file), "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["shapes"]
    peaks = {f"{row['frames']}x{row['height']}x{row['width']}": row["peak_gib"] for row in rows}
    assert {shape["shape"]: shape["peak_gib"] for shape in forecast["shapes"]} == pytest.approx(peaks)
    assert answer(run_file, capsys, "--memory-gib", "100")["fits"] is True
    assert answer(run_file, capsys, "--memory-gib", "0.0001", status=1)["fits"] is False
    assert main(["train", "--config", str(run_file), "--dry-run", "--memory-gib", "0.0001"]) == 1
    text = " ".join(capsys.readouterr().out.split())
    assert "does not fit 0.0001 GiB" in text
    assert "to fit: shard weights" in text


def test_what_an_epoch_draws_is_counted(run_file: Path, capsys) -> None:
    """Not what the dataset holds: a selection draws less of it, and stages come one after the other."""
    forecast = answer(run_file, capsys, "--set", "stream.where=frames > 1 and key != 'key0'")
    assert (forecast["samples"], forecast["first_stage"]) == (7, False)
    assert [shape["samples"] for shape in forecast["shapes"]] == [7]
    stages = "stream.curriculum=[{until_step: 3, frames: [1]}, {frames: [9]}]"
    assert answer(run_file, capsys, "--set", stages)["first_stage"]
    assert main(["train", "--config", str(run_file), "--dry-run", "--set", stages]) == 0
    assert "of the first stage of stream.curriculum" in capsys.readouterr().out


def test_options_of_the_dry_run_need_it(run_file: Path, capsys) -> None:
    for words, reason in (
        (["--ranks", "2"], "--ranks belongs to --dry-run"),
        (["--dry-run", "--tflops", "0"], "--tflops 0 must be above 0"),
        (["--dry-run", "--ranks", "3", "--set", "train.parallel={ring: 2}"], "must divide the 3 ranks"),
    ):
        assert main(["train", "--config", str(run_file), *words]) == 2
        assert reason in " ".join(capsys.readouterr().err.split())
