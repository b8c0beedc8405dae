"""Commands that the documentation prints are commands of the program, with options that it has.

`python -m tests.bench.docs_commands` runs them all.
"""

import pytest

from pipelines.cli import parsed
from tests.printed import PAGES, printed

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
