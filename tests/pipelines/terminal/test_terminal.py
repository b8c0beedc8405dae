"""Nothing that others named or wrote reaches the terminal as anything but text."""

import json
import os
import pty
import re
import subprocess
import sys
from io import StringIO
from pathlib import Path

import pytest

from reelweave.loader.base.printable import printable, printable_json
from reelweave.pipelines.terminal.console import _PlainConsole, stderr, stdout, table
from reelweave.pipelines.terminal.noise import set_verbosity
from tests.commands import reelweave
from tests.media import write_video

ACTS = "\x1b]0;pwned\x07\x1b[2J\x1b[6n\x9b5n\u202e[red]\r\n\u2028b\x7f"
RICH = re.compile(r"\x1b\[(?:[\d;]*m|\d*A|2K|\?25[lh])")
"""Styles, the line above, a line erased, the cursor hidden and shown: what progress bars draw with."""


@pytest.fixture(scope="module")
def raw(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("raw") / f"in{ACTS}"
    write_video(folder / f"good{ACTS}.mp4", (20,), size=(96, 64), metadata={"title": f"A boat{ACTS} at noon"})
    (folder / f"bad{ACTS}.mp4").write_bytes(b"no film")
    (folder / f"good{ACTS}.txt").write_text(f"A red boat{ACTS} on the lake")
    return folder


def is_plain(text: str) -> bool:
    return text.replace("\n", "") == printable(text.replace("\n", ""))


@pytest.fixture(scope="module")
def shown(raw: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A dataset, and all that a terminal was sent while it was made."""
    out = tmp_path_factory.mktemp("out") / f"set{ACTS}"
    master, slave = pty.openpty()
    options = [
        "spans.min_clip_s=0.5",
        "filters.min_short_side_px=0",
        "filters.min_duration_s=0",
        "run.runner=sequential",
    ]
    command = [sys.executable, "-m", "reelweave.pipelines.cli", "curate", str(raw), "--out", str(out)]
    for option in options:
        command += ["--set", option]
    process = subprocess.Popen(
        command,
        stdin=slave,
        stdout=slave,
        stderr=slave,
        env={**os.environ, "TERM": "xterm-256color", "COLUMNS": "120"},
    )
    os.close(slave)
    sent = bytearray()
    while True:
        try:
            part = os.read(master, 1 << 16)
        except OSError:  # how Linux says that nobody holds the other end
            break
        if not part:
            break
        sent += part
    os.close(master)
    assert process.wait() == 0, sent
    return out, sent.decode()


def test_a_terminal_is_sent_nothing_but_text_and_what_draws_the_progress(shown: tuple[Path, str]) -> None:
    _, text = shown
    drawn = RICH.sub("", text)
    assert drawn != text
    assert is_plain(drawn.replace("\r", ""))
    assert r"\x1b]0;pwned" in drawn


def test_results_and_errors_are_plain(shown: tuple[Path, str], raw: Path, tmp_path: Path) -> None:
    out, _ = shown
    good = raw / f"good{ACTS}.mp4"
    calls = [
        ("verify", out),
        ("verify", good),
        ("curate", raw, "--out", out, "--set", "run.runner=sequential"),
        ("curate", tmp_path / ACTS, "--out", tmp_path / "o"),
        ("report", out),
        ("report", tmp_path / ACTS),
        ("search", out, "--text", ACTS),
        ("train", "--config", tmp_path / ACTS),
        ("state", good),
        ("plan", good),
        ("curate", raw, "--out", out, "--set", f"{ACTS}=1"),
        (ACTS,),
        ("verify", out, f"--{ACTS}"),
    ]
    for call in calls:
        done = reelweave(*call)
        assert is_plain(done.stdout), (call, done.stdout)
        assert is_plain(done.stderr), (call, done.stderr)
        assert len((done.stdout + done.stderr).strip()) > 10


def test_json_is_plain_and_says_the_same(shown: tuple[Path, str]) -> None:
    done = reelweave("verify", shown[0], "--json")
    assert is_plain(done.stdout)
    assert json.loads(done.stdout)["ok"]


@pytest.mark.parametrize("text", [ACTS, "a half \ud800", "\U000e0041", "\ufeff", "\x00"])
def test_escaped_json_is_the_same_document(text: str) -> None:
    document = printable_json(json.dumps([text], ensure_ascii=False))
    assert document == printable(document)
    assert json.loads(document) == [text]


def test_letters_of_all_scripts_and_joined_emoji_stay() -> None:
    text = "Zürich, मछली, 北京, \u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645, \U0001f469\u200d\U0001f680 “x” \\ [x]"
    assert printable(text) == text


def test_a_table_has_no_lines_is_not_folded_in_a_pipe_and_its_headline_never() -> None:
    headline = "10 sources -> 25 clips, 65.2 s, 5.8 MB of a demo whose name is long"
    rows = [
        ("a source of many words that a narrow terminal has no room for", 0.51, "12.5%"),
        ("b", 2.0, "-1%"),
    ]
    found = {}
    for width, terminal in ((30, True), (30, False)):
        told = StringIO()
        console = _PlainConsole(file=told, width=width, force_terminal=terminal, color_system=None)
        console.print(table(headline, ["source", "seconds", "share"], rows))
        found[terminal] = told.getvalue().splitlines()
        assert found[terminal][0].rstrip() == headline
        assert "".join(found[terminal]).isascii()
    assert len(found[True]) > len(found[False]) == 4
    assert [line.split()[-2:] for line in found[False][1:]] == [
        ["seconds", "share"],
        ["0.51", "12.5%"],
        ["2", "-1%"],
    ]


@pytest.mark.parametrize("empty", [0, 1, 2])
def test_an_empty_column_folds_no_other(empty: int) -> None:
    columns, row = ["score", "value"], ["duplicate_share", 0.5]
    columns.insert(empty, "")
    row.insert(empty, "")
    told = StringIO()
    _PlainConsole(file=told).print(table("scores", columns, [row, row]))
    assert [line.split() for line in told.getvalue().splitlines()[2:]] == [["duplicate_share", "0.5"]] * 2


def test_quiet_leaves_results_and_errors(capsys: pytest.CaptureFixture[str]) -> None:
    for quiet, shown in ((True, ""), (False, "a note")):
        set_verbosity(quiet, verbose=False)
        stderr().print("a note")
        stdout().print("a result")
        captured = capsys.readouterr()
        assert (captured.out.strip(), captured.err.strip()) == ("a result", shown)
