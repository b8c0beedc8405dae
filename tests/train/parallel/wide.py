"""Float64 throughout models of diffusers, which narrow to float32 here and there (rotary positions, RMS norms)."""

import torch
from torch.overrides import TorchFunctionMode


class Wide(TorchFunctionMode):
    """Leaves float64 tensors as they are where code would make them float32.

    Rounding to float32 in the middle of a model turns another order of sums into differences of 1e-8. Without it,
    equality of layouts can be asked for to 1e-10, whatever the model.
    """

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if args and isinstance(args[0], torch.Tensor) and args[0].dtype == torch.float64:
            if function is torch.Tensor.float:
                return args[0]
            if function in (torch.Tensor.to, torch.linalg.vector_norm):
                args = tuple(map(_wide, args))
                kwargs = {name: _wide(value) for name, value in kwargs.items()}
        return function(*args, **kwargs)


def run_wide(block: torch.nn.Module) -> None:
    """Lets a block run under `Wide` by itself, also where a backward computes it again."""
    theirs = block.forward

    def forward(*args, **kwargs):
        with Wide():
            return theirs(*args, **kwargs)

    block.forward = forward


def _wide(argument):
    return torch.float64 if argument is torch.float32 else argument
