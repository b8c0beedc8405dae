"""What the README tells people to type works as it stands there."""

import re
import textwrap
from pathlib import Path

import pytest

from curate.config import CurateConfig
from curate.run.curate import curate
from pipelines.cli import COMMANDS
from tests.media import write_video

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
    for target in re.findall(r"\]\(([^)#]+)\)", text):
        assert (page.parent / target).exists(), f"{page.name} links to {target}"
    for command in re.findall(r"(?:^    |`)(?:\S*/)?reelweave (\w+)", text, re.MULTILINE):
        assert command in COMMANDS, f"{page.name} names the command {command}"
