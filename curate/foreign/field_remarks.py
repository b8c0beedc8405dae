"""Sentences on the fields of samples' JSON: what an index keeps of them, and what it leaves out."""

from collections import Counter
from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from reelweave.curate.foreign.fields import JSON, MARK_NAMES, FieldChoice, close_names
from reelweave.loader.dataset.publishing.tar_index import TarIndex
from reelweave.loader.text import pluralize

_MOST_NAMES = 12
_MAPS = ("scores", "attributes")


def field_remarks(tars: Sequence[TarIndex], is_mds: bool) -> Iterator[str]:
    """Yield what is kept, by name; what is left out, by reason; and names whose values are of two types."""
    counts: dict[str, Counter[str]] = {name: Counter() for name in _MAPS}
    sources = 0
    for tar in tars:
        rows = tar.table.filter(pc.field("reason") == "")
        for name in _MAPS:
            counts[name].update(_count_names(rows[name]))
        of_tar = pc.binary_join_element_wise(pa.scalar(tar.path), rows["key"], "/")
        sources += pc.sum(pc.not_equal(rows["source"], of_tar), min_count=0).as_py()
    for name in MARK_NAMES:
        del counts["attributes"][name]
    yield from _on_kept(counts, sources)
    yield from _on_types(counts)
    yield from _on_splits(tars)
    yield from _on_chosen(tars, counts, sources)
    left_out: dict[str, tuple[int, str, str]] = {}
    for tar in tars:
        for reason, count, first in tar.left_out:
            before, *_ = earlier = left_out.get(reason, (0, first, tar.path))
            left_out[reason] = (before + count, *earlier[1:])
    for reason, (count, first, path) in sorted(left_out.items()):
        where = "columns" if is_mds else ".json or .cls"
        yield f"{pluralize(count, 'field')} of {where} left out ({reason}), the first: {first} in {path}"


def _count_names(column: pa.ChunkedArray) -> dict[str, int]:
    """Return how many rows of a map column have each name."""
    counts: Counter[str] = Counter()
    for chunk in column.chunks:
        entries = chunk.keys.slice(
            chunk.offsets[0].as_py(), chunk.offsets[-1].as_py() - chunk.offsets[0].as_py()
        )
        counts.update({one["values"]: one["counts"] for one in entries.value_counts().to_pylist()})
    return counts


def _on_kept(counts: dict[str, Counter[str]], sources: int) -> Iterator[str]:
    listed = [f"{name} {_listed(counts[name])}" for name in _MAPS if counts[name]]
    if sources:
        listed.insert(0, f"source of {pluralize(sources, 'sample')}")
    if listed:
        yield f"fields kept (index.parquet): {'; '.join(listed)}"


def _listed(names: Counter[str]) -> str:
    shown = ", ".join(sorted(names)[:_MOST_NAMES])
    return shown + (f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else "")


def _on_types(counts: dict[str, Counter[str]]) -> Iterator[str]:
    scores, attributes = counts["scores"], counts["attributes"]
    for name in sorted(scores.keys() & attributes.keys()):
        yield (
            f"field {name} is a number in {pluralize(scores[name], 'sample')} (scores) and text in"
            f" {pluralize(attributes[name], 'sample')} (attributes): write it as one type, or select by both"
        )


def _on_splits(tars: Sequence[TarIndex]) -> Iterator[str]:
    """Yield a sentence if samples state a split that a stream of the dataset does not heed."""
    stated: Counter[str] = Counter()
    for tar in tars:
        rows = tar.table.filter((pc.field("reason") == "") & (pc.field("split") == "train"))
        words = pc.map_lookup(rows["attributes"], "split", "first").drop_null()
        stated.update({one["values"]: one["counts"] for one in words.value_counts().to_pylist()})
    others = {word: count for word, count in stated.items() if word != "train"}
    if others:
        listed = ", ".join(f"{word} {count:,}" for word, count in sorted(others.items())[:_MOST_NAMES])
        yield (
            f"{pluralize(sum(others.values()), 'sample states', 'samples state')} another split than train ({listed})"
            " and are trained on like others: `stream.where: attributes.split is null or attributes.split == 'train'`"
            " leaves them out, and --fields all,split=json.split makes tars of val alone that split"
        )


def _on_chosen(tars: Sequence[TarIndex], counts: dict[str, Counter[str]], sources: int) -> Iterator[str]:
    """Yield a sentence for each chosen field that no sample has."""
    choice = FieldChoice.parse(tars[0].fields) if tars and tars[0].fields else FieldChoice()
    names = {name for tar in tars for name in tar.names}
    for name, source in choice.chosen:
        present = sources if name == "source" else counts["scores"][name] + counts["attributes"][name]
        if not present and name != "split" and source.removeprefix(JSON) not in names:
            yield f"--fields {name}={source}: no sample has it; {close_names(source.removeprefix(JSON), names)}"
