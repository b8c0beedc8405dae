"""Latents on disk until their videos are written, so that a failed decode loses no sampling."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import torch
import torch.distributed as dist
from safetensors import SafetensorError, safe_open
from safetensors.torch import save

from reelweave.loader.base.whole_file import whole_file
from reelweave.loader.errors import RunError, UsageError, first_line

_NAME = "latents_BCTHW"


@contextmanager
def kept_latents(
    path: Path, latents_BCTHW: torch.Tensor, described: Mapping[str, str], writes: bool = True
) -> Iterator[None]:
    """Keep latents in a file while the body decodes them and writes the videos; remove it on success.

    Args:
        path: safetensors file, written whole.
        latents_BCTHW: latents.
        described: description for `load_latents`.
        writes: True on the one rank that writes.

    Raises:
        RunError: the body failed; the message names the file. Or the file cannot be written.
    """
    if writes:
        try:
            with whole_file(path) as aside:
                # Not save_file, whose files only their owner may read, whatever the umask.
                aside.write_bytes(save({_NAME: latents_BCTHW.cpu().contiguous()}, dict(described)))
        except (OSError, SafetensorError) as error:
            raise RunError(f"the latents cannot be kept in {path}: {first_line(error)}") from error
    try:
        yield
    except Exception as error:
        # A broken collective keeps its type, by which `join` finds the rank that was lost.
        kind = RuntimeError if isinstance(error, RuntimeError) and dist.is_initialized() else RunError
        raise kind(f"{first_line(error)}; the sampled latents are kept in {path}") from error
    if writes:
        path.unlink(missing_ok=True)


def load_latents(path: Path) -> tuple[torch.Tensor, dict[str, str]]:
    """Return latents [B, C, T, H, W] and what they are of.

    Raises:
        UsageError: the file is missing or damaged, or holds no latents.
    """
    try:
        with safe_open(path, "pt") as file:
            return file.get_tensor(_NAME), dict(file.metadata() or {})
    except (OSError, SafetensorError) as error:
        raise UsageError(f"{path} holds no sampled latents: {first_line(error)}") from error
