"""Notes on the packets of a source that is scanned in parts: joined, they are those of one scan of the whole."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from reelweave.curate.cut.copy import SourceFormat


@dataclass(frozen=True)
class PacketNotes:
    """Notes on packets and frames, without the bytes of packets.

    Attributes:
        flags: uint8 [packets]: flags of each packet in decoding order.
        positions: int64 [frames]: number of the packet of each frame in shown order; -1 where it is not known.
        fault: Reason why nothing is copied, or None.
        changes: True where parameter sets change.
        form: Form of the source by the first frame, as JSON values.
    """

    flags: NDArray[np.uint8]
    positions: NDArray[np.int64]
    fault: str | None
    changes: bool
    form: dict[str, Any]

    def values(self) -> dict[str, Any]:
        """Return all but the arrays as JSON values."""
        return {"packet_fault": self.fault, "sets_change": self.changes, "form": self.form}

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return the arrays by name."""
        return {"packet_flags": self.flags, "frame_packets": self.positions}

    @classmethod
    def read(cls, values: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> Self | None:
        """Return the notes of `values` and `arrays`, or None where there are none."""
        if "packet_flags" not in arrays:
            return None
        fault, changes, form = (values[name] for name in ("packet_fault", "sets_change", "form"))
        return cls(arrays["packet_flags"], arrays["frame_packets"], fault, changes, dict(form))


def join_notes(parts: Sequence[PacketNotes]) -> PacketNotes:
    """Return the notes of adjacent parts as one scan of the whole makes them, where no parameter sets change.

    Args:
        parts: Notes of all parts in order, each of its own packets and frames only.
    """
    bases = first_packets(parts)
    positions = [
        np.where(part.positions < 0, -1, part.positions + base)
        for part, base in zip(parts, bases, strict=True)
    ]
    return PacketNotes(
        np.concatenate([part.flags for part in parts]),
        np.concatenate(positions),
        next((part.fault for part in parts if part.fault is not None), None),
        any(part.changes for part in parts),
        parts[0].form,
    )


def first_packets(parts: Sequence[PacketNotes]) -> list[int]:
    """Return the number of the first packet of each part in the source."""
    return list(itertools.accumulate((len(part.flags) for part in parts[:-1]), initial=0))


def form_values(form: SourceFormat) -> dict[str, Any]:
    """Return the form of a source as JSON values."""
    return {**asdict(form), "header": form.header.hex()}


def form_of_values(values: Mapping[str, Any]) -> SourceFormat:
    """Return the form of a source from JSON values."""
    return SourceFormat(**{**values, "header": bytes.fromhex(values["header"])})
