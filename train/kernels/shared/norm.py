"""Layer norm (Ba et al. 2016) or RMS norm (Zhang and Sennrich 2019) with gradients, for the references.

``fp32`` computes in the accumulator's dtype. ``eager`` rounds where PyTorch's unfused operations do: the normed
tokens, and the gradient with respect to them, have the dtype of activations.
"""

from typing import Literal, NamedTuple

import torch

from reelweave.train.kernels.shared.rows import accumulator

Numerics = Literal["eager", "fp32"]


class Normed(NamedTuple):
    """Normed tokens with the statistics that their gradients need.

    Attributes:
        n: normed tokens with weight and bias applied, in x's shape.
        mean: mean of each token, shape [..., 1]; unused by the RMS norm.
        rstd: 1 / sqrt(variance + eps), or 1 / root mean square; shape [..., 1].
    """

    n: torch.Tensor
    mean: torch.Tensor
    rstd: torch.Tensor


class Norm(NamedTuple):
    """Norm over the last dimension.

    Attributes:
        weight: [D]; None: 1.
        bias: [D]; None: 0.
        eps: added to the variance.
        rms: do not subtract the mean.
        numerics: rounding mode.
    """

    weight: torch.Tensor | None
    bias: torch.Tensor | None
    eps: float
    rms: bool
    numerics: Numerics

    def forward(self, x: torch.Tensor) -> Normed:
        """Return the normed tokens, in x's dtype for ``eager``, in the accumulator's for ``fp32``."""
        if self._by_aten:
            return Normed(*torch.native_layer_norm(x, x.shape[-1:], *self._aten_affine(x), self.eps))
        wide = x.to(accumulator(x.dtype))
        mean = wide.new_zeros(1) if self.rms else wide.mean(dim=-1, keepdim=True)
        # Two passes, since E[x^2] - E[x]^2 cancels for |mean| >> deviation.
        rstd = torch.rsqrt((wide - mean).square().mean(dim=-1, keepdim=True) + self.eps)
        return self._apply(x, mean, rstd)

    def again(self, x: torch.Tensor, mean_BL: torch.Tensor, rstd_BL: torch.Tensor) -> Normed:
        """Recompute the result of `forward` from `saved_moments`."""
        if self._by_aten:
            return self.forward(x)
        shape = (*x.shape[:-1], 1)
        mean = rstd_BL.new_zeros(1) if self.rms else mean_BL.reshape(shape)
        return self._apply(x, mean, rstd_BL.reshape(shape))

    def saved_moments(self, normed: Normed, x_BLD: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return mean (empty for the RMS norm) and rstd of each token, [B, L], in the accumulator's dtype."""
        tokens, dtype = x_BLD.shape[:-1], accumulator(x_BLD.dtype)
        rstd_BL = normed.rstd.to(dtype).reshape(tokens)
        return (rstd_BL.new_empty(0) if self.rms else normed.mean.to(dtype).reshape(tokens)), rstd_BL

    def backward(
        self, dn: torch.Tensor, x: torch.Tensor, normed: Normed
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return gradients of x, weight and bias (the latter empty without them).

        Args:
            dn: gradient of the normed tokens.
            x: input of the norm.
            normed: result of `forward`.

        Returns:
            The first in x's dtype for ``eager``, in the accumulator's for ``fp32``.
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
        """Return weight and bias in x's dtype, which ATen requires on a GPU."""
        return (
            None if self.weight is None else self.weight.to(x.dtype),
            None if self.bias is None else self.bias.to(x.dtype),
        )

    def _apply(self, x: torch.Tensor, mean: torch.Tensor, rstd: torch.Tensor) -> Normed:
        dtype = accumulator(x.dtype)
        n = (x.to(dtype) - mean) * rstd
        if self.weight is not None:
            n = n * self.weight.to(dtype)
        if self.bias is not None:
            n = n + self.bias.to(dtype)
        return Normed(n.to(x.dtype) if self.numerics == "eager" else n, mean, rstd)


def _as(parameter: torch.Tensor | None, gradient: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Return the gradient in the dtype of its parameter; empty without a parameter."""
    return x.new_empty(0) if parameter is None else gradient.to(parameter.dtype)


def empty_statistics(x_BLD: torch.Tensor, rms: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Return uninitialized tensors shaped like `Norm.saved_moments`."""
    tokens, dtype = x_BLD.shape[:-1], accumulator(x_BLD.dtype)
    return x_BLD.new_empty(0 if rms else tokens, dtype=dtype), x_BLD.new_empty(tokens, dtype=dtype)


def empty_like(parameter_D: torch.Tensor | None, x: torch.Tensor) -> torch.Tensor:
    """Return an uninitialized gradient of an optional weight."""
    return x.new_empty(0) if parameter_D is None else parameter_D.new_empty(parameter_D.shape)
