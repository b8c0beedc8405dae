"""Completion scripts of shells, generated from the parser of the command line."""

import argparse
from pathlib import Path

SHELLS = ("bash", "zsh", "tcsh")

_FILES = ("DATASET", "DIR", "CHECKPOINT", "URI", "INPUT")


def completion(parser: argparse.ArgumentParser, shell: str) -> str:
    """Return the script that completes commands, options and file names.

    Args:
        parser: parser of all commands.
        shell: one of `SHELLS`.
    """
    import shtab

    for action in _actions(parser):
        if action.type is Path or action.metavar in _FILES:
            action.complete = shtab.FILE  # type: ignore[attr-defined]  # shtab's interface
    return str(shtab.complete(parser, shell))


def _actions(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    """Return the actions of a parser and of all parsers below it."""
    actions = list(parser._actions)
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for inner in action.choices.values():
                actions += _actions(inner)
    return actions
