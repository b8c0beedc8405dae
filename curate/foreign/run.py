"""Indexing a folder or prefix of tars, or of shards of MDS: list them, read those that are new, publish."""

import hashlib
import importlib.metadata
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import Any

from reelweave.curate.foreign.crew import TarProgress, read_tars
from reelweave.curate.foreign.fields import FieldChoice
from reelweave.curate.foreign.killed import forget_killed
from reelweave.curate.foreign.mds_index import is_mds, read_mds_index
from reelweave.curate.foreign.other_formats import explain_other_format
from reelweave.curate.foreign.probe import PROBE_VERSION
from reelweave.curate.foreign.remarks import reasons_of, remarks
from reelweave.curate.foreign.tar import NOTES, note_path, read_local, write_local
from reelweave.loader.base.processors import processors
from reelweave.loader.dataset.manifest import MANIFEST, MDS, Foreign, Manifest, read_manifest, table_path
from reelweave.loader.dataset.publishing.foreign import publish_foreign
from reelweave.loader.dataset.publishing.tar_index import TarIndex
from reelweave.loader.dataset.publishing.writer import SIDECARS
from reelweave.loader.dataset.schema import TABLES
from reelweave.loader.dataset.tars.card import CARD, card_of_tars, place_card
from reelweave.loader.dataset.tars.mds_scan import MdsShard
from reelweave.loader.errors import RunError, UsageError
from reelweave.loader.storage import ObjectInfo, Storage, StorageConfig, hold_lease, is_absent, open_storage
from reelweave.loader.storage.scratch import Scratch
from reelweave.loader.text import pluralize

PACKED = (".tar.gz", ".tgz", ".tar.bz2", ".tbz2", ".tar.xz", ".txz", ".tar.zst", ".tar.lz4")

_NO_TARS = (
    *(".idx", ".index", ".json", ".jsonl", ".parquet", ".arrow", ".csv", ".tsv"),
    *(".txt", ".md", ".yaml", ".yml", ".html"),
)
"""Ends of files that lie beside tars and match a pattern of shards easily: indexes, manifests, lists and cards."""

_BEGUN = f"{NOTES}begun.json"
_HIDDEN = (NOTES, SIDECARS, ".ledger/")
_READERS = 16


@dataclass(frozen=True)
class Indexed:
    """Result of indexing a folder of tars.

    Attributes:
        manifest: Manifest of the dataset.
        tars_read: Number of tars read by this run.
        notes: Sentences for the person who runs this: damaged tars, files of others that were left alone.
    """

    manifest: Manifest
    tars_read: int
    notes: tuple[str, ...]


def index_tars(
    uri: str,
    out: str | None = None,
    shards: str | None = None,
    workers: int | None = None,
    config: StorageConfig = StorageConfig(),  # noqa: B008 - frozen
    progress: Callable[[TarProgress], None] = lambda _: None,
    fields: str | None = None,
) -> Indexed:
    """Make the WebDataset tars below ``uri``, or the shards of MDS of its index, a dataset; it also ends a cut-off run.

    Each tar is read once. A later call reads the tars that are new or changed and publishes the next revision.

    Args:
        uri: Folder or S3 prefix of the tars.
        out: Folder or S3 prefix of the index; None for ``uri``.
        shards: Pattern of the tars' paths below ``uri``, where ``*`` stands for any characters; None for all.
        workers: Number of processes; None for one per processor.
        config: Configuration of both storages.
        progress: Called after each tar.
        fields: Fields of the samples' metadata to keep, see `FieldChoice.parse`; None for those of the index that is
            there, else all.

    Raises:
        UsageError: the choice of fields cannot be read, there are no tars, or compressed ones; or other files are where
            the index would be written.
        RunError: the environment failed; tables of tars are kept for the next run.
    """
    choice = None if fields is None else FieldChoice.parse(fields)
    # A tar is read once and forward; blocks that were read need no place on disk.
    tars = open_storage(uri, config.model_copy(update={"cache_mib": 0}))
    if is_absent(tars):
        raise UsageError(f"{tars.root} does not exist; check the path")
    place = tars if out is None else open_storage(out, config)
    beside = place.root == tars.root
    if not beside:  # refuse a place that readers of the index may not follow before tars are read
        open_storage(tars.root, config, place.uri(MANIFEST))
    with hold_lease(place, "reelweave index") as held, Scratch("reelweave-index-") as folder:
        return _index(tars, held, beside, shards, workers or processors(), progress, Path(folder), choice)


