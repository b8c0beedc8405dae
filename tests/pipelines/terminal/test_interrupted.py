"""What a command says after Ctrl-C and after SIGTERM."""

import argparse
import importlib
import os
import signal
from collections.abc import Iterator

import pytest

from reelweave.pipelines.cli import main
from reelweave.pipelines.terminal.stop_signal import raise_at_sigterm

WORDS = {
    "data.index": (["index", "tars"], "the same command goes on where it stopped"),
    "look.verify": (["verify", "dataset"], "run the same command again"),
}


@pytest.mark.parametrize("module", WORDS)
def test_only_what_is_kept_is_promised(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], module: str
) -> None:
    def stop(_: argparse.Namespace) -> int:
        raise KeyboardInterrupt

    words, said = WORDS[module]
    monkeypatch.setattr(importlib.import_module(f"reelweave.pipelines.commands.{module}"), "run", stop)
    assert main(words) == 130
    assert capsys.readouterr().err.strip().endswith(f"interrupted; {said}")


@pytest.fixture
def _handler_of_tests() -> Iterator[None]:
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.mark.usefixtures("_handler_of_tests")
@pytest.mark.parametrize("module", WORDS)
def test_sigterm_is_obeyed_as_ctrl_c(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], module: str
) -> None:
    released = []

    def stop(_: argparse.Namespace) -> int:
        try:
            signal.raise_signal(signal.SIGTERM)
        finally:
            signal.raise_signal(signal.SIGTERM)  # `timeout` sends it twice
            released.append(True)
        return 0

    words, said = WORDS[module]
    monkeypatch.setattr(importlib.import_module(f"reelweave.pipelines.commands.{module}"), "run", stop)
    assert main(words) == 143
    assert capsys.readouterr().err.strip().endswith(f"stopped by SIGTERM; {said}")
    assert released == [True]


def test_a_command_that_ends_leaves_sigterm_as_it_was() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with raise_at_sigterm():
        assert signal.getsignal(signal.SIGTERM) != before
    assert signal.getsignal(signal.SIGTERM) == before


def test_forked_children_end_at_once_by_sigterm() -> None:
    with raise_at_sigterm():
        child = os.fork()
        if child == 0:
            try:
                signal.raise_signal(signal.SIGTERM)
            finally:
                os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGTERM
