"""The most memory that a device has given."""

import torch


def take_peak_bytes(device: torch.device) -> int | None:
    """Bytes that were allocated at most since the last call; None on a CPU. Does not wait for the device."""
    if device.type != "cuda":
        return None
    most = torch.cuda.max_memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    return most
