"""Record in a run's folder of the weights that it began with."""

from collections.abc import Sequence
from pathlib import Path

from pydantic import TypeAdapter

from reelweave.loader.base.named_file import read_named
from reelweave.loader.base.whole_file import whole_file
from reelweave.loader.errors import UsageError
from reelweave.train.checkpoint.state import Ancestor

ANCESTORS = "ancestors.json"
MAX_BYTES = 1 << 20
_ANCESTORS = TypeAdapter(list[Ancestor])


def write_ancestors(out: Path, ancestors: Sequence[Ancestor]) -> str:
    """Write what a run began with into its folder, newest first; no file if it began with no other run.

    Returns:
        Sentence if the folder names another beginning, as of a run that ended before its first checkpoint; else "".
    """
    path = out / ANCESTORS
    before = read_ancestors(out)
    if not ancestors:
        path.unlink(missing_ok=True)
    else:
        with whole_file(path) as aside:
            aside.write_bytes(_ANCESTORS.dump_json(list(ancestors), indent=1))
    if not before or not ancestors or before[0].sha256 == ancestors[0].sha256:
        return ""
    return f"this run began with {before[0]}, and ended before its first checkpoint; now it begins with {ancestors[0]}"


def read_ancestors(out: Path) -> list[Ancestor]:
    """Return what a run began with, newest first; empty if it says nothing, or nothing that can be read."""
    try:
        return _ANCESTORS.validate_json(read_named(out / ANCESTORS, MAX_BYTES))
    except (UsageError, ValueError):
        return []
