"""Presets of published architectures; docs/models.md compares their parameter counts with published sizes."""

from collections.abc import Mapping

from reelweave.train.config.model import DiTConfig, MMDiTConfig, ModelConfig, STDiTConfig

PRESETS: Mapping[str, ModelConfig] = {
    # NeMo (Patel et al. 2025), table 1, with AdaLN-LoRA of section 4.5.1.
    "dit-7b": DiTConfig(hidden=4096, heads=32, layers=28, adaln_rank=256),
    "dit-28b": DiTConfig(hidden=6144, heads=48, layers=48, adaln_rank=256),
    # NeMo, table 2, names sizes but no shapes: these are ours, with all three attentions of section 4.6.
    "st-dit-7b": STDiTConfig(hidden=3072, heads=24, layers=30, adaln_rank=256, full_attention=True),
    "st-dit-12b": STDiTConfig(hidden=4096, heads=32, layers=28, adaln_rank=256, full_attention=True),
    # Wan2.1-T2V-1.3B, MLP 8960. Its blocks share one modulation; a low rank here costs about as little.
    "wan-1.3b": DiTConfig(hidden=1536, heads=12, layers=30, mlp_ratio=8960 / 1536, adaln_rank=32),
    # Stable Diffusion 3 medium.
    "mmdit-2b": MMDiTConfig(hidden=1536, heads=24, layers=24),
    # For tests and for looking around.
    "tiny-dit": DiTConfig(hidden=48, heads=2, layers=2),
    "tiny-st-dit": STDiTConfig(hidden=48, heads=2, layers=2),
    "tiny-mmdit": MMDiTConfig(hidden=48, heads=2, layers=2),
}
