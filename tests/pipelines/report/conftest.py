"""A browser, and a curated dataset with clips of every state, hostile names and captions."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from reelweave.curate.config import CurateConfig
from reelweave.curate.run.curate import curate
from tests.browser import Browser, chromium
from tests.media import write_video

NASTY = (
    "<script>alert('x')</script><img src=http://example.org/x.png onerror=alert(1)> \"'& \u2028\u202e 你好 🎈"
)
LONG = "a very long caption " * 500


@pytest.fixture(scope="session")
def curated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two kept clips, a duplicate, a clip below a threshold, a film that is damaged; read only."""
    folder = tmp_path_factory.mktemp("raw")
    write_video(folder / "a.mp4", (40,), size=(320, 192))
    (folder / "a.txt").write_text(NASTY)
    shutil.copy(folder / "a.mp4", folder / "the copy of a.mp4")
    write_video(folder / "b <b onclick=x>& 'c'.mp4", (40,), size=(192, 320), first_scene=5)
    (folder / "b <b onclick=x>& 'c'.txt").write_text(LONG)
    write_video(folder / "small.mp4", (40,), size=(160, 96), first_scene=9)
    (folder / "<u>empty.mp4").touch()
    out = folder / "dataset"
    values = {
        "run": {"runner": "sequential", "isolate": False},
        "spans": {"min_clip_s": 1},
        "filters": {"min_short_side_px": 100},
    }
    curate([str(folder)], str(out), CurateConfig.model_validate(values))
    return out


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    """The system's Chromium; it ends with this folder, since it keeps an event loop in this thread while it runs."""
    where = chromium()
    if where is None:
        pytest.skip(
            "no Chromium on this machine: pages of reports were not opened (Debian: apt install chromium)"
        )
    with Browser(where) as started:
        yield started
