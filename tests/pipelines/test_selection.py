"""One selection in the commands: report, plan and train draw the same samples, and say how many."""

import json
from pathlib import Path

import pytest
import yaml

from reelweave.pipelines.cli import main
from reelweave.train.config.run import TrainConfig
from tests.loader.stream_clips import config, make_sample, write
from tests.media import write_video
from tests.train.clips import tiny_config

SHAPE = (9, (24, 16))


@pytest.fixture
def clips(tmp_path: Path) -> Path:
    """Twelve clips of six films; the even ones have a licence."""
    clip = write_video(tmp_path / "clip.mp4", (SHAPE[0],), size=SHAPE[1]).read_bytes()
    samples = [make_sample(f"key{number:02}", clip, *SHAPE) for number in range(12)]
    for number, sample in enumerate(samples):
        sample.row["source"] = f"film{number // 2}"
        sample.row["scores"] = {"aesthetic": float(number)}
        sample.row["attributes"] = {} if number % 2 else {"licence": "cc0"}
    return write(tmp_path / "clips", samples)


def run_values(clips: Path, train: TrainConfig, **stream: object) -> dict[str, object]:
    buckets = {
        "frames": [5], "sizes": [[16, 24]], "compression": train.compression.model_dump(),
        "max_text_tokens": 9, "memory_tokens": 300,
    }  # fmt: skip
    return {
        "dataset": str(clips),
        "out": str(clips.parent / "run"),
        "stream": {"buckets": buckets, "workers": 1, **stream},
        "train": train.model_dump(mode="json"),
    }


def test_a_report_counts_a_selection(clips: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "buckets.yaml"
    buckets = config().buckets.model_copy(update={"sizes": ((16, 24),)}).model_dump(mode="json")
    file.write_text(yaml.safe_dump({"buckets": buckets}))
    command = ["report", str(clips), "--config", str(file)]
    assert main([*command, "--json"]) == 0
    everything = json.loads(capsys.readouterr().out)
    assert (everything["samples"], everything["selection"]) == (12, "")
    assert main([*command, "--set", "where=licence == 'cc0' and aesthetic < 7", "--json"]) == 0
    chosen = json.loads(capsys.readouterr().out)
    assert (chosen["samples"], sum(bucket["samples"] for bucket in chosen["buckets"])) == (4, 4)
    assert chosen["selection"].startswith(
        f"4 of 12 samples of {clips} are drawn (33.33%): where licence == 'cc0'"
    )
    assert chosen["totals"]["samples"] == 12
    assert [(field["name"], field["samples"], field["common"]) for field in chosen["fields"]] == [
        ("licence", 6, [["cc0", 6]])  # scores of a curated dataset have charts
    ]
    page = (clips / "report/index.html").read_text()
    assert "4 of 12 samples" in page
    assert "licence == &#39;cc0&#39; and aesthetic &lt; 7" in page
    # The next report counts all samples again: that of an update must not fail by a condition.
    assert main(["report", str(clips)]) == 0
    assert "buckets of 12 of 12 samples" in capsys.readouterr().out
    assert main([*command, "--set", "quota={by: source, samples: 1}"]) == 0
    assert "6 of 12 samples" in capsys.readouterr().out
    assert main([*command, "--set", "where=aesthetik > 3"]) == 2
    assert "no sample has aesthetik; did you mean aesthetic?" in capsys.readouterr().err
    assert main([*command, "--set", "where=aesthetic >"]) == 2
    assert "where='aesthetic >' at character 12" in " ".join(capsys.readouterr().err.split())


def test_a_plan_counts_a_selection(clips: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "buckets.yaml"
    buckets = config().buckets.model_copy(update={"sizes": ((16, 24),)}).model_dump(mode="json")
    file.write_text(yaml.safe_dump({"buckets": buckets}))
    plan = [
        "plan",
        str(clips),
        "--config",
        str(file),
        "--world-size",
        "2",
        "--microbatches",
        "1",
        "--steps",
        "1",
    ]
    out = tmp_path / "plan.parquet"
    assert main([*plan, "--set", "where=aesthetic >= 2", "--plan-out", str(out)]) == 0
    assert "10 of 12 samples of" in capsys.readouterr().err


def test_a_run_trains_on_a_selection_and_measures_the_other_part(
    clips: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    train = tiny_config(2)
    values = run_values(clips, train, where="aesthetic >= 2", split={"by": "source", "share": 0.4})
    values["held_out"] = {"every_steps": 1, "steps": 1}
    file = tmp_path / "train.yaml"
    file.write_text(yaml.safe_dump(values))
    assert main(["train", "--config", str(file)]) == 0
    losses = [json.loads(line) for line in (tmp_path / "run/losses.jsonl").read_text().splitlines()]
    assert "held_out" in {line["of"] for line in losses}
    said = " ".join(record.getMessage() for record in caplog.records) + capsys.readouterr().err
    assert "where aesthetic >= 2; train of a split by source (0.4 in val)" in said
    assert "where aesthetic >= 2; val of a split by source (0.4 in val)" in said
    # Another selection is refused by its name.
    values["train"] = tiny_config(3).model_dump(mode="json")
    values["stream"] = {**values["stream"], "where": "aesthetic >= 4"}  # type: ignore[dict-item]
    file.write_text(yaml.safe_dump(values))
    assert main(["train", "--config", str(file)]) == 2
    refused = " ".join(capsys.readouterr().err.split())
    assert "the state was saved with where aesthetic >= 2; train of a split by source" in refused
    assert "and here is where aesthetic >= 4; train of a split" in refused


def test_held_out_clips_need_a_dataset_or_a_split(
    clips: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    values = run_values(clips, tiny_config(1)) | {"held_out": {"every_steps": 1}}
    (tmp_path / "train.yaml").write_text(yaml.safe_dump(values))
    assert main(["train", "--config", str(tmp_path / "train.yaml")]) == 2
    assert "held_out needs a dataset of other clips, or stream.split" in " ".join(
        capsys.readouterr().err.split()
    )


def test_what_stands_on_both_sides_of_a_split_is_measured(
    clips: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["report", str(clips), "--set", "max_clips=0"]
    assert main([*command, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["leakage"] is None
    # By the source no film is on both sides, but all clips are the same film's bytes.
    assert main([*command, "--set", "split={by: source, share: 0.4}", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)["leakage"]
    assert told["train"] + told["val"] == 12
    by_source, copies = told["leaks"]
    assert (by_source["by"], by_source["groups"], by_source["both"]) == ("source", 6, 0)
    assert (copies["by"], copies["groups"], copies["both"], copies["val_samples"]) == (
        "sha256",
        1,
        1,
        told["val"],
    )
    # A split by clip tears films apart.
    by_key = ["--set", "split={by: key, share: 0.5, seed: 1}"]
    assert main([*command, *by_key, "--json"]) == 0
    keyed = json.loads(capsys.readouterr().out)["leakage"]
    [of_films] = [leak for leak in keyed["leaks"] if leak["by"] == "source"]
    assert 0 < of_films["both"] <= 6
    assert len(of_films["examples"]) == min(3, of_films["both"])
    assert of_films["val_samples"] >= of_films["both"]
    assert main([*command, *by_key]) == 0
    printed = capsys.readouterr().out
    assert f"split by key: {of_films['both']} of 6 groups by source are on both sides" in printed
    assert "are copies of samples in train, byte for byte" in printed
    page = (clips / "report/index.html").read_text()
    assert '<table id="leakage">' in page
    assert main([*command, *by_key, "--set", "groups=[movie]"]) == 0
    assert "no sample has movie, so its groups are not known" in capsys.readouterr().out
