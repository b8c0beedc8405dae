"""Films behind the first one of a file, of which demuxers of MP4 and MOV read nothing, or not in order."""

from typing import BinaryIO, Literal

from reelweave.curate.frames.container.encryption import boxes

_MOST_INDEX_BYTES = 1 << 20  # of a fragment


def further_film(file: BinaryIO) -> Literal["unread", "tangled"] | None:
    """Return what becomes of a further film that was joined to an MP4 or MOV file; None if there is none.

    unread: it has an index of its own, which FFmpeg and players skip. tangled: its fragments begin anew in time, and
    FFmpeg sorts them among those of the first film. An init segment that is repeated within one stream is no film.
    """
    found = list(boxes(file))
    indexes = [at for at, (kind, _, _) in enumerate(found) if kind == b"moov"]
    if len(indexes) < 2:
        return None
    behind = _fragment_time(file, found[indexes[1] :])
    if behind is None:
        return "unread"
    before = _fragment_time(file, found[: indexes[1]][::-1])
    return "tangled" if before is not None and behind <= before else None


def _fragment_time(file: BinaryIO, found: list[tuple[bytes, int, int]]) -> int | None:
    """Return the time of the first fragment of these boxes in ticks (tfdt: ISO/IEC 14496-12, 8.8.12); None if none."""
    for kind, offset, size in found:
        if kind == b"moof":
            file.seek(offset)
            fragment = file.read(min(size, _MOST_INDEX_BYTES))
            at = fragment.find(b"tfdt") + 4
            length = 8 if fragment[at : at + 1] == b"\1" else 4
            return int.from_bytes(fragment[at + 4 : at + 4 + length], "big") if at >= 4 else 0
    return None
