"""The start of training by cascades."""

from typing import TYPE_CHECKING

import torch

from loader.errors import UsageError
from train.config.run import TrainConfig
from train.parallel.layout import Layout

if TYPE_CHECKING:
    from train.cascade.training.cascades import Cascades


def run_by_cascades(layout: Layout, config: TrainConfig) -> "Cascades":
    """Make a layout run its steps by plans of cascades; a collective.

    Raises:
        UsageError: the planner's libraries are missing, or the plans do not fit the model.
    """
    try:
        from train.cascade.training.cascades import Cascades
    except ImportError as error:
        raise UsageError(
            f"parallel.schedule=cascade needs {error.name}: pip install reelweave[cascade]"
        ) from error
    # A rank without a DiT in a step takes part in the sum as well.
    for parameter in layout.bundle.trained().values():
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
    layout.executor = cascades = Cascades(layout.bundle, config, layout.ranks.world)
    return cascades
