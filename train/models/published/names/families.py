"""Native names of all families that have any, for what a file of another family is."""

from reelweave.train.models.published.names.native import NativeNames
from reelweave.train.models.published.names.wan import WAN_NAMES

NAMES: tuple[NativeNames, ...] = (WAN_NAMES,)
