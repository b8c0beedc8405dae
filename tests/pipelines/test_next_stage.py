"""`reelweave train` with train.start_from, as a person types it: images, then videos of another size."""

import json
from pathlib import Path

import pytest
import yaml

from reelweave.pipelines.cli import main
from tests.loader.stream_clips import make_sample, write
from tests.media import write_video
from tests.train.clips import tiny_config
from tests.train.loop import worlds
from tests.train.ranks import Ranks
from tests.train.saved import newest


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on first frames alone, with its configuration and dataset beside it."""
    folder = tmp_path_factory.mktemp("stages")
    clip = write_video(folder / "clip.mp4", (9,), size=(48, 32)).read_bytes()
    write(folder / "clips", [make_sample(f"key{n}", clip, 9, (48, 32)) for n in range(8)])
    train = tiny_config(2)
    values = {
        "dataset": str(folder / "clips"),
        "out": str(folder / "images"),
        "stream": {
            "buckets": {
                "frames": [1], "sizes": [[16, 24]], "compression": train.compression.model_dump(),
                "max_text_tokens": 9, "memory_tokens": 300,
            },
            "workers": 1, "microbatches": 2,
        },
        "train": train.model_dump(mode="json"),
    }  # fmt: skip
    (folder / "train.yaml").write_text(yaml.safe_dump(values))
    assert main(["train", "--config", str(folder / "train.yaml")]) == 0
    return folder


def words(images: Path, *changes: str) -> list[str]:
    sets = [word for change in changes for word in ("--set", change)]
    return ["train", "--config", str(images / "train.yaml"), *sets]


VIDEOS = ("stream.buckets.frames=[5]", "stream.buckets.sizes=[[32, 48]]", "stream.buckets.memory_tokens=900")


def test_images_then_videos_on_two_ranks(images: Path, tmp_path: Path, ranks: Ranks, capsys) -> None:
    assert main(words(images, *VIDEOS, "train.schedule.total_steps=3")) == 2
    refused = capsys.readouterr().err
    assert "stream.buckets.frames was [1] and is [5] now" in refused
    way = f"or begin a next stage in another `out` with train.start_from={newest(images / 'images')}"
    assert way in " ".join(refused.split())
    changes = (
        *VIDEOS, f"out={tmp_path / 'videos'}", f"train.start_from={images / 'images'}", "train.objective={name: edm}",
        "train.optimizer.lr=0.0005", "train.parallel={dp_replicate: 1, dp_shard: rest}",
    )  # fmt: skip
    ended = ranks.run(worlds.command, 2, words(images, *changes), str(tmp_path / "videos"))
    assert ended.codes == [0, 0], ended.errors
    said = ended.errors[0]
    assert f"begins at step 0 with model weights of step 2 of {newest(images / 'images')} (sha256 " in said
    assert "other than there: train.objective.name was 'flow' and is 'edm'" in said
    # A third stage, which resumes without the second.
    third = words(images, f"out={tmp_path / 'third'}", f"train.start_from={tmp_path / 'videos'}")
    assert main(third) == 0
    ancestors = json.loads((newest(tmp_path / "third") / "state.json").read_text())["ancestors"]
    assert [Path(ancestor["name"]).parts[-3] for ancestor in ancestors] == ["videos", "images"]
    (tmp_path / "videos").rename(tmp_path / "elsewhere")
    assert main([*third, "--set", "train.schedule.total_steps=3"]) == 0
    assert newest(tmp_path / "third").name == "step-000003"
    capsys.readouterr()
    assert main(["state", "inspect", str(tmp_path / "third")]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert f"began with model weights of step 2 of {tmp_path / 'videos'}" in shown
    assert f"which began with model weights of step 2 of {images / 'images'}" in shown
    assert main(["report", str(tmp_path / "third"), "--out", str(tmp_path / "page")]) == 0
    page = next((tmp_path / "page").rglob("*.html")).read_text()
    assert "began with" in page
    assert "videos, step 2" in page
    assert ancestors[1]["sha256"] in page


def test_other_keys_of_a_stream_are_named_on_resume(images: Path, capsys) -> None:
    for change, text in (
        ("stream.seed=4", "seed was 0 when the state was saved and is 4 now (stream.seed)"),
        ("stream.where=frames < 99 and key != 'key0'", "stream.where"),
    ):
        assert main(words(images, change, "train.schedule.total_steps=3")) == 2
        said = " ".join(capsys.readouterr().err.split())
        print(said)
        assert text in said
        assert "train.start_from=" in said
