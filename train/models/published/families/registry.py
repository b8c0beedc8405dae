"""The published families, and nowhere else: whatever asks for one finds it here by its class in diffusers."""

from reelweave.train.models.published.families.cogvideox import CogVideoX
from reelweave.train.models.published.families.cosmos import Cosmos
from reelweave.train.models.published.families.hunyuan import HunyuanVideo
from reelweave.train.models.published.families.wan import Wan
from reelweave.train.models.published.shared import DiffusersDenoiser
from reelweave.train.models.published.vae_base import PublishedVae

FAMILIES: tuple[type[DiffusersDenoiser], ...] = (Wan, CogVideoX, HunyuanVideo, Cosmos)

TRANSFORMERS = {family.source: family for family in FAMILIES}
"""Families by the class of their transformer in diffusers."""

VAES: dict[str, type[PublishedVae]] = {family.vae.source: family.vae for family in FAMILIES}
"""VAEs by their class in diffusers."""
