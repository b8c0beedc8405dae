"""Native names of all families that have any, for what a file of another family is."""

from reelweave.train.models.published.names.cogvideox import COGVIDEOX_NAMES
from reelweave.train.models.published.names.cosmos import COSMOS_1_NAMES, COSMOS_2_NAMES
from reelweave.train.models.published.names.hunyuan import HUNYUAN_NAMES
from reelweave.train.models.published.names.native import NativeNames
from reelweave.train.models.published.names.wan import WAN_NAMES

NAMES: tuple[NativeNames, ...] = (WAN_NAMES, HUNYUAN_NAMES, COGVIDEOX_NAMES, COSMOS_1_NAMES, COSMOS_2_NAMES)
