"""Dolby Vision: what players without it see of a stream, by its container and by its own metadata."""

from __future__ import annotations

from dataclasses import dataclass

from av.packet import Packet
from av.video.stream import VideoStream

from reelweave.loader.dataset.samples.frames.nal_units import nal_units, prefix_bytes, without_emulation

_NEVER_COMPATIBLE = (1, 3, 5)  # profiles whose pictures hold colours of Dolby's own
_BY_ID = (10, 20)  # profiles that are so where no other system is named
_METADATA_UNIT, _METADATA_PREFIX = 62, 25
_MOST_BYTES = 16  # of metadata, in which the fields that tell the profile lie


@dataclass(frozen=True)
class DolbyVision:
    """Configuration of Dolby Vision in a stream.

    Attributes:
        profile: Profile.
        base: True if the stream holds pictures, False for an enhancement layer alone.
        compatible: System whose players show the pictures as they are meant; 0 for none.
    """

    profile: int
    base: bool = True
    compatible: int = 0

    @property
    def fault(self) -> str | None:
        """Reason why the pictures cannot be shown without Dolby Vision, or None."""
        if not self.base:
            return f"holds an enhancement layer of Dolby Vision (profile {self.profile}) without its pictures"
        if self.profile in _NEVER_COMPATIBLE or (self.profile in _BY_ID and not self.compatible):
            return (
                f"is Dolby Vision profile {self.profile}, whose colours (IPT) only Dolby Vision shows: others see green"
                " and purple; convert it first, as by `ffmpeg -i FILE -vf libplacebo=colorspace=bt709:"
                "color_primaries=bt709:color_trc=bt709:format=yuv420p -c:a copy NEW_FILE`"
            )
        return None


def without_base(packet: Packet[VideoStream]) -> str | None:
    """Return `DolbyVision.fault` of a packet of HEVC whose own metadata says profile 5, or None."""
    context = packet.stream.codec_context
    if context.codec.canonical_name != "hevc" or not packet.size:
        return None
    prefix = prefix_bytes(bytes(context.extradata or b""), "hevc")
    units = nal_units(bytes(packet), prefix)
    found = any(unit[0] >> 1 & 63 == _METADATA_UNIT and _is_profile_5(unit[2:]) for unit in units)
    return DolbyVision(5).fault if found else None


def _is_profile_5(metadata: bytes) -> bool:
    """Return whether metadata say profile 5, by the rule of FFmpeg (dovi_rpu.c) and dovi_tool.

    It is the one of profile 0 within the metadata and full range. Coefficients in floating point are never used there.
    """
    plain = without_emulation(metadata[:_MOST_BYTES])
    if plain[:1] != bytes([_METADATA_PREFIX]):
        return False
    bits = "".join(f"{byte:08b}" for byte in plain[1:])
    kind, profile, is_told = int(bits[:6] or "0", 2), bits[17:21], bits[25:26]
    is_fixed = bits[27:29] == "00"
    if kind != 2 or profile != "0000" or is_told != "1" or not is_fixed:
        return False
    zeros = bits.find("1", 29) - 29  # of an Exp-Golomb code
    return zeros >= 0 and bits[29 + 2 * zeros + 3 : 29 + 2 * zeros + 4] == "1"
