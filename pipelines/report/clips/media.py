"""Bytes of a clip: in its shard if it was kept, else among the staged clips of the ledger."""

from dataclasses import dataclass

from reelweave.curate.ledger.files import LEDGER
from reelweave.loader.dataset import Dataset
from reelweave.loader.dataset.manifest import sha256
from reelweave.loader.dataset.tars.media import media_rank
from reelweave.loader.errors import RunError
from reelweave.loader.storage import Storage

_STAGED = f"{LEDGER}clips/"
_KEY_CHARS = frozenset("0123456789abcdef")


@dataclass(frozen=True)
class ClipBytes:
    """Location of a clip's file.

    Attributes:
        storage: storage that holds it.
        path: shard, or file of the ledger.
        offset: first byte.
        size: number of bytes.
        suffix: suffix of its name, such as "mp4".
        sha256: checksum of the file, or its beginning.
    """

    storage: Storage
    path: str
    offset: int
    size: int
    suffix: str
    sha256: str

    def read(self) -> bytes:
        """Return the bytes of the whole file.

        Raises:
            RunError: it is cut off, or its bytes are not those whose checksum the dataset holds.
        """
        where = self.storage.uri(self.path)
        try:
            data = self.storage.read(self.path, self.offset, self.size)
        except FileNotFoundError as error:
            raise RunError(f"{where} is missing; run `reelweave verify` for all that is") from error
        if len(data) != self.size or not sha256(data).startswith(self.sha256):
            raise RunError(f"{where}: the clip at byte {self.offset:,} is damaged; run `reelweave verify`")
        return data


def locate_clip(dataset: Dataset, key: str) -> ClipBytes | None:
    """Return where a clip's file lies; None if there is none."""
    row_number = dataset.row_number(key)
    if row_number is None:
        return staged_clip(dataset, key)
    region = dataset.media.place(row_number)
    if region is None:
        return None
    path, offset, size = region
    row = dataset.row(row_number)
    suffix = min((member["suffix"] for member in row["members"]), key=media_rank)
    return ClipBytes(dataset.shard_storage, path, offset, size, suffix.rpartition(".")[2], row["sha256"])


def staged_clip(dataset: Dataset, key: str) -> ClipBytes | None:
    """Return the staged file of a clip that was not kept; None where it was dropped."""
    if not key or not _KEY_CHARS.issuperset(key):  # keys of tars of others were never staged
        return None
    return next(iter(_staged_clips(dataset, f"{key}-")), None)


def staged_clips(dataset: Dataset) -> dict[str, ClipBytes]:
    """Return all staged clips, by key."""
    clips: dict[str, ClipBytes] = {}
    for clip in _staged_clips(dataset, ""):
        clips.setdefault(clip.path.removeprefix(_STAGED).split("-", 1)[0], clip)
    return clips


def _staged_clips(dataset: Dataset, start: str) -> list[ClipBytes]:
    """Return staged clips whose names begin so; a name is the key and the beginning of the clip's checksum."""
    return [
        ClipBytes(dataset.storage, item.path, 0, item.size, "mp4", item.path[:-4].rpartition("-")[2])
        for item in dataset.storage.list(_STAGED + start)
        if item.path.endswith(".mp4")
    ]
