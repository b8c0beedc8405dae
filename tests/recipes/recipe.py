"""Recipes of the docs: numbered steps that name a file and what goes where, performed on a copy of the code.

A step says "A new file `PATH`", or "In `PATH`, above `TEXT`" or "in place of `TEXT`", each before a block of code.
`TEXT` occurs in one line of the file. Nothing but these steps is done, so a recipe that leaves out a file fails.
"""

import os
import re
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from tests.printed import ROOT

ROOMS = ("curate", "loader", "pipelines", "train")
_STEP = re.compile(r"(?m)^\d\. ")
_MARK = re.compile(
    r"(?P<new>A new file `(?P<path>[^`]+)`)|In `(?P<old>[^`]+)`|(?P<where>above|in place of) `(?P<text>[^`]+)`"
    r"|(?P<code>(?:^ {8}.*\n|^\n(?= {8}| *\n {8}))+)",
    re.MULTILINE,
)


def _copy(folder: str, home: Path) -> None:
    """Copy a folder with all that Python and numba have compiled of it: with equal times it holds for the copy, too."""

    def copied(source: str, target: str) -> None:
        with suppress(FileNotFoundError):  # what another process compiles has a passing name
            shutil.copy2(source, target)

    shutil.copytree(ROOT / folder, home / folder, symlinks=True, copy_function=copied)


class Code:
    """A copy of our code that a recipe has changed.

    Attributes:
        home: Folder to put first on the path of modules.
        files: Paths that the recipe touched, relative to the repository.
    """

    def __init__(self, home: Path) -> None:
        self.home = home
        self.files: list[str] = []
        for folder in ("reelweave", *ROOMS, "csrc"):
            _copy(folder, home)

    def add_tests(self) -> None:
        """Copy the tests, too, for recipes that add one, and the pages that these read."""
        shutil.copy(ROOT / "pyproject.toml", self.home)
        _copy("tests", self.home)
        _copy("docs", self.home)

    def perform(self, page: str, heading: str, without: int | None = None) -> None:
        """Do what the steps behind a heading or a first sentence of a page say, all or all but one of them."""
        text = (ROOT / "docs" / page).read_text()
        assert text.count(heading) == 1, f"{page} has no {heading!r}"
        steps = "1. " + text.partition(heading)[2].partition("\n1. ")[2]
        recipe = re.split(r"(?m)^(?=[A-Z#*])", steps)[0]
        for index, step in enumerate(filter(None, _STEP.split(recipe)), 1):
            if index != without:
                self._step(step)

    def _step(self, step: str) -> None:
        path, where, text = "", "", ""
        for mark in _MARK.finditer(step):
            if mark["code"] is not None:
                self._write(path, where, text, textwrap.dedent(mark["code"]).strip("\n") + "\n")
            elif mark["where"]:
                where, text = mark["where"], mark["text"]
            else:
                path, where = mark["path"] or mark["old"], "new" if mark["new"] else ""
                self.files.append(path)

    def _write(self, path: str, where: str, text: str, code: str) -> None:
        file = self.home / path
        if where == "new":
            assert not file.exists(), f"{path} is there already"
            file.write_text(code)
            return
        before = file.read_text()
        assert before.count(text) == 1, f"{path} has {text!r} {before.count(text)} times"
        if where == "in place of":
            file.write_text(before.replace(text, code.strip("\n")))
            return
        assert where == "above", f"{path}: the step says no place"
        lines = before.splitlines(keepends=True)
        (index,) = (index for index, line in enumerate(lines) if text in line)
        indent = lines[index][: len(lines[index]) - len(lines[index].lstrip())]
        lines.insert(index, textwrap.indent(code, indent))
        file.write_text("".join(lines))

    def run(self, *command: str, **variables: str) -> subprocess.CompletedProcess[str]:
        """Run a Python module with the changed code, in its folder."""
        environment: Mapping[str, str] = {
            **os.environ,
            "PYTHONPATH": f"{self.home}{os.pathsep}{ROOT}",
            **variables,
        }
        return subprocess.run(
            [sys.executable, "-m", *command], capture_output=True, text=True, env=environment, cwd=self.home
        )

    def check(self) -> None:
        """Hold the touched files to `ruff`, as `make lint` does."""
        done = self.run("ruff", "check", "--config", str(ROOT / "pyproject.toml"), *self._python())
        assert done.returncode == 0, done.stdout
        done = self.run("ruff", "format", "--diff", "--config", str(ROOT / "pyproject.toml"), *self._python())
        assert done.returncode == 0, done.stdout

    def _python(self) -> list[str]:
        return [path for path in self.files if path.endswith(".py")]
