"""Name of the program in hints, as it can be called from here."""

import shutil
import sys
from pathlib import Path

from reelweave.pipelines.configuration.shell import shell_line

_NAME = "reelweave"


def program(name: str = _NAME, module: str = "reelweave") -> str:
    """Return the words that call a program installed beside this one.

    `reelweave` if the shell finds the one that runs now, else its path as it was called, else Python with the module.

    Args:
        name: name of the script.
        module: module with the same effect under ``python -m``.
    """
    called = Path(sys.argv[0])
    installed = called.with_name(name) if called.name == _NAME else Path(sys.executable).with_name(name)
    on_path = shutil.which(name)
    if on_path and installed.exists() and Path(on_path).resolve() == installed.resolve():
        return name
    if called.name == _NAME and installed.exists():
        return str(installed)
    python = shutil.which("python")
    same = python is not None and Path(python).resolve() == Path(sys.executable).resolve()
    return f"{'python' if same else sys.executable} -m {module}"


def hint(*words: object) -> str:
    """Return a command of this program as a person can paste it into a shell."""
    return f"{program()} {shell_line(map(str, words))}"
