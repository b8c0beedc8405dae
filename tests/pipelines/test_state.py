"""`reelweave state`: what a person learns of a saved state, and what is refused."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from reelweave.loader.dataset import Dataset, open_dataset
from reelweave.loader.stream.video_stream import VideoStream
from reelweave.pipelines.cli import main
from reelweave.train.checkpoint.state import CheckpointState
from reelweave.train.config.run import TrainConfig
from tests.loader.stream_clips import SAMPLES, SHAPES, config, make_sample, write
from tests.media import write_video

COMPRESSION = TrainConfig().compression


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    folder = tmp_path_factory.mktemp("clips")
    clips = [
        write_video(folder / f"{number}.mp4", (frames,), size=size).read_bytes()
        for number, (frames, size) in enumerate(SHAPES)
    ]
    return open_dataset(
        write(
            folder / "dataset",
            [make_sample(f"key{n:02}", clips[n % 5], *SHAPES[n % 5]) for n in range(SAMPLES)],
        )
    )


@pytest.fixture(scope="module")
def run_config(dataset: Dataset, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a training run over the dataset."""
    folder = tmp_path_factory.mktemp("run")
    stream = config(microbatches=2, epochs=None, denominator="epoch").model_dump(mode="json")
    stream["buckets"] |= {
        "compression": COMPRESSION.model_dump(),
        "max_text_tokens": 65,
        "memory_tokens": 3000,
    }
    values = {"dataset": dataset.storage.root, "out": str(folder / "out"), "stream": stream}
    path = folder / "train.yaml"
    path.write_text(yaml.safe_dump(values))
    return path


@pytest.fixture
def saved(dataset: Dataset, run_config: Path, tmp_path: Path) -> Path:
    """The state behind one step of that run."""
    from reelweave.pipelines.configuration.config import resolve
    from reelweave.pipelines.configuration.train_config import TrainRunConfig

    stream = VideoStream(dataset, resolve(TrainRunConfig, run_config, []).stream)
    for micro in stream:
        if micro.ends_step:
            break
    path = tmp_path / "state.json"
    path.write_text(json.dumps(stream.state_dict()))
    return path


def as_json(capsys: pytest.CaptureFixture[str], *arguments: object, status: int = 0) -> dict[str, Any]:
    assert main(["state", *map(str, arguments), "--json"]) == status
    return json.loads(capsys.readouterr().out)


def test_a_state_is_told_in_numbers(
    saved: Path, dataset: Dataset, capsys: pytest.CaptureFixture[str]
) -> None:
    told = as_json(capsys, "inspect", saved)
    assert (told["step"], told["epoch"], told["seed"], told["dataset"]) == (1, 0, 3, dataset.fingerprint)
    assert told["bytes"] == saved.stat().st_size
    [part] = told["parts"]
    assert part == {
        "ranks": 1,
        "microbatches": 2,
        "policy": "balanced",
        "regime": "step",
        "lookahead": 4,
        "revision": None,
        "shuffle": {"order": "sorted", "run": 1},
        "cost": None,
        "stage": 0,
        "steps": 1,
    }
    assert main(["state", "inspect", str(saved)]) == 0
    shown = capsys.readouterr().out
    assert dataset.fingerprint in shown
    assert "1 optimizer step done, in epoch 0" in shown


