"""File of an LPIPS backbone: what is known of it before torch is imported."""

from reelweave.loader.errors import UsageError, first_line
from reelweave.train.config.vae import LpipsConfig

MAX_BACKBONE_BYTES = 1 << 30
PUBLISHED = {"vgg": "vgg16", "alex": "alexnet", "squeeze": "squeezenet1_1"}
"""Names in torchvision of the networks of LPIPS."""


def check_backbone_file(config: LpipsConfig, key: str) -> None:
    """Check that there is a file of the size of a backbone, without reading it.

    Args:
        config: configuration of LPIPS.
        key: what the person calls the file, for messages.

    Raises:
        UsageError: there is none.
    """
    try:
        if config.backbone.stat().st_size > MAX_BACKBONE_BYTES:
            raise UsageError(f"{key}: {config.backbone} is larger than {MAX_BACKBONE_BYTES >> 20} MiB")
    except OSError as error:
        raise unreadable(config, key, first_line(error)) from error


def unreadable(config: LpipsConfig, key: str, reason: str) -> UsageError:
    """Return the error for a file that holds no backbone."""
    return UsageError(
        f"{key}={str(config.backbone)!r} could not be read ({reason}); give the file of torchvision's"
        f" {PUBLISHED[config.network]} weights, .pth or .safetensors"
    )
