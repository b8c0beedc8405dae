"""Sentences for the person who indexes tars: what is counted and looks or trains otherwise than one would think."""

from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from reelweave.curate.foreign.field_remarks import field_remarks
from reelweave.curate.foreign.tar import CUT_CAPTION, ENDS_ITS_READER, IMMERSIVE, MARKS, NO_MEDIA, note_path
from reelweave.loader.dataset.manifest import Manifest
from reelweave.loader.dataset.publishing.tar_index import TarIndex
from reelweave.loader.dataset.tars.media import MAX_CAPTION_CHARS, MEDIA, media_alike
from reelweave.loader.text import pluralize

_SAID = {
    "variable_rate": (
        "have a variable frame rate",
        "`sampling: {mode: fps}` chooses their frames by time stamps, other modes by number",
    ),
    "interlaced": (
        "are marked as interlaced",
        "they train combed: `reelweave curate` on the videos themselves deinterlaces them, `stream.exclude` leaves"
        " them out",
    ),
    "transparent": (
        "have transparent pixels",
        "these train as the colour that is stored below: `reelweave curate` shows videos over black",
    ),
    "cropped": (
        "have edges that their container cuts off for players",
        "they train with these edges, often black bars: `reelweave curate` cuts them off",
    ),
    "rest": (
        "hold more behind the first picture or film, such as gain maps, other views or joined films",
        "only the first one trains, as players show it; split joined films",
    ),
    "turned": (
        "are turned upright as the codec says (display orientation)",
        "players may show them otherwise",
    ),
}
_SINGULAR = {"are": "is", "have": "has", "hold": "holds"}
_SORTED = "members of a sample must lie side by side, as `tar --sort=name` writes them"


def reasons_of(tars: Sequence[TarIndex]) -> Counter[str]:
    """Return the number of samples by the reason why they cannot be used, "" for the others."""
    found: Counter[str] = Counter()
    for tar in tars:
        counts = pc.value_counts(tar.table.column("reason")).to_pylist()
        found.update({one["values"]: one["counts"] for one in counts})
    return found


def remarks(tars: Sequence[TarIndex], manifest: Manifest, is_mds: bool = False) -> list[str]:
    """Return sentences on what surprises in tars: names, captions, and media that train otherwise than they look.

    Args:
        tars: what was read of each tar.
        manifest: dataset of all.
        is_mds: True where they are shards of MDS, whose samples have columns in the place of files.
    """
    return [
        *_on_readers(tars),
        *_on_keys(tars, manifest),
        *_on_captions(tars, is_mds),
        *field_remarks(tars, is_mds),
        *_on_media(tars),
    ]


def _on_readers(tars: Sequence[TarIndex]) -> Iterator[str]:
    ended = [(len(rows), rows[0].as_py(), tar.path) for tar in tars if len(rows := _ending(tar))]
    if ended:
        _, source, path = ended[0]
        yield (
            f"{pluralize(sum(count for count, *_ in ended), 'sample')} left out since reading them ended the process,"
            f" the first: {source} (accounting.parquet says how); without {note_path(path)} the tar is read once more"
        )


def _ending(tar: TarIndex) -> pa.ChunkedArray:
    rows = tar.table
    return rows["source"].filter(pc.starts_with(rows["reason"], ENDS_ITS_READER))


def _on_keys(tars: Sequence[TarIndex], manifest: Manifest) -> Iterator[str]:
    qualified = [entry for entry in manifest.shards if entry.qualified]
    if qualified:
        yield (
            f"keys repeat from tar to tar: the samples of {len(qualified)} of {len(manifest.shards)} tars go by tar"
            f" and key ({qualified[0].key_prefix}KEY)"
        )
    if lost := reasons_of(tars)[""] - manifest.totals.samples:
        what = pluralize(lost, "sample repeats a key of its", "samples repeat a key of their")
        yield f"left out: {what} own tar; accounting.parquet names them"


def _on_captions(tars: Sequence[TarIndex], is_mds: bool) -> Iterator[str]:
    yield from _on_missing_columns(tars) if is_mds else _on_missing_captions(tars)
    # Captions that are not as they were written.
    if cut := sum(_count_marked(tar, *CUT_CAPTION) for tar in tars):
        what = pluralize(cut, "caption has", "captions have")
        yield (
            f"{what} more than {MAX_CAPTION_CHARS:,} characters: the rest is cut off (attributes:"
            f" {'='.join(CUT_CAPTION)} in index.parquet)"
        )
    if replaced := sum(_count_replaced(tar) for tar in tars):
        what = pluralize(replaced, "caption is", "captions are")
        yield f"{what} not UTF-8: what could not be read is U+FFFD in them; write them again as UTF-8"


def _on_missing_columns(tars: Sequence[TarIndex]) -> Iterator[str]:
    """Yield a sentence on samples of MDS without a caption, which have columns in the place of files."""
    silent = [
        (key, tar.path) for tar in tars for text in (True, False) for key in _without_caption(tar, text)
    ]
    if silent:
        key, path = silent[0]
        yield (
            f"{pluralize(len(silent), 'sample has', 'samples have')} no caption: training goes without, the first:"
            f" {key} of {path}; read are the column caption, captions, text, prompt or txt, else these fields of a JSON"
        )


