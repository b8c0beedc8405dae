"""Blends of several datasets: blend files and the draws of an epoch."""

from reelweave.loader.blend.blend import Blend, open_blend, open_source
from reelweave.loader.blend.curriculum import Curriculum, CurriculumStage
from reelweave.loader.blend.reading import is_blend_file
from reelweave.loader.blend.tree import Leaf

__all__ = ["Blend", "Curriculum", "CurriculumStage", "Leaf", "is_blend_file", "open_blend", "open_source"]
