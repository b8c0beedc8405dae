"""Choice of the weights that weight decay shrinks, by the kind of their layer."""

from torch import nn
from torch.nn.modules.conv import _ConvNd

_LAYERS = (nn.Linear, nn.Bilinear, _ConvNd, nn.Embedding)
_JOINT = "in_proj_weight"  # queries, keys and values of `nn.MultiheadAttention`, which is no linear layer


def decayed_weights(module: nn.Module) -> set[str]:
    """Return the names of the parameters that weight decay acts on.

    These are the weights of linear, convolution and embedding layers, adapters included. All else stays: biases,
    gains of norms, tables of scales and shifts, and learned positions. Their number of dimensions says nothing:
    a gain may be [C, 1, 1, 1], and a table [1, 6, D].
    """
    names = set()
    for path, layer in module.named_modules():
        for name, parameter in layer.named_parameters(path, recurse=False):
            kind = name.removeprefix(f"{path}.")
            weight = kind == "weight" and isinstance(layer, _LAYERS)
            adapter = "lora_" in name and parameter.ndim > 1
            if weight or adapter or kind == _JOINT:
                names.add(name)
    return names
