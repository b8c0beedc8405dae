"""Token that the processes of Ray show each other."""

import os
import secrets
import tempfile
from pathlib import Path


def keep_token(folder: Path) -> None:
    """Write the token of this user's Ray, unless there is one.

    Ray looks for one and then writes one. Of two first runs side by side, the earlier one's workers thus read
    the token of the later one, and are refused. Users without a home that they can write, as in many containers, get
    one for this process and those that it starts.

    Args:
        folder: where Ray keeps it, ``~/.ray``; made if missing.
    """
    if "RAY_AUTH_TOKEN" in os.environ or "RAY_AUTH_TOKEN_PATH" in os.environ:
        return
    token = secrets.token_hex(32)
    try:
        folder.mkdir(exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=folder) as file:
            file.write(token.encode())
            file.flush()
            os.link(file.name, folder / "auth_token")
    except OSError:  # FileExistsError: there is one
        if not os.access(folder / "auth_token", os.R_OK):
            os.environ["RAY_AUTH_TOKEN"] = token
