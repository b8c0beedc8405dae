"""An example's script on the ranks of a world, as torchrun starts it."""

import os
import runpy
import sys
from pathlib import Path


def run(folder: str, *words: str) -> None:
    os.chdir(folder)
    sys.argv = list(words)
    sys.path.insert(0, str(Path(words[0]).parent.resolve()))  # as Python does
    runpy.run_path(words[0], run_name="__main__")
