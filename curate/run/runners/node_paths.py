"""Local paths that nodes of a cluster must share with the machine where a command runs, and their check on each node.

Names are recorded as they were spelled, so that a dataset does not depend on the folder it was made in. Relative names
are those of the command's folder, also on nodes; nothing is looked for, or written, in another one.
"""

import os
import socket
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from urllib.parse import unquote

from reelweave.curate.ledger.files import LEDGER
from reelweave.curate.sources.addresses import is_remote
from reelweave.loader.errors import MachineError
from reelweave.loader.storage import Storage

_FILE = "file://"


def output_paths(storage: Storage) -> tuple[str, ...]:
    """Return the path that shows a node the output; none where it is no local folder.

    It is a file of the ledger where there is one: a node may have an empty folder of the same name.
    """
    note = f"{storage.root}/{LEDGER}config.json"
    return _there(note, storage.root)[:1] if storage.root.startswith("/") else ()


def source_paths(uris: Iterable[str]) -> tuple[str, ...]:
    """Return the folder of all local sources, and the command's folder if some are relative to it."""
    local = [text for uri in uris if (text := _local(uri))]
    if not local:
        return ()
    relative = any(not text.startswith("/") for text in local)
    common = os.path.commonpath([os.path.abspath(text) for text in local])  # noqa: PTH100 - of texts, by the million
    return _there(*([str(Path.cwd())] if relative else []), common)


def model_paths(models: Iterable[Path | str]) -> tuple[str, ...]:
    """Return the absolute paths of local models, and the command's folder if some are relative to it."""
    local = [path for path in models if isinstance(path, Path)]
    relative = any(not path.is_absolute() for path in local)
    return _there(*([str(Path.cwd())] if relative else []), *(str(path.absolute()) for path in local))


@cache
def enter_folder(folder: str, needs: tuple[str, ...]) -> None:
    """Make a worker see what the command sees: its folder, if the node has it, and the paths that its stages need.

    Args:
        folder: The command's folder, absolute; "" where it was deleted.
        needs: Paths that must exist on the node.

    Raises:
        MachineError: The node lacks one.
    """
    if folder and os.path.isdir(folder):  # noqa: PTH112 - raises nothing
        os.chdir(folder)
    missing = [path for path in needs if not os.path.exists(path)]  # noqa: PTH110 - raises nothing
    if missing:
        raise MachineError(
            f"node {socket.gethostname()} does not see {missing[0]}, which the machine of the command sees; mount it on"
            " every node at the same path, or use s3:// addresses",
            lasts=True,
        )


def _local(uri: str) -> str:
    """Return the path of a local source; "" for another."""
    if uri.lower().startswith(_FILE):
        return unquote(uri[len(_FILE) :].removeprefix("localhost"), errors="surrogateescape")
    return "" if is_remote(uri) else uri


def _there(*paths: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(path for path in paths if os.path.exists(path)))  # noqa: PTH110 - raises nothing
