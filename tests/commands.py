"""Commands called within this process: what they print and how they end, without the seconds that a new process takes.

Those of tests/pipelines/test_cli.py are processes of their own where that is what is tested.
"""

import os
import subprocess
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from unittest.mock import patch

from reelweave.pipelines.cli import main


def reelweave(*arguments: object) -> subprocess.CompletedProcess[str]:
    """Runs one command to its end; an error that the program does not know of is raised, not printed."""
    words = [str(argument) for argument in arguments]
    output, errors = StringIO(), StringIO()
    # Paths of any length stay on one line.
    with patch.dict(os.environ, COLUMNS="300"), redirect_stdout(output), redirect_stderr(errors):
        try:
            status = main(words)
        except SystemExit as end:
            status = int(end.code or 0)
    return subprocess.CompletedProcess(words, status, output.getvalue(), errors.getvalue())
