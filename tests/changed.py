"""`make quick`: the tests nearest to what changed, for less than a minute.

A test file is as far from a change as its imports: 0 if it changed itself, 1 if it stands where the tests of a changed
module stand or imports it, 2 if it imports a module that does, and so on. The nearest run first. What the time does not
reach is counted.
"""

import re
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path, PurePosixPath

import pytest

ROOT = Path(__file__).parents[1]
ROOMS = ("curate", "loader", "train", "pipelines")
SECONDS = 40
"""Time after which no further test begins; the last one and the start of Python come on top."""
FARTHEST = 3
"""Distance beyond which nearly every test file counts as near."""
MAX_FILES = 40
"""Test files that are read at most, since reading all takes longer than a minute."""
BESIDE = {
    "docs/": ("tests/test_docs.py", "tests/test_site.py"),
    "README.md": ("tests/test_docs.py",),
    "examples/": ("tests/test_examples.py",),
    "infra/": ("tests/infra/",),
    "pyproject.toml": ("tests/test_supply.py", "tests/test_architecture.py"),
    "requirements.lock": ("tests/test_supply.py",),
    "csrc/": ("tests/train/kernels/",),
    **{f"{room}/": ("tests/test_architecture.py", "tests/test_words.py") for room in ROOMS},
}
"""Tests of files that no test imports, by the beginning of their paths."""
_IMPORT = re.compile(r"^\s*(?:from ([\w.]+) import (\([^)]*\)|[^\n]*)|import ([\w., ]+))", re.M)


def changed_files() -> list[str]:
    """Return paths that differ from the upstream branch or are new; those of the last commit if none do."""
    base = _git("merge-base", "HEAD", "origin/main") or ["HEAD"]
    paths = _git("diff", "--name-only", base[0]) + _git("ls-files", "--others", "--exclude-standard")
    return sorted(set(paths or _git("diff", "--name-only", "HEAD~1")))


def imports_by_file(files: Iterable[str]) -> dict[str, set[str]]:
    """Return, for each Python file, the paths of our files that it imports anywhere."""
    paths = {_module(path): path for path in files}
    graph: dict[str, set[str]] = {}
    for path in paths.values():
        names = set(_imported_names((ROOT / path).read_text()))
        graph[path] = {paths[name] for name in names & paths.keys()} - {path}
    return graph


def nearest_tests(changed: Iterable[str], graph: Mapping[str, set[str]]) -> dict[str, int]:
    """Return test files and their distance from what changed, the nearest first.

    Args:
        changed: Paths of changed files, relative to the repository.
        graph: The files that each Python file imports.
    """
    changed = [path for path in changed if (ROOT / path).exists()]
    tests = sorted(path for path in graph if PurePosixPath(path).name.startswith("test_"))
    distances = dict.fromkeys((path for path in changed if path in graph), 0)
    # One level of importers after another, through modules of the product and helpers of the tests alike.
    level = set(distances)
    for distance in range(1, FARTHEST + 1):
        level = {path for path, names in graph.items() if names & level} - distances.keys()
        distances |= dict.fromkeys(level, distance)
    for path in changed:
        beside = {f"tests/{PurePosixPath(path).parent}/test_{PurePosixPath(path).stem}.py"}
        for beginning, names in BESIDE.items():
            if path.startswith(beginning):
                beside |= {test for test in tests if test.startswith(names)}
        distances |= {test: min(1, distances.get(test, 1)) for test in beside & set(tests)}
    return dict(
        sorted(((test, distances[test]) for test in tests if test in distances), key=lambda item: item[1])
    )


class StopInTime:
    """Plugin of pytest that begins no test after a time, and says how many were left."""

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds
        self._left = 0

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> bool | None:
        if time.monotonic() < self._end:
            return None
        self._left += 1
        return True

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self._left:
            terminalreporter.write_line(
                f"{self._left} more tests are near; `make test` runs them and all others"
            )


def _git(*arguments: str) -> list[str]:
    done = subprocess.run(("git", *arguments), cwd=ROOT, capture_output=True, text=True)
    return done.stdout.splitlines()


def _module(path: str) -> str:
    parts = PurePosixPath(path).with_suffix("").parts
    parts = parts[:-1] if parts[-1] == "__init__" else parts
    return ".".join(("reelweave", *parts) if parts[0] in ROOMS else parts)


def _imported_names(text: str) -> Iterator[str]:
    for module, names, plain in _IMPORT.findall(text):
        if plain:
            yield from (name.split()[0] for name in plain.split(",") if name.strip())
            continue
        yield module
        yield from (f"{module}.{name}" for name in re.findall(r"\w+", names))


def main() -> int:
    """Run the nearest tests and return pytest's exit status."""
    changed = changed_files()
    files = _git("ls-files", "*.py") + _git("ls-files", "--others", "--exclude-standard", "*.py")
    tests = nearest_tests(changed, imports_by_file(path for path in files if (ROOT / path).is_file()))
    nearest = list(tests)[:MAX_FILES]
    print(f"{len(changed)} changed files, {len(tests)} test files near them; begin with {len(nearest)}")
    if not nearest:
        return 0
    chosen = "not toolchain and not thorough and not nightly"
    return pytest.main(["-q", "-m", chosen, *nearest, *sys.argv[1:]], [StopInTime(SECONDS)])


if __name__ == "__main__":
    sys.exit(main())
