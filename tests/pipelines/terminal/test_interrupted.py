"""What a command says after Ctrl-C."""

import argparse
import importlib

import pytest

from reelweave.pipelines.cli import main

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
