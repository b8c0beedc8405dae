"""Id of a run, the same after every resume."""

from pathlib import Path
from uuid import uuid4

from reelweave.loader.base.whole_file import whole_file

_RUN_ID = "run_id"


def run_id(out: Path) -> str:
    """Return the id of the run in a folder; the first call creates it.

    Args:
        out: existing folder of the run; one rank calls this.
    """
    path = out / _RUN_ID
    if not path.exists():
        with whole_file(path) as aside:
            aside.write_text(uuid4().hex[:12], encoding="utf-8")
    return path.read_text(encoding="utf-8").strip()
