"""What the README tells people to type works as it stands there."""

import json
import re
import shutil
import textwrap
from pathlib import Path

import pytest

from reelweave.curate.config import CurateConfig
from reelweave.curate.run.curate import curate
from reelweave.loader.dataset import open_dataset
from reelweave.pipelines.cli import COMMANDS
from tests.bench.docs_commands import BUCKETS, TRAIN, words_of, written
from tests.commands import reelweave
from tests.loader.stream_clips import make_sample, write
from tests.media import write_video
from tests.printed import printed
from tests.s3server import make_bucket, s3_client, s3_server
from tests.thorough import thorough

ROOT = Path(__file__).parent.parent
PAGES = [
    ROOT / "README.md",
    ROOT / "CHANGELOG.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "SECURITY.md",
    ROOT / "examples" / "README.md",
    *sorted((ROOT / "docs").rglob("*.md")),
]


class EnoughBatches(Exception):
    pass


def test_the_ten_lines_stream_a_dataset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(3):
        write_video(tmp_path / f"raw/{number}.mp4", (55,), size=(320, 192), first_scene=number)
    config = CurateConfig.model_validate({"run": {"runner": "sequential"}})
    curate([str(tmp_path / "raw")], str(tmp_path / "my-dataset"), config)
    text = (ROOT / "README.md").read_text()
    section = text.split("### Stream it into your own training loop")[1].split("\nThe loader")[0]
    lines = [line for line in section.splitlines() if line.startswith("    ")]
    assert len([line for line in lines if line.strip()]) <= 10
    seen = []

    def my_model(video_BCTHW, captions):
        seen.append((tuple(video_BCTHW.shape), len(captions)))
        if len(seen) == 4:
            raise EnoughBatches
        return video_BCTHW.float().mean(dim=(1, 2, 3, 4))

    monkeypatch.chdir(tmp_path)
    with pytest.raises(EnoughBatches):
        exec(textwrap.dedent("\n".join(lines)), {"my_model": my_model})
    assert all(shape[1:] == (3, 33, 176, 320) and shape[0] == captions for shape, captions in seen)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_and_commands_exist(page: Path) -> None:
    text = page.read_text()
    for target in re.findall(r"\]\(([^)#\s]+)\)", text):
        assert (page.parent / target).exists(), f"{page.name} links to {target}"
    for command in re.findall(r"(?:^    |`)(?:\S*/)?reelweave (\w+)", text, re.MULTILINE):
        assert command in COMMANDS, f"{page.name} names the command {command}"


@thorough
def test_commands_run_as_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In this process, with things of our own for the reader's, and no Ray.

    The demo has tests of its own (tests/pipelines/test_demo.py), and so has torchrun.
    """
    monkeypatch.chdir(tmp_path)
    size = (320, 192)
    for number, name in enumerate(("raw/one", "raw/bad", "clip")):
        write_video(tmp_path / f"{name}.mp4", (55,), size=size, first_scene=number)
        (tmp_path / f"{name}.txt").write_text("a red kite over the sea")
    clip = (tmp_path / "clip.mp4").read_bytes()
    write(tmp_path / "many", [make_sample(f"key{number:04}", clip, 55, size) for number in range(1000)])
    written(tmp_path / "train.yaml", TRAIN)
    written(tmp_path / "my-buckets.yaml", {"buckets": BUCKETS})
    commands = [command for command in printed(ROOT / "README.md") if command.words[0] != "demo"]
    commands.sort(key=lambda command: command.words[0] != "train")  # others read what it leaves
    ran = set()
    with s3_server() as endpoint:
        monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
        make_bucket(endpoint, "bucket")
        for command in commands:
            words = words_of(command, tmp_path)
            alone = ["--set", "run.runner=sequential", "--set", "run.isolate=false"]
            done = reelweave(*words, *(alone if words[0] == "curate" else []))
            assert done.returncode == 0, (str(command), done.stderr)
            ran.add(words[0])
            if words[0] == "train":
                shutil.copytree("runs/first", "runs/second")
            if words[0] == "curate" and not (tmp_path / "ds-keys.json").exists():
                keys = open_dataset("my-dataset").index.column("key").to_pylist()
                (tmp_path / "ds-keys.json").write_text(json.dumps(keys))
                shutil.copytree("my-dataset", "other-dataset")
                [tar] = (tmp_path / "my-dataset" / "shards").glob("*.tar")
                s3_client(endpoint).put_object(
                    Bucket="bucket", Key=f"their-tars/{tar.name}", Body=tar.read_bytes()
                )
    assert ran >= {
        "curate",
        "search",
        "show",
        "remove",
        "verify",
        "state",
        "index",
        "report",
        "plan",
        "config",
    }
    assert ran >= {"train", "sample", "export"}
