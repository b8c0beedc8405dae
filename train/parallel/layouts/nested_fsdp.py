"""FSDP within blocks of neighbouring ranks that run apart from each other, as cascades do."""

from torch import nn
from torch.distributed.tensor import DTensor, Replicate

from reelweave.train.config.parts import LayoutConfig
from reelweave.train.models.bundle import Bundle
from reelweave.train.parallel.layouts import pieces
from reelweave.train.parallel.layouts.fsdp import FSDP
from reelweave.train.parallel.layouts.gradient_buckets import GradientBuckets
from reelweave.train.parallel.mesh import Ranks


class NestedFSDP(FSDP):
    """FSDP whose blocks of ranks gather and reduce on their own; gradients of equal shards are summed once a step.

    The ranks of a block run the same model runs in the same order. Blocks may run different numbers of them, also none.
    """

    def __init__(self, bundle: Bundle, config: LayoutConfig, ranks: Ranks) -> None:
        parameters = bundle.trained_weights()
        wholes = {name: _replicate_parameter(parameter, ranks) for name, parameter in parameters.items()}
        super().__init__(bundle, config, ranks, wholes)
        sharded = {
            name: parameter for name, parameter in parameters.items() if isinstance(parameter, DTensor)
        }
        shards = {name: self.weights[name] for name in sharded}
        self._blocks = GradientBuckets(shards, sharded, ranks.along("dp_replicate"))
        for name, parameter in sharded.items():
            # FSDP accumulates in place, in the memory that replicas sum.
            parameter.grad = pieces.place_piece(self._gradient(name), parameter)

    @property
    def accumulates(self) -> bool:
        return False

    def before_backward(self, last: bool) -> None:
        """Do nothing: each backward reduces within the block, and blocks sum behind the step."""

    def sum_gradients(self) -> None:
        """Sum whole gradients over all ranks, and those of shards over the blocks."""
        super().sum_gradients()
        self._blocks.sum_()


def _replicate_parameter(parameter: nn.Parameter, ranks: Ranks) -> nn.Parameter:
    """Return a parameter that FSDP has sharded over a block as a shard of all blocks, in the same memory."""
    if not isinstance(parameter, DTensor):
        return parameter
    sharded = DTensor.from_local(
        pieces.local(parameter),
        ranks.weights["dp_replicate", "dp_shard"],
        (Replicate(), *parameter.placements),
        run_check=False,
        shape=parameter.shape,
        stride=parameter.stride(),
    )
    return nn.Parameter(sharded)
