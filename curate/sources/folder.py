"""Files below a local folder, and entries that are no readable files, with the reason."""

import errno
import functools
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from reelweave.loader.storage.steady import is_fault, retry

# fmt: off
VIDEO_SUFFIXES = frozenset((
    ".264", ".265", ".3g2", ".3gp", ".apng", ".asf", ".avi", ".divx", ".dv", ".f4v", ".flv", ".gif", ".h264", ".h265",
    ".hevc", ".ivf", ".m1v", ".m2t", ".m2ts", ".m2v", ".m4v", ".mkv", ".mov", ".mp4", ".mpe", ".mpeg", ".mpg", ".mts",
    ".mxf", ".ogm", ".ogv", ".qt", ".rm", ".rmvb", ".ts", ".vob", ".webm", ".wmv", ".y4m",
))
# fmt: on
SIDECAR_SUFFIXES = frozenset((".json", ".txt"))

_REASONS = {
    errno.EACCES: "may not be read (permission denied)",
    errno.EPERM: "may not be read (permission denied)",
    errno.ELOOP: "is a link that leads in a circle",
    errno.ENAMETOOLONG: "has a name or a path longer than the system can open",
    errno.ENOENT: "is a link to nothing",
    errno.ENOTDIR: "is a link to nothing",
}
_KINDS = {
    stat.S_IFIFO: "is a pipe and no file",
    stat.S_IFSOCK: "is a socket and no file",
    stat.S_IFCHR: "is a device and no file",
    stat.S_IFBLK: "is a device and no file",
}
_OPEN, _LINKED, _HIDDEN = range(3)


class FolderEntry(NamedTuple):
    """File or unreadable entry below a folder.

    Attributes:
        path: Path relative to the folder.
        fault: Reason why it is no readable file; "" for a file.
        hidden: True when every path to it has a name that starts with a dot.
        many: True when it may hold several sources: a folder, or a link that may lead to one.
        undone: True when the fault is one of the machine, and says nothing of the entry.
    """

    path: str
    fault: str = ""
    hidden: bool = False
    many: bool = False
    undone: bool = False


def walk(root: Path) -> Iterator[FolderEntry]:
    """Yield every file and every unreadable entry below ``root``, in no particular order.

    Links are followed. A folder with several names is entered once, by its own name rather than by a link. A
    hidden name is used only where it has no other.
    """
    # Folders by rank: own names before links, and hidden ones last.
    waiting: tuple[list[str], ...] = ([""], [], [])
    entered: set[tuple[int, int]] = set()
    while rank := next((1 + index for index, some in enumerate(waiting) if some), 0):
        rank -= 1
        folder = waiting[rank].pop()
        try:
            identity, inside = retry(functools.partial(_inside, f"{root}/{folder}"))
        except OSError as error:
            name = folder.rstrip("/")
            yield FolderEntry(name, _reason(error), rank == _HIDDEN, many=True, undone=is_fault(error))
            continue
        # A folder that was entered by a better name, or that a link leads back to.
        if identity in entered:
            continue
        entered.add(identity)
        for entry in inside:
            # Entries inherit what their folder is.
            hidden = rank == _HIDDEN or entry.name.startswith(".")
            fault, is_folder, undone = _looked_at(entry)
            if is_folder:
                linked = rank == _LINKED or entry.is_symlink()
                waiting[_HIDDEN if hidden else _LINKED if linked else _OPEN].append(f"{folder}{entry.name}/")
            else:
                lost_link = bool(fault) and entry.is_symlink() and "." not in entry.name
                yield FolderEntry(folder + entry.name, fault, hidden, lost_link, undone)


def _inside(folder: str) -> tuple[tuple[int, int], list["os.DirEntry[str]"]]:
    """Return the identity of a folder, and its entries."""
    status = os.stat(folder)  # noqa: PTH116 - pathlib takes deep paths apart each time
    with os.scandir(folder) as entries:
        return (status.st_dev, status.st_ino), list(entries)


def why_no_file(path: str) -> str:
    """Return the reason why there is no file at a local path."""
    try:
        mode = Path(path).stat().st_mode
    except OSError as error:
        absent = error.errno in (errno.ENOENT, errno.ENOTDIR) and not os.path.lexists(path)
        return "does not exist" if absent else _reason(error)
    except ValueError:  # a zero byte
        return "has a name that no file can have"
    return _kind(mode) or "is a folder; name files"


def _looked_at(entry: "os.DirEntry[str]") -> tuple[str, bool, bool]:
    """Return the fault ("" for a file), True for a folder, and True for a fault of the machine.

    Needs a request only for links and special files.
    """
    try:
        if retry(entry.is_dir):
            return "", True, False
        if retry(entry.is_file):
            return "", False, False
        return _kind(retry(entry.stat).st_mode), False, False
    except OSError as error:
        return _reason(error), False, is_fault(error)


def _kind(mode: int) -> str:
    return _KINDS.get(stat.S_IFMT(mode), "")


def _reason(error: OSError) -> str:
    return _REASONS.get(error.errno or 0) or f"cannot be read: {error.strerror}"