def test_with_the_run_it_tells_what_is_left(
    saved: Path, run_config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told = as_json(capsys, "inspect", saved, "--config", run_config)
    assert told["fits"] is True
    assert 0 < told["samples_done"] < SAMPLES
    assert told["samples_done"] + told["samples_left"] == SAMPLES
    assert told["steps_left"] > 0


@pytest.mark.parametrize(
    ("key", "words"), [("stream.seed=9", "seed was 3"), ("stream.buckets.max_batch=1", "config was")]
)
def test_a_state_that_does_not_fit_exits_with_1_and_says_why(
    saved: Path, run_config: Path, capsys: pytest.CaptureFixture[str], key: str, words: str
) -> None:
    told = as_json(capsys, "inspect", saved, "--config", run_config, "--set", key, status=1)
    assert told["fits"] is False
    assert words in told["why_not"]


def test_the_dataset_may_be_another_than_the_configurations(
    saved: Path, run_config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    clip = write_video(tmp_path / "a.mp4", (9,), size=(80, 64)).read_bytes()
    other = write(tmp_path / "s: other", [make_sample(f"other{n}", clip, 9, (80, 64)) for n in range(4)])
    told = as_json(capsys, "inspect", saved, "--config", run_config, "--dataset", other, status=1)
    assert "dataset was" in told["why_not"]


def test_a_checkpoint_is_read_as_folder_and_as_file(
    saved: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told = as_json(capsys, "inspect", saved)
    state = CheckpointState(step=1, stream=json.loads(saved.read_text()), config={})
    folder = tmp_path / "step-000001"
    folder.mkdir()
    (folder / "state.json").write_bytes(state.encode())
    assert as_json(capsys, "inspect", folder) == told
    assert as_json(capsys, "inspect", folder / "state.json") == told


@pytest.mark.parametrize("where", [".", "checkpoints"])
def test_a_run_stands_for_its_newest_checkpoint(
    saved: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], where: str
) -> None:
    run = tmp_path / "run"
    run.mkdir()
    assert main(["state", "inspect", str(run)]) == 2
    assert "holds no checkpoint" in capsys.readouterr().err
    stream = json.loads(saved.read_text())
    for step in (1, 2):
        state = CheckpointState(step=step, stream=stream | {"step": step}, config={})
        folder = run / "checkpoints" / f"step-{step:06}"
        folder.mkdir(parents=True)
        (folder / "state.json").write_bytes(state.encode())
    assert as_json(capsys, "inspect", run / where)["step"] == 2
    assert as_json(capsys, "inspect", (run / where).as_uri())["step"] == 2
    assert main(["state", "inspect", str(run / where)]) == 0
    assert f"{folder}/state.json: " in capsys.readouterr().out


def test_diff_says_which_is_ahead(saved: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    values = json.loads(saved.read_text())
    later = tmp_path / "later.json"
    later.write_text(json.dumps({**values, "step": 5, "parts": [[0, 1, 2, 5]]}))
    told = as_json(capsys, "diff", saved, later)
    assert (told["relation"], told["same_plan"], told["steps_ahead"]) == ("behind", True, -4)
    assert [different["field"] for different in told["differences"]] == ["step", "parts.0.steps"]
    assert main(["state", "diff", str(saved), str(later)]) == 0
    assert "B is ahead by 4 steps" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "cannot be read"),
        (b"\x00\xff not", "holds no state: it is no JSON"),
        (b"\x00\x00\x01 an MP4", "holds no state: it is no JSON: it is no text"),
        (b"", "holds no state: it is empty"),
        (b"[" * 100_000, "is no JSON"),
        (b"[1]", "no JSON object"),
        (b'{"stream": 3}', "no JSON object"),
        (b'{"stream": {"version": 3}}', "version 3"),
        (b'{"position": 3}', "version: Field required"),
        (b" " * (2**24 + 1), "larger than 16 MiB"),
    ],
)
def test_what_is_no_state_is_refused_in_words(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes | None, words: str
) -> None:
    path = tmp_path / "wrong.json"
    if content is not None:
        path.write_bytes(content)
    assert main(["state", "inspect", str(path)]) == 2
    assert main(["state", "diff", str(path), str(path)]) == 2
    errors = capsys.readouterr().err
    assert errors.count(words) == 2
    assert errors.count(str(path)) == 2


def test_a_dataset_needs_the_configuration(saved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["state", "inspect", str(saved), "--dataset", "d"]) == 2
    assert "--config" in capsys.readouterr().err
