"""Key frames of H.264 and HEVC from which decoding cannot begin, since parameter sets changed in the packets before."""

from reelweave.loader.dataset.samples.frames.nal_units import (
    nal_bounds,
    nal_units,
    prefix_bytes,
    record_units,
)

_SETS = {"h264": (7, 8), "hevc": (32, 33, 34)}
_OWN = {"h264": (7, 8), "hevc": (33, 34)}
"""Types of parameter sets, and those that a key frame of its own needs: ITU-T H.264, table 7-1; H.265, table 7-1."""


class SetChanges:
    """Watch of the packets of one stream in coding order.

    Recorders may send a set once, where it changes, and not again with later key frames. A decoder that begins at such
    a key frame reads it by the sets of the header, mostly without an error.

    Args:
        codec: Name of the codec; others than H.264 and HEVC hold no sets.
        header: Parameter sets of the container, b"" for none.
    """

    def __init__(self, codec: str, header: bytes) -> None:
        self._codec = codec if codec in _SETS else ""
        self._has_changed = False
        self._stated = set[bytes]()
        if self._codec:
            self._prefix = prefix_bytes(header, codec)
            units = nal_units(header, None) if self._prefix is None else record_units(header, codec)
            self._stated = {unit.rstrip(b"\0") for unit in units}

    def is_entry(self, packet: bytes) -> bool:
        """Take a packet, and return whether a decoder that begins with it knows its sets."""
        if not self._codec:
            return True
        kinds = set[int]()
        for _, begin, end in nal_bounds(packet, self._prefix):
            kind = packet[begin] & 31 if self._codec == "h264" else packet[begin] >> 1 & 63
            if kind in _SETS[self._codec]:
                kinds.add(kind)
                self._has_changed |= packet[begin:end].rstrip(b"\0") not in self._stated
            elif kind < 6 or (self._codec == "hevc" and kind < 32):  # a slice
                break
        return not self._has_changed or kinds.issuperset(_OWN[self._codec])
