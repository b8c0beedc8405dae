"""Names and arguments that are not UTF-8: refused in words, or worked with by their URI."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.commands import reelweave
from tests.media import write_video

LATIN1 = os.fsdecode(b"caf\xe9")
CALLS = [
    ["show", "set", LATIN1],
    ["search", "set", "--like", LATIN1],
    ["remove", "set", "--key", LATIN1, "--reason", "x"],
    ["remove", "set", "--source", "a.mp4", "--reason", LATIN1],
    ["sample", "--checkpoint", "run", "--prompt", LATIN1, "--size", "16x16", "--frames", "1"],
    ["curate", f"raw/{LATIN1}.mp4", "--out", "set"],
]


@pytest.mark.parametrize("words", CALLS, ids=["show", "search", "key", "reason", "prompt", "input"])
def test_an_argument_that_is_not_utf_8_is_refused_in_words(words: list[str]) -> None:
    done = reelweave(*words)
    assert done.returncode == 2
    assert r"caf\udce9" in done.stderr
    assert f"file://{Path.cwd()}/" in done.stderr
    assert "caf%E9" in done.stderr


def test_a_terminal_of_ascii_is_told_which_locale_to_set() -> None:
    environment = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    words = [sys.executable, "-m", "reelweave", "show", "set", "Ünï"]
    done = subprocess.run(words, env=environment, capture_output=True, check=False, timeout=100)
    assert done.returncode == 2
    assert b"LANG=C.UTF-8" in done.stderr
    assert b"Traceback" not in done.stderr


def test_a_folder_whose_name_is_not_utf_8_is_one_like_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / LATIN1
    (folder / "raw").mkdir(parents=True)
    write_video(folder / "raw/a.mp4", (60,), size=(96, 64))
    monkeypatch.chdir(folder)
    changes = ("run.runner=sequential", "run.isolate=false", "filters.min_short_side_px=0")
    done = reelweave(
        "curate", "raw", "--out", "set", *(word for change in changes for word in ("--set", change))
    )
    assert done.returncode == 0, done.stderr
    uri = f"file://{tmp_path}/caf%E9/set"
    assert f"report: {uri}/report/index.html" in done.stdout
    assert uri in (folder / "set/report/index.html").read_text()
    for command in (["verify", uri], ["report", "set", "--json"], ["search", uri, "--like", "raw/a.mp4"]):
        again = reelweave(*command)
        assert again.returncode == 0, again.stderr
    removed = reelweave("remove", uri, "--source", "raw/a.mp4", "--reason", "x")
    assert removed.returncode == 0, removed.stderr
    assert reelweave("verify", "set").returncode == 0