def _index(
    tars: Storage,
    place: Storage,
    beside: bool,
    shards: str | None,
    workers: int,
    progress: Callable[[TarProgress], None],
    folder: Path,
    choice: FieldChoice | None,
) -> Indexed:
    """Index as the holder of the place's lease; ``folder`` is for tables of tars."""
    foreign = Foreign(uri=None if beside else tars.root)
    objects, others, mds = _choose(tars, shards)
    described = {MDS: next(iter(mds.values())).columns.model_dump(mode="json")} if mds else {}
    previous, with_sidecars = _begin(place, foreign, described, has_sidecars=beside and not mds)
    before = "" if previous is None else str(previous.config.get("index", {}).get("fields") or "")
    fields = choice or (FieldChoice.parse(before) if before else FieldChoice())
    known = _load_known(place, objects, folder, fields)
    # Read the tars that no earlier run has read.
    todo = [info for info in objects if info.path not in known]
    read_tars(tars, place, todo, objects, workers, progress, fields, mds)
    known |= _load_known(place, todo, folder, fields)
    if lost := [info.path for info in objects if info.path not in known]:
        raise RunError(f"{tars.uri(lost[0])} changed while it was read; run the same command again")
    # Publish, then say what is wrong with which tar.
    indices = [known[info.path] for info in objects]
    notes = [f"{tars.uri(tar.path)} {problem}" for tar in indices for problem in tar.damage]
    _check_some_use(indices, tars.root)
    chosen = {"fields": str(fields)} if fields != FieldChoice() else {}
    config = {"index": {"shards": shards} | chosen | described}
    manifest, kept_idx = publish_foreign(
        place, indices, foreign, config, _versions(), previous, with_sidecars
    )
    forget_killed(place)
    notes += remarks(indices, manifest, is_mds=bool(mds))
    if mds and (unread := next(iter(mds.values())).columns.unread()):
        notes.append(f"columns of MDS that are not read: {', '.join(unread)}")
    notes += [
        f"{place.uri(path)} tells of other samples than its tar holds; it was left alone" for path in kept_idx
    ]
    if others:
        why = (
            f"{pluralize(len(others), 'shard of MDS is', 'shards of MDS are')} not in index.json"
            if mds
            else f"{pluralize(len(others), 'file matches', 'files match')} --shards {shards} and, by the end of the"
            " name, no tar"
        )
        notes.append(f"{why}: left out, the first: {others[0]}")
    if (
        beside
        and not mds
        and not place_card(place, card_of_tars([tar.path for tar in indices], is_all=shards is None))
    ):
        notes.append(
            f"{place.uri(CARD)} is not ours and was left alone: Hugging Face's datasets opens the tars by"
            " load_dataset('webdataset', data_files='FOLDER/*.tar'), and by the folder's name if configs: in that file"
            " name them"
        )
    return Indexed(manifest, len(todo), tuple(notes))


def _choose(tars: Storage, shards: str | None) -> tuple[list[ObjectInfo], list[str], dict[str, MdsShard]]:
    """Return the tars, or else the shards of MDS, by path; files that are left out; and MDS by path."""
    listed = list(tars.list())
    if is_mds(listed):
        paths = [info.path for info in listed if not info.path.startswith(_HIDDEN)]
        has_tars = any(path.endswith((".tar", *PACKED)) for path in paths)
        if shards is None and has_tars:
            raise UsageError(
                f"{tars.root} holds tars and shards of MDS with their index.json: say which by --shards '*.tar' or"
                " --shards '*.mds'"
            )
        if shards is None or any(path.endswith(".mds") and fnmatchcase(path, shards) for path in paths):
            return read_mds_index(tars, listed, shards or "*")
    objects, others = chosen_tars(listed, shards, tars.root)
    return objects, others, {}


