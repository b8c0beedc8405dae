"""References to sources, and the union of what several inputs say of each."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from reelweave.curate.sources.segments import (
    MAX_SEGMENTS,
    Segment,
    from_stored,
    segments_to_json,
    sort_segments,
)
from reelweave.loader.errors import UsageError
from reelweave.loader.text import pluralize

_SHOWN_CHARS = 60


@dataclass(frozen=True, slots=True)
class SourceRef:
    """Reference to a source, before any of it is read.

    Attributes:
        uri: Address as spelled in the input, without secrets; stored in the accounting.
        size: Bytes; 0 when a web server does not state it.
        version: Value that changes whenever the bytes may have changed.
        caption: Caption in the list that named the source, or None.
        fault: Reason why the source cannot be opened, or None.
        attributes: Further columns of the list, such as "licence".
        address: Address with a password or a signature, for opening only and never stored; else "".
        listed_in: URI of the list that named it, which limits its address; "" for an input of the user.
        segments: Segments that lists name, sorted by their spans; without any the whole film is meant.
        undone: True when the fault is one of the machine, and says nothing of the source; never stored.
        sidecars: Digest of the sidecars beside it, which changes whenever their text may have changed; "" for none, for
            sources on the web, and where a list has a caption for each clip.
        captions: All captions of the whole film, `caption` first, where the list has several.
    """

    uri: str
    size: int
    version: str
    caption: str | None = None
    fault: str | None = None
    attributes: dict[str, str] = field(default_factory=dict)
    address: str = field(default="", repr=False)
    listed_in: str = ""
    segments: tuple[Segment, ...] = ()
    undone: bool = False
    sidecars: str = ""
    captions: tuple[str, ...] = ()

    def caption_of(self, segment: int | None) -> str | None:
        """Return the caption of a segment, by its place, or of the whole film."""
        return self.caption if segment is None else self.segments[segment].caption

    def captions_of(self, segment: int | None) -> tuple[str, ...]:
        """Return all captions of the whole film where there are several; a segment has one."""
        return self.captions if segment is None else ()

    def attributes_of(self, segment: int | None) -> dict[str, str]:
        """Return the attributes of a segment, by its place, or of the whole film."""
        return (
            self.attributes if segment is None else {**self.attributes, **self.segments[segment].attributes}
        )

    def to_stored(self) -> dict[str, Any]:
        """Return what may be stored, as JSON values: without the address, which holds a password or a signature."""
        values = {field.name: getattr(self, field.name) for field in fields(self)} | {"address": ""}
        del values["undone"]
        values["segments"], values["captions"] = segments_to_json(self.segments), list(self.captions)
        # Sources without them are stored as by earlier versions.
        return {
            name: value
            for name, value in values.items()
            if value or name not in ("segments", "sidecars", "captions")
        }

    @classmethod
    def from_stored(cls, values: Mapping[str, Any]) -> "SourceRef":
        """Return the source of `to_stored`."""
        segments, captions = from_stored(values.get("segments", ())), tuple(values.get("captions", ()))
        return cls(**{**values, "segments": segments, "captions": captions})

    @property
    def location(self) -> str:
        """Address for opening the source."""
        return self.address or self.uri


def stem_of(path: str) -> str:
    """Return the path of a source without its suffix, to which those of its sidecars are added."""
    return path.rsplit(".", 1)[0] if "." in path.rsplit("/", 1)[-1] else path


class NamedSources:
    """Sources by URI, each once, with everything that inputs say of it."""

    def __init__(self) -> None:
        self._sources: dict[str, SourceRef] = {}
        self._segments: dict[str, list[Segment]] = {}
        self._other_addresses: set[str] = set()

    def add(self, source: SourceRef, entry: str) -> None:
        """Add a source, or what another input says of a known one.

        Args:
            source: The source.
            entry: The entry of a list that names it, for messages; "" for another input.

        Raises:
            UsageError: It contradicts an earlier entry.
        """
        earlier = self._sources.setdefault(source.uri, source)
        if earlier is source:
            return
        if _address_of(earlier) != _address_of(source):
            self._other_addresses.add(source.uri)
            earlier = _opened_by(earlier, source, entry)
        if (earlier.caption or source.caption) and (earlier.segments or source.segments):
            raise UsageError(
                f"list {entry}, column caption: one entry captions {source.uri} as a whole"
                f" ({_printable(earlier.caption or source.caption)}), and another names a segment of it; give every"
                " entry a start and an end, or none"
            )
        if source.segments:
            segments = self._segments.setdefault(source.uri, list(earlier.segments))
            segments += source.segments
            if len(segments) > MAX_SEGMENTS:
                raise UsageError(
                    f"list {entry}: {source.uri} has more than {MAX_SEGMENTS} segments; split the film"
                )
        self._sources[source.uri] = _join_entry(earlier, source, entry)

    def sources(self) -> list[SourceRef]:
        """Return all sources, sorted by URI, their segments sorted by their spans."""
        return [self._whole(self._sources[uri]) for uri in sorted(self._sources)]

    def notes(self) -> list[str]:
        """Return sentences on what entries share although they differ."""
        if not self._other_addresses:
            return []
        films = pluralize(len(self._other_addresses), "film is", "films are")
        return [
            f"{films} named by several addresses that differ in user, password or signature alone, the first one"
            f" {min(self._other_addresses)}: each counts once"
        ]

    def _whole(self, source: SourceRef) -> SourceRef:
        segments = self._segments.get(source.uri, source.segments)
        return replace(source, segments=sort_segments(segments)) if segments else source


def _address_of(source: SourceRef) -> str:
    return source.location.partition("#")[0]  # servers do not get the fragment


def _opened_by(earlier: SourceRef, source: SourceRef, entry: str) -> SourceRef:
    """Return a known source with the address of another entry, if only that one can be opened.

    Raises:
        UsageError: The addresses lead to different files.
    """
    if source.fault is not None:
        return earlier
    if earlier.fault is not None:
        facts = ("size", "version", "fault", "address", "listed_in", "undone", "sidecars")
        return replace(earlier, **{name: getattr(source, name) for name in facts})
    if (earlier.size, earlier.version) != (source.size, source.version):
        raise UsageError(
            f"{f'list {entry}' if entry else 'input'}: {source.uri} stands for two addresses that differ in user,"
            " password or signature alone, but not for the same file; keep one of them, or tell the files apart by"
            " another parameter or path"
        )
    return earlier


def _join_entry(earlier: SourceRef, source: SourceRef, entry: str) -> SourceRef:
    """Return a known source with the caption, attributes and segments of another entry."""
    _agree(entry, source.uri, "caption", earlier.caption, source.caption)
    for name in earlier.attributes.keys() & source.attributes.keys():
        _agree(entry, source.uri, name, earlier.attributes[name], source.attributes[name])
    earlier = (
        earlier
        if earlier.sidecars
        else replace(earlier, sidecars=source.sidecars)
        if source.sidecars
        else earlier
    )
    caption, segments = earlier.caption or source.caption, earlier.segments or source.segments
    captions = tuple(dict.fromkeys([*earlier.captions, *source.captions]))
    if captions != earlier.captions:
        earlier = replace(earlier, captions=captions)
    if source.attributes.keys() <= earlier.attributes.keys():
        if (caption, segments) == (earlier.caption, earlier.segments):
            return earlier
        return replace(earlier, caption=caption, segments=segments)
    return replace(
        earlier, caption=caption, segments=segments, attributes={**earlier.attributes, **source.attributes}
    )


def _agree(entry: str, uri: str, column: str, earlier: str | None, other: str | None) -> None:
    if earlier and other and earlier != other:
        raise UsageError(
            f"list {entry}, column {column}: {_printable(other)} contradicts {_printable(earlier)} of an earlier entry"
            f" for {uri}; keep one of them, or give each entry a start and an end"
        )


def _printable(text: str | None) -> str:
    shown = repr(text)
    return shown if len(shown) <= _SHOWN_CHARS else f"{shown[:_SHOWN_CHARS]}..."
