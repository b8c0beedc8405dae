"""Edges that stay in pictures of full size, and the figures that they make: logos, marks and other static graphics."""

from reelweave.curate.filters.still_edges.figures import graphic_scores
from reelweave.curate.filters.still_edges.meter import LOOK_LONG_SIDE_PX, LOOK_PER_S, EdgeMeter, StillEdges

__all__ = ["LOOK_LONG_SIDE_PX", "LOOK_PER_S", "EdgeMeter", "StillEdges", "graphic_scores"]
