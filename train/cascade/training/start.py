"""Setup of cascade training."""

from typing import TYPE_CHECKING

import torch

from reelweave.loader.errors import UsageError
from reelweave.train.config.parts import CascadesConfig
from reelweave.train.parallel.layouts.parallel_model import ParallelModel

if TYPE_CHECKING:
    from reelweave.train.cascade.training.cascades import Cascades


def run_by_cascades(layout: ParallelModel, config: CascadesConfig) -> "Cascades":
    """Make a layout run its steps by cascade plans; a collective.

    Raises:
        UsageError: a planner library is missing, or the model does not support the plans.
    """
    try:
        from reelweave.train.cascade.training.cascades import Cascades
    except ImportError as error:
        raise UsageError(
            f"parallel.schedule=cascade needs {error.name}: pip install 'reelweave[cascade]'"
        ) from error
    if layout.bundle.dit.reads_picture:
        raise UsageError(
            "parallel.schedule=cascade encodes clips, and this image-to-video model also reads each first frame with"
            " grey frames behind it: set parallel.schedule=static"
        )
    # A rank without a DiT in a step joins the gradient sum with zeros.
    for parameter in layout.bundle.trained_weights().values():
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
    layout.executor = cascades = Cascades(layout.bundle, config, layout.ranks.world)
    return cascades
