"""Films of which the last part is missing, by the sizes that their containers state; FFmpeg reads what there is."""

EBML, SEGMENT, CLUSTER = 0x1A45DFA3, 0x18538067, 0x1F43B675
_MOST_ID_BYTES = 4
_FRAGMENT_KINDS = (b"moof", b"mdat")


def cut_off(media: bytes | memoryview) -> str | None:
    """Return words for what is missing at the end of Matroska, WebM or fragmented MP4; None where nothing is known.

    Elements of live recorders that state no size promise nothing. Where the file ends behind its pictures, as within
    an index of them, no picture is missing.
    """
    if bytes(media[:4]) == EBML.to_bytes(4, "big"):
        return "its Matroska promises more than is there" if _ends_within_cluster(media) else None
    return "its last fragment is not whole" if _ends_within_fragment(media) else None


def _ends_within_cluster(media: bytes | memoryview) -> bool:
    """Return whether a cluster, or the segment behind the last one, is not whole: RFC 9559."""
    at, segment_end, last = 0, 0, 0
    while at < len(media) and (head := read_head(media, at)) is not None:
        element, size, content = head
        if element == SEGMENT:
            segment_end = 0 if size is None else content + size
            at = content
            continue
        if size is None:
            return False
        last, at = element, content + size
    return last == CLUSTER and max(at, segment_end) > len(media)


def read_head(media: bytes | memoryview, at: int) -> tuple[int, int | None, int] | None:
    """Return ID and size of an element of Matroska, and where its content begins; None for no element.

    The size is None where the element states none.
    """
    if at >= len(media):
        return None
    id_bytes = 9 - media[at].bit_length()
    size_at = at + id_bytes
    if id_bytes > _MOST_ID_BYTES or size_at >= len(media) or not media[size_at]:
        return None
    size_bytes = 9 - media[size_at].bit_length()
    mask = (1 << 7 * size_bytes) - 1
    size = int.from_bytes(media[size_at : size_at + size_bytes], "big") & mask
    return int.from_bytes(media[at:size_at], "big"), None if size == mask else size, size_at + size_bytes


def _ends_within_fragment(media: bytes | memoryview) -> bool:
    """Return whether a fragment of MP4 is not whole (ISO/IEC 14496-12, 8.8); elsewhere its index counts the frames."""
    at, is_fragmented, last = 0, False, b""
    while at + 8 <= len(media):
        size, last = int.from_bytes(media[at : at + 4], "big"), bytes(media[at + 4 : at + 8])
        if size == 1:
            size = int.from_bytes(media[at + 8 : at + 16], "big")
        if size < 8:
            return False
        is_fragmented |= last == b"moof" or (last == b"moov" and b"mvex" in bytes(media[at : at + size]))
        at += size
    return is_fragmented and last in _FRAGMENT_KINDS and at > len(media)
