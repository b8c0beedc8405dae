"""Folders of tars that somebody else wrote, and what is asked of them once they are indexed."""

import hashlib
import json
import tarfile
from pathlib import Path

from reelweave.curate.foreign.run import Indexed, index_tars
from reelweave.loader.dataset import open_dataset, verify
from reelweave.loader.dataset.tables.parquet import to_rows
from reelweave.loader.storage import open_storage
from tests.foreign_tars import by_tarfile, by_webdataset, picture, video

WORKERS = 1  # a process takes a second to start


def index(folder: object, **options: object) -> Indexed:
    return index_tars(str(folder), **{"workers": WORKERS, **options})


def clips(folder: Path, first: int, count: int, frames: int = 12) -> list[tuple[str, dict[str, bytes]]]:
    return [
        (f"clip{number:04d}", {"mp4": video(folder, number, frames), "txt": f"two words {number}".encode()})
        for number in range(first, first + count)
    ]


def problems(folder: Path) -> list[str]:
    return verify(open_storage(folder)).problems


def failed(folder: Path) -> dict[str, str]:
    rows = to_rows(open_dataset(folder).accounting)
    return {row["source"]: row["reason"] for row in rows if row["state"] == "failed"}


def digests(folder: Path) -> dict[str, tuple[str, int]]:
    return {
        str(path.relative_to(folder)): (
            hashlib.sha256(path.read_bytes()).hexdigest(),
            path.stat().st_mtime_ns,
        )
        for path in folder.rglob("*")
        if path.is_file()
    }


def mixed_set(folder: Path, raw: Path) -> Path:
    """Videos and pictures by three writers, in sub folders, beside files that are no tars."""
    by_webdataset(folder / "a/000.tar", clips(raw, 0, 3))
    pictures = [
        (
            f"{'long folder/' * 14}p{number}",
            {"jpg": picture(number), "json": json.dumps({"prompt": f"picture {number}"}).encode()},
        )
        for number in range(3)
    ]
    by_tarfile(folder / "b/images 1.tar", pictures, tarfile.PAX_FORMAT, folders=True)
    others = [
        ("x/webm", {"webm": video(raw, 50, 10, "webm"), "JSON": b'{"text": "spoken"}', "txt": b" \n"}),
        ("x/both", {"png": picture(9, "png"), "mp4": video(raw, 51, 7)}),
        ("x/broken", {"mp4": b"junk" * 100, "txt": b"x"}),
        ("x/text", {"txt": b"alone"}),
    ]
    by_tarfile(folder / "shards/other.tar", others, tarfile.GNU_FORMAT)
    (folder / "shards/readme.md").write_text("theirs")
    (folder / "index.json").write_text("{}")
    (folder / "scores.csv").write_text("theirs")
    return folder
