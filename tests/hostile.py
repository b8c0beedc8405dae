"""Damage and tampering for tests of readers: what breaks by itself, and what somebody made to look right."""

import hashlib
import json
import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

KINDS = ("flip", "cut", "empty", "grow", "pipe", "folder", "gone", "loop")


def damage(path: Path, kind: str, chance: random.Random) -> None:
    """Damage one file in one way; ``chance`` decides where."""
    data = path.read_bytes()
    if kind == "flip":
        changed = bytearray(data)
        for _ in range(chance.choice((1, 1, 4, 100))):
            if changed:
                changed[chance.randrange(len(changed))] ^= 1 << chance.randrange(8)
        path.write_bytes(changed)
    elif kind == "cut":
        path.write_bytes(data[: chance.randrange(len(data) + 1)])
    elif kind == "empty":
        path.write_bytes(b"")
    elif kind == "grow":
        path.write_bytes(data + chance.randbytes(chance.choice((1, 1000))))
    else:
        path.unlink()
        if kind == "pipe":
            os.mkfifo(path)
        elif kind == "folder":
            path.mkdir()
        elif kind == "loop":
            path.symlink_to(path.name)


def files(folder: Path) -> list[Path]:
    """Every file below a folder, in order."""
    return sorted(path for path in folder.rglob("*") if path.is_file())


def rewrite(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change a manifest as somebody who knows the format would: its own checksum is right again."""
    path = folder / "manifest.json"
    body = json.loads(path.read_bytes())
    body.pop("sha256")
    change(body)
    text = json.dumps(body, sort_keys=True, separators=(",", ":"))
    path.write_text(json.dumps({**body, "sha256": hashlib.sha256(text.encode()).hexdigest()}))


def exchange(folder: Path, name: str, data: bytes) -> None:
    """Replace a listed file, and say so in the manifest."""
    (folder / name).write_bytes(data)

    def change(body: dict[str, Any]) -> None:
        for entry in (*body["files"], *body["shards"]):
            if entry["path"] == name:
                entry |= {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}

    rewrite(folder, change)


def listed(folder: Path) -> Iterator[str]:
    """Paths of the files in a manifest, its shards too."""
    body = json.loads((folder / "manifest.json").read_bytes())
    yield from (entry["path"] for entry in (*body["files"], *body["shards"]))
