"""Commands as the pages of the documentation print them.

A line of a code block that begins with ``reelweave``, or runs it under ``torchrun``, is a command. ``[--option VALUE]``
and ``[NAME ...]`` are optional and left out, ``NAME...`` is one NAME, and a ``...`` by itself stands for the arguments
of the page's first command.
"""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), ROOT / "infra" / "README.md"]

_COMMAND = re.compile(r"^    ((?:\S*/)?reelweave|torchrun .*? reelweave) ")
_OPTIONAL = re.compile(r" \[[-A-Z][^\]]*\](?:\.\.\.)?")


class Printed(NamedTuple):
    """One command of a page; ``words`` are those behind ``reelweave``, ``ranks`` is torchrun's number of processes."""

    page: str
    line: int
    words: tuple[str, ...]
    ranks: int

    def __str__(self) -> str:
        return f"{self.page}:{self.line} {shlex.join(self.words)}"


def printed(page: Path) -> Iterator[Printed]:
    """Yield the commands of a page, in their order."""
    first: tuple[str, ...] = ()
    lines = page.read_text().splitlines()
    for number, line in enumerate(lines):
        if not _COMMAND.match(line):
            continue
        text, more = line, number
        while text.endswith("\\"):
            more += 1
            text = text[:-1] + lines[more]
        before, _, after = _OPTIONAL.sub("", text.split("  #")[0]).partition("reelweave ")
        words = [word.removesuffix("...") for word in shlex.split(after)]
        if "" in words:
            words = [word for old in words for word in (first if old == "" else (old,))]
            words = [word for place, word in enumerate(words) if place == 0 or word != words[0]]
        first = first or tuple(words[1:])
        ranks = re.search(r"--nproc-per-node (\d+)", before)
        name = page.relative_to(ROOT).as_posix()
        yield Printed(name, number + 1, tuple(words), int(ranks[1]) if ranks else 0)
