"""What lies below a folder that a person named: files, and what is none, with the reason."""

import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

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


class Found(NamedTuple):
    """A name below a folder.

    Attributes:
        path: relative to the folder.
        fault: why it is no file that can be read; "" for a file.
        hidden: whether it can be reached only by a name that starts with a dot.
        many: whether it may hold several sources: a folder, or a link that may lead to one.
    """

    path: str
    fault: str = ""
    hidden: bool = False
    many: bool = False


def walk(root: Path) -> Iterator[Found]:
    """Yield every file below ``root``, and what can be no file, in no particular order.

    Links are followed. A folder that has several names is entered once: by its own name rather than by a link, and by
    one that is hidden only where it has no other.
    """
    waiting: tuple[list[str], ...] = ([""], [], [])
    entered: set[tuple[int, int]] = set()
    while rank := next((1 + number for number, some in enumerate(waiting) if some), 0):
        rank -= 1
        folder = waiting[rank].pop()
        try:
            here = os.stat(f"{root}/{folder}")  # noqa: PTH116 - pathlib takes deep paths apart each time
            if (here.st_dev, here.st_ino) in entered:
                continue
            entered.add((here.st_dev, here.st_ino))
            with os.scandir(f"{root}/{folder}") as entries:
                inside = list(entries)
        except OSError as error:
            yield Found(folder.rstrip("/"), _reason(error), rank == _HIDDEN, many=True)
            continue
        for entry in inside:
            hidden = rank == _HIDDEN or entry.name.startswith(".")
            fault, is_folder = _looked_at(entry)
            if is_folder:
                linked = rank == _LINKED or entry.is_symlink()
                waiting[_HIDDEN if hidden else _LINKED if linked else _OPEN].append(f"{folder}{entry.name}/")
            else:
                lost_link = bool(fault) and entry.is_symlink() and "." not in entry.name
                yield Found(folder + entry.name, fault, hidden, lost_link)


def why_no_file(path: str) -> str:
    """Return in words why there is no file at a local path."""
    try:
        mode = Path(path).stat().st_mode
    except OSError as error:
        absent = error.errno in (errno.ENOENT, errno.ENOTDIR) and not os.path.lexists(path)
        return "does not exist" if absent else _reason(error)
    except ValueError:  # a zero byte
        return "has a name that no file can have"
    return _kind(mode) or "is a folder; name files"


def _looked_at(entry: "os.DirEntry[str]") -> tuple[str, bool]:
    """(why it is no file or "", whether it is a folder); costs no request but for links and what is neither."""
    try:
        if entry.is_dir():
            return "", True
        if entry.is_file():
            return "", False
        return _kind(entry.stat().st_mode), False
    except OSError as error:
        return _reason(error), False


def _kind(mode: int) -> str:
    return _KINDS.get(stat.S_IFMT(mode), "")


def _reason(error: OSError) -> str:
    return _REASONS.get(error.errno or 0) or f"cannot be read: {error.strerror}"