def chosen_tars(
    listed: Sequence[ObjectInfo], shards: str | None, root: str
) -> tuple[list[ObjectInfo], list[str]]:
    """Return the tars among the objects of a storage, by path, and the paths that match ``shards`` and are no tars.

    Raises:
        UsageError: there are none, or packed ones.
    """
    shown = [info for info in listed if not info.path.startswith(_HIDDEN)]
    others: list[str] = []
    if shards is None:
        objects = [info for info in shown if info.path.endswith((".tar", *PACKED))]
    else:
        matching = [info for info in shown if fnmatchcase(info.path, shards)]
        objects = [info for info in matching if not info.path.endswith(_NO_TARS)]
        others = sorted(info.path for info in matching if info.path.endswith(_NO_TARS))
    # A packed tar has no byte ranges of its samples.
    packed = [info.path for info in objects if info.path.endswith(PACKED)]
    if packed:
        raise UsageError(
            f"{root}/{packed[0]} is packed: of a packed tar no single sample can be read; unpack it, or leave"
            " the packed ones out with --shards '*.tar'"
        )
    if not objects:
        what = (
            "whose path ends in .tar"
            if shards is None
            else f"that matches --shards {shards} and may be a tar"
        )
        known = explain_other_format(shown, root) if shards is None else ""
        raise UsageError(f"{root} holds no file {what}" + (f": {known}" if known else ""))
    return sorted(objects, key=lambda info: info.path), others


def _begin(
    place: Storage, foreign: Foreign, mds: dict[str, Any], has_sidecars: bool
) -> tuple[Manifest | None, bool]:
    """Return the manifest of an earlier run, and whether we write ``.nv-meta``; files of others are not replaced.

    Raises:
        UsageError: the place holds something else already.
    """
    if place.stat(MANIFEST) is not None:
        previous = read_manifest(place)
        if previous.foreign is None:
            raise UsageError(
                f"{place.root} is a finished dataset that was not indexed; there is nothing to do"
            )
        if previous.foreign != foreign:
            raise UsageError(
                f"{place.root} is an index over {previous.foreign.uri or 'its own tars'}; choose another --out"
            )
        if previous.config.get("index", {}).get(MDS) != mds.get(MDS):
            raise UsageError(
                f"{place.root} is an index over samples with other columns, or of tars beside MDS; choose another --out"
            )
        return previous, any(file.path.startswith(SIDECARS) for file in previous.files)
    if place.stat(_BEGUN) is None:
        for path in (table_path(name, 0) for name in TABLES):
            if place.stat(path) is not None:
                raise UsageError(
                    f"{place.uri(path)} is there already, and not of an index; choose another --out"
                )
        prepared = any(place.list(SIDECARS))
        place.create(
            _BEGUN, b'{"sidecars": true}' if has_sidecars and not prepared else b'{"sidecars": false}'
        )
    return None, b"true" in place.read(_BEGUN)


def _load_known(
    place: Storage, objects: Sequence[ObjectInfo], folder: Path, fields: FieldChoice
) -> dict[str, TarIndex]:
    """Return the results of tars that are still the same; their tables are copied to a folder of this machine."""

    def read(info: ObjectInfo) -> TarIndex | None:
        try:
            tar = TarIndex.from_bytes(place.read(note_path(info.path)))
        except FileNotFoundError:
            return None
        now = (info.path, info.size, info.version, PROBE_VERSION, str(fields))
        if tar is None or (tar.path, tar.size, tar.version, tar.probe, tar.fields) != now:
            return None
        path = folder / hashlib.sha256(info.path.encode()).hexdigest()
        write_local(path, tar.table)
        return replace(tar, read=partial(read_local, path))

    with ThreadPoolExecutor(_READERS) as pool:
        return {tar.path: tar for tar in pool.map(read, objects) if tar}


def _check_some_use(tars: Sequence[TarIndex], root: str) -> None:
    reasons = reasons_of(tars)
    reasons.update(problem for tar in tars for problem in tar.damage)
    if reasons.pop("", 0) == 0:
        most = reasons.most_common(1)[0][0] if reasons else "the tars are empty"
        raise RunError(f"{root} has no sample that can be used; most often: {most}")


def _versions() -> dict[str, str]:
    return {name: importlib.metadata.version(name) for name in ("reelweave", "av", "pyarrow")}
