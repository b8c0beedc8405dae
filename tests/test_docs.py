"""Commands that the documentation prints are commands of the program, with options that it has.

`python -m tests.bench.docs_commands` runs them all.
"""

import re

import pytest
import yaml

from reelweave.pipelines.cli import parse_words
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
        parse_words(command.words)
    except SystemExit as end:  # with status 0 after a list that an option prints
        if end.code:
            pytest.fail(capsys.readouterr().err)


def test_every_benchmark_is_listed_with_its_command() -> None:
    programs = {path.stem for path in (ROOT / "tests/bench").glob("*.py") if "__main__" in path.read_text()}
    page = (ROOT / "docs/benchmarks/README.md").read_text()
    assert set(re.findall(r"^\| `python -m tests\.bench\.(\w+)` \|", page, re.MULTILINE)) == programs


_YAML_BEGINS = re.compile(
    r"(?:- \{|(?:captions|filters|stages|splits|stream|train|embed|dedup|shots|cut|spans|scores|run|storage|where|split"
    r"|quota|buckets|curriculum|dataset|model|lora)\s*:)"
)
"""First words of an indented block that is a configuration."""


def test_printed_configurations_are_yaml() -> None:
    """A question mark in a text without quotation marks made one of them none."""
    blocks = []
    for path in (path for path in NAMING if path.suffix == ".md"):
        text = path.read_text()
        indented = (re.sub(r"(?m)^ {4}", "", block) for block in re.findall(r"(?m)(?:^ {4}.*\n)+", text))
        blocks += [(path, block) for block in indented if _YAML_BEGINS.match(block)]
        blocks += [(path, block) for block in re.findall(r"(?s)```ya?ml\n(.*?)```", text)]
    assert len(blocks) >= 10
    for path, block in blocks:
        try:
            yaml.safe_load(block)
        except yaml.YAMLError as error:
            pytest.fail(f"{path.relative_to(ROOT)}: {block[:80]}: {error}")


NAMING = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "Makefile")),
    *(path for folder in ("docs", "infra") for path in (ROOT / folder).rglob("*.md")),
    *(
        path
        for folder in ("curate", "loader", "pipelines", "tests", "train")
        for path in (ROOT / folder).rglob("*.py")
    ),
]


def test_a_script_that_is_named_is_there_or_in_the_commit_that_is_named() -> None:
    missing = []
    for path in NAMING:
        for line in path.read_text().splitlines():
            commands = re.findall(r"tests\.bench\.([a-z_0-9]+)", line)
            scripts = [] if "of commit `" in line else re.findall(r"tests/bench/([a-z_0-9/]+)\.\w", line)
            missing += [
                f"{path.relative_to(ROOT)}: {name}"
                for name in commands + scripts
                if not (ROOT / "tests/bench" / name).is_dir()
                and not list((ROOT / "tests/bench").glob(f"{name}.*"))
            ]
    assert not missing, "write `tests/bench/NAME.py` of commit `HASH` for a script that is gone"
