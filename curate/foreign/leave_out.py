"""A revision of an index over other people's tars that leaves samples out; the tars stay as they are."""

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from reelweave.curate.foreign.tar import note_path, read_local, write_local
from reelweave.loader.dataset import Manifest, Removal
from reelweave.loader.dataset.manifest import ShardEntry
from reelweave.loader.dataset.publishing.foreign import publish_foreign
from reelweave.loader.dataset.publishing.tar_index import TarIndex
from reelweave.loader.dataset.publishing.writer import SIDECARS
from reelweave.loader.errors import RunError
from reelweave.loader.storage import Storage
from reelweave.loader.storage.scratch import Scratch


def leave_out(place: Storage, previous: Manifest, removals: Sequence[Removal]) -> Manifest:
    """Publish the next revision, without some samples; later runs of `index_tars` leave them out, too.

    Neither the tars nor their listing are read: the tables that indexing made of them suffice.

    Args:
        place: Storage of the index, held by the caller.
        previous: Manifest to replace, as read.
        removals: Samples by key or source, beside those of ``previous``.

    Raises:
        RunError: a tar's table is gone, or another process has published here in the meantime.
    """
    assert previous.foreign is not None
    sidecars = any(file.path.startswith(SIDECARS) for file in previous.files)
    with Scratch("reelweave-index-") as folder:
        tars = [_table(place, entry, Path(folder)) for entry in previous.shards]
        manifest, _ = publish_foreign(
            place, tars, previous.foreign, previous.config, previous.versions, previous, sidecars, removals
        )
    return manifest


def _table(place: Storage, entry: ShardEntry, folder: Path) -> TarIndex:
    """Return the table that indexing made of a tar, in a file of this machine."""
    try:
        tar = TarIndex.from_bytes(place.read(note_path(entry.path)))
    except FileNotFoundError:
        tar = None
    if tar is None or tar.sha256 != entry.sha256:
        raise RunError(
            f"{place.uri(note_path(entry.path))} is gone or of another tar than the index: run `reelweave index` again,"
            " which makes it, then this command"
        )
    path = folder / hashlib.sha256(entry.path.encode()).hexdigest()
    write_local(path, tar.table)
    return replace(tar, read=partial(read_local, path))
