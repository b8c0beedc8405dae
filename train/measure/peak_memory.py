"""Peak memory of a device."""

import torch


def take_peak_bytes(device: torch.device) -> int | None:
    """Return and reset the peak of allocated bytes, without synchronization; None on a CPU."""
    if device.type != "cuda":
        return None
    peak = torch.cuda.max_memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    return peak