def _on_missing_captions(tars: Sequence[TarIndex]) -> Iterator[str]:
    # Texts in which no caption is found.
    silent = [(len(keys), keys[0], tar.path) for tar in tars if (keys := _without_caption(tar, True))]
    if silent:
        _, key, path = silent[0]
        yield (
            f"{pluralize(sum(count for count, *_ in silent), 'sample has', 'samples have')} a .txt or .json and no"
            f" caption in it, the first: {key} of {path}; read are the text of .txt, and caption, text or prompt of"
            " .json"
        )
    # Samples without any text, some of which are halves of samples that a tar holds apart.
    bare = [(tar, keys) for tar in tars if (keys := _without_caption(tar, False))]
    if bare:
        tar, keys = bare[0]
        apart = sum(_without_media(tar, keys) for tar, keys in bare)
        yield (
            f"{pluralize(sum(len(keys) for _, keys in bare), 'sample has', 'samples have')} no .txt or .json: training"
            f" goes without a caption, the first: {keys[0]} of {tar.path}"
        ) + (f"; {apart} of them come again in their tar, without a video: {_SORTED}" if apart else "")


def _on_media(tars: Sequence[TarIndex]) -> Iterator[str]:
    # Samples with more media than one.
    several = [(len(pairs), pairs[0], tar.path) for tar in tars if (pairs := _with_several_media(tar))]
    if several:
        _, (key, names), path = several[0]
        yield (
            f"{pluralize(sum(count for count, *_ in several), 'sample holds', 'samples hold')} several videos or"
            f" pictures, and one of each counts; the first: {key} of {path} ({', '.join(names[:4])})."
            " A key ends at the first dot of a file's name"
        )
    # Marks of single samples, each counted, with what to do about it.
    for mark, (said, advice) in _SAID.items():
        name, value = MARKS[mark]
        if marked := sum(_count_marked(tar, name, value) for tar in tars):
            verb, _, rest = said.partition(" ")
            said = f"{_SINGULAR[verb] if marked == 1 else verb} {rest}"
            yield f"{pluralize(marked, 'sample')} {said} (attributes: {name}={value} in index.parquet); {advice}"

    # Views all around, by kind.
    views: Counter[str] = Counter()
    for tar in tars:
        values = pc.map_lookup(_usable(tar)["attributes"], IMMERSIVE, "first")
        views.update(values.drop_null().to_pylist())
    for view, count in sorted(views.items()):
        yield f"{pluralize(count, 'sample')}: {view} (attributes: {IMMERSIVE} in index.parquet)"


def _usable(tar: TarIndex) -> pa.Table:
    """Return the rows of the usable samples of a tar."""
    return tar.table.filter(pc.field("reason") == "")


def _count_marked(tar: TarIndex, name: str, value: str) -> int:
    """Return the number of usable samples of a tar that have an attribute of this value."""
    rows = _usable(tar)
    return pc.sum(pc.equal(pc.map_lookup(rows["attributes"], name, "first"), value)).as_py() or 0


def _with_several_media(tar: TarIndex) -> list[tuple[str, list[str]]]:
    """Return key and media of the usable samples of a tar that hold several of the kind that counts."""
    rows = tar.table.filter((pc.field("reason") == "") & (pc.list_value_length(pc.field("members")) > 1))
    lists = rows["members"].combine_chunks()
    ends = pc.replace_substring_regex(pc.struct_field(lists.flatten(), "suffix"), r"^.*[.]", "")
    parents = pc.list_parent_indices(lists).to_numpy()[
        pc.is_in(ends, pa.array(MEDIA)).to_numpy(zero_copy_only=False)
    ]
    # Few samples hold several: only these are looked at one by one.
    chosen = rows.take(np.flatnonzero(np.bincount(parents, minlength=len(rows)) > 1))
    listed = ([one["suffix"] for one in members] for members in chosen["members"].to_pylist())
    named = zip(chosen["key"].to_pylist(), map(media_alike, listed), strict=True)
    return [(key, suffixes) for key, suffixes in named if len(suffixes) > 1]


def _count_replaced(tar: TarIndex) -> int:
    """Return the number of usable samples of a tar whose caption was no text in parts."""
    rows = _usable(tar)
    return pc.sum(pc.match_substring(rows["caption"], "\ufffd")).as_py() or 0


def _without_caption(tar: TarIndex, has_text: bool) -> list[str]:
    """Return the keys of the usable samples of a tar without a caption, of those with a .txt or .json or of others."""
    rows = tar.table.filter((pc.field("reason") == "") & (pc.field("caption_source") == "none"))
    columns = zip(rows.column("key").to_pylist(), rows.column("members").to_pylist(), strict=True)
    return [
        key
        for key, listed in columns
        if any(one["suffix"].rpartition(".")[2] in ("txt", "json") for one in listed) == has_text
    ]


def _without_media(tar: TarIndex, keys: Sequence[str]) -> int:
    """Return how many of the keys come once more in a tar, as samples that have no media."""
    lost = tar.table.filter(pc.starts_with(pc.field("reason"), NO_MEDIA))
    return pc.sum(pc.is_in(lost["key"], pa.array(keys, pa.string()))).as_py() or 0
