"""Commands that the documentation prints are commands of the program, with options that it has.

`python -m tests.bench.docs_commands` runs them all.
"""

import re
from pathlib import Path

import pytest

from reelweave.pipelines.cli import parsed
from tests.printed import PAGES, ROOT, printed

COMMANDS = [command for page in PAGES for command in printed(page)]


def test_every_page_of_a_command_is_read() -> None:
    assert len(COMMANDS) > 60
    assert {command.words[0] for command in COMMANDS} >= {
        "curate",
        "train",
        "report",
        "plan",
        "sample",
        "state",
    }


@pytest.mark.parametrize("command", COMMANDS, ids=str)
def test_a_printed_command_is_understood(command, capsys):
    try:
        parsed(command.words)
    except SystemExit:
        pytest.fail(capsys.readouterr().err)


def test_every_benchmark_is_listed_with_its_command() -> None:
    programs = {path.stem for path in (ROOT / "tests/bench").glob("*.py") if "__main__" in path.read_text()}
    page = (ROOT / "docs/benchmarks/README.md").read_text()
    assert set(re.findall(r"^\| `python -m tests\.bench\.(\w+)` \|", page, re.MULTILINE)) == programs


DOCS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *ROOT.glob("docs/**/*.md"), *ROOT.glob("infra/**/*.md")]


@pytest.mark.parametrize("page", DOCS, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_script_that_a_page_names_is_there_or_in_the_commit_that_it_names(page: Path) -> None:
    for line in page.read_text().splitlines():
        commands = [
            name.replace(".", "/") + ".py"
            for name in re.findall(r"-m tests\.bench\.([a-z_0-9.]+[a-z_0-9])", line)
        ]
        files = [] if "of commit `" in line else re.findall(r"tests/bench/([a-z_0-9/]+\.\w+)", line)
        missing = [name for name in commands + files if not (ROOT / "tests/bench" / name).exists()]
        assert not missing, (
            f"{page.name} names {missing}: write `tests/bench/NAME.py` of commit `HASH` for what is gone"
        )
