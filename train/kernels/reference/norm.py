"""The norm inside the references: layer norm (Ba et al. 2016) or RMS norm (Zhang and Sennrich 2019), with gradients.

``fp32`` does everything in the accumulator's type. ``eager`` rounds where PyTorch's own chain of operations does: the
normed tokens, and the gradient that arrives at them, have the type of the activations.
"""

from typing import Literal, NamedTuple

import torch

from train.kernels.rows import accumulator

Numerics = Literal["eager", "fp32"]


class Normed(NamedTuple):
    """Normed tokens and what their gradients need.

    Attributes:
        n: normed, weight and bias applied; of x's shape.
        mean: of each token, shape [..., 1]; unused by the RMS norm.
        rstd: 1 / sqrt(variance + eps), or 1 / root mean square; shape [..., 1].
    """

    n: torch.Tensor
    mean: torch.Tensor
    rstd: torch.Tensor


class Norm(NamedTuple):
    """A norm over the last dimension.

    Attributes:
        weight: [D]; None: 1.
        bias: [D]; None: 0.
        eps: added to the variance.
        rms: no mean is taken off.
        numerics: where numbers are rounded.
    """

    weight: torch.Tensor | None
    bias: torch.Tensor | None
    eps: float
    rms: bool
    numerics: Numerics

    def forward(self, x: torch.Tensor) -> Normed:
        """The normed tokens: of x's type in ``eager``, of the accumulator's in ``fp32``."""
        if self._by_aten:
            return Normed(*torch.native_layer_norm(x, x.shape[-1:], *self._aten_affine(x), self.eps))
        wide = x.to(accumulator(x.dtype))
        mean = wide.new_zeros(1) if self.rms else wide.mean(dim=-1, keepdim=True)
        # Two passes: the mean of squares less the square of the mean cancels where |mean| >> deviation.
        rstd = torch.rsqrt((wide - mean).square().mean(dim=-1, keepdim=True) + self.eps)
        return self._applied(x, mean, rstd)

    def again(self, x: torch.Tensor, mean_BL: torch.Tensor, rstd_BL: torch.Tensor) -> Normed:
        """What `forward` gave, from `saved` statistics."""
        if self._by_aten:
            return self.forward(x)
        shape = (*x.shape[:-1], 1)
        mean = rstd_BL.new_zeros(1) if self.rms else mean_BL.reshape(shape)
        return self._applied(x, mean, rstd_BL.reshape(shape))

    def saved(self, normed: Normed, x_BLD: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Mean (empty for the RMS norm) and rstd of each token, [B, L], in the accumulator's type."""
        tokens, dtype = x_BLD.shape[:-1], accumulator(x_BLD.dtype)
        rstd_BL = normed.rstd.to(dtype).reshape(tokens)
        return (rstd_BL.new_empty(0) if self.rms else normed.mean.to(dtype).reshape(tokens)), rstd_BL

    def backward(
        self, dn: torch.Tensor, x: torch.Tensor, normed: Normed
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Gradients of x, weight and bias (the latter empty where there is none).

        Args:
            dn: gradient of the normed tokens.
            x: what was normed.
            normed: of x.

        Returns:
            The first of x's type in ``eager``, of the accumulator's in ``fp32``.
        """
        if self._by_aten:
            weight, bias = self._aten_affine(x)
            mask = [True, weight is not None, bias is not None]
            dx, dweight, dbias = torch.ops.aten.native_layer_norm_backward(
                dn.to(x.dtype), x, x.shape[-1:], normed.mean, normed.rstd, weight, bias, mask
            )
            return dx, _as(self.weight, dweight, x), _as(self.bias, dbias, x)
        if self.numerics == "eager":
            dn = dn.to(x.dtype)
        dtype, tokens = accumulator(x.dtype), list(range(x.dim() - 1))
        dn, xhat = dn.to(dtype), (x.to(dtype) - normed.mean) * normed.rstd
        w = dn if self.weight is None else dn * self.weight.to(dtype)
        dx = w - xhat * (w * xhat).mean(dim=-1, keepdim=True)
        if not self.rms:
            dx = dx - w.mean(dim=-1, keepdim=True)
        dx = dx * normed.rstd
        dweight = _as(self.weight, (dn * xhat).sum(dim=tokens), x)
        dbias = _as(self.bias, dn.sum(dim=tokens), x)
        return (dx.to(x.dtype) if self.numerics == "eager" else dx), dweight, dbias

    @property
    def _by_aten(self) -> bool:
        return self.numerics == "eager" and not self.rms

    def _aten_affine(self, x: torch.Tensor) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        """Weight and bias in x's type: ATen takes no others on a GPU."""
        return (
            None if self.weight is None else self.weight.to(x.dtype),
            None if self.bias is None else self.bias.to(x.dtype),
        )

    def _applied(self, x: torch.Tensor, mean: torch.Tensor, rstd: torch.Tensor) -> Normed:
        dtype = accumulator(x.dtype)
        n = (x.to(dtype) - mean) * rstd
        if self.weight is not None:
            n = n * self.weight.to(dtype)
        if self.bias is not None:
            n = n + self.bias.to(dtype)
        return Normed(n.to(x.dtype) if self.numerics == "eager" else n, mean, rstd)


def _as(parameter: torch.Tensor | None, gradient: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """The gradient in the type of its parameter; empty where that is not there."""
    return x.new_empty(0) if parameter is None else gradient.to(parameter.dtype)


def empty_statistics(x_BLD: torch.Tensor, rms: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """What `Norm.saved` gives, without values."""
    tokens, dtype = x_BLD.shape[:-1], accumulator(x_BLD.dtype)
    return x_BLD.new_empty(0 if rms else tokens, dtype=dtype), x_BLD.new_empty(tokens, dtype=dtype)


def empty_like(parameter_D: torch.Tensor | None, x: torch.Tensor) -> torch.Tensor:
    """The gradient of a weight that may not be there, without values."""
    return x.new_empty(0) if parameter_D is None else parameter_D.new_empty(parameter_D.shape)
