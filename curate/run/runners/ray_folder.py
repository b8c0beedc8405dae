"""Folder of the Ray that a run starts: logs, objects and sockets, which no other user of the machine may enter."""

import os
import stat
import tempfile
from pathlib import Path

_MAX_PATH_CHARS = 40
"""Ray's sockets add 67 characters, and Linux allows 107."""
_RAY = "ray"


def ray_folder() -> Path:
    """Return a folder within one of this user's, which is made if missing, below RAY_TMPDIR or the temporary folder.

    Ray opens its own folders to everybody, this one too, so that another user could take the position of a socket.

    Raises:
        OSError: it cannot be made, or another user made it.
    """
    name = f"reelweave-ray-{os.geteuid()}"
    parent = Path(os.environ.get("RAY_TMPDIR") or tempfile.gettempdir()).absolute()
    folder = parent / name
    if len(str(folder / _RAY)) > _MAX_PATH_CHARS:
        folder = Path("/tmp") / name  # noqa: S108 - checked below
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
        raise PermissionError(
            f"{folder} is not a folder of this user; remove it, or set RAY_TMPDIR to another"
        )
    if stat.S_IMODE(status.st_mode) != 0o700:
        folder.chmod(0o700)
    return folder / _RAY
