"""NAL units in packets of H.264 and HEVC, as the loader reads them."""

from reelweave.loader.dataset.samples.frames.nal_units import (
    nal_bounds,
    nal_units,
    prefix_bytes,
    without_emulation,
)

__all__ = ["nal_bounds", "nal_units", "prefix_bytes", "without_emulation"]
