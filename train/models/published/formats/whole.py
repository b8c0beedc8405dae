"""Files of whole transformers by their native names, in and out."""

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

from reelweave.loader.errors import UsageError
from reelweave.train.models.published.names.families import NAMES
from reelweave.train.models.published.names.native import Held, NativeNames, listed

_PREFIXES = ("model.diffusion_model.", "model.model.", "diffusion_model.", "module.")
"""Prefixes that tools put before all names of a transformer."""
_SCALED = re.compile(r"scaled_fp8$|\.(scale_weight|scale_input|weight_scale|input_scale|comfy_quant)$")
_ADDRESS = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+:)/+")
PICKLES = frozenset({".bin", ".ckpt", ".pkl", ".pt", ".pth"})
"""Endings of files that run code when they are read."""


def weight_files(path: Path, key: str) -> list[Path]:
    """Return the safetensors files of a transformer: one, or all of a folder.

    Args:
        path: file or folder.
        key: configuration key, for errors.

    Raises:
        UsageError: there are none, or the file is a pickle.
    """
    check_no_pickle(path, key)
    if not path.is_dir():
        if not path.is_file():
            raise UsageError(f"{key}={absent(path)}")
        return [path]
    if files := sorted(path.glob("*.safetensors")):
        return files
    inner = path / "transformer"
    way = f"name {inner}" if inner.is_dir() else "name the file, or its folder"
    raise UsageError(f"{key}={str(path)!r} is a folder without safetensors files: {way}")


def absent(path: Path) -> str:
    """Return a path where nothing is, and what to do, in words."""
    # A path has one slash less than the address that was written.
    if address := _ADDRESS.match(str(path)):
        whole = f"{address[1]}//{str(path)[len(address[0]) :]}"
        return f"{whole} is an address, and a file of this machine belongs here: copy it"
    return f"{path} does not exist; check the path"


def check_no_pickle(path: Path, key: str) -> None:
    """Refuse a file that runs code when it is read.

    Raises:
        UsageError: it is one, by its ending.
    """
    if path.suffix in PICKLES:
        raise UsageError(
            f"{key}={str(path)!r} is a pickle, which can run code when it is read: take its safetensors file, or"
            " convert it where you trust it (torch.load with weights_only=True, safetensors.torch.save_file)"
        )


def is_float(dtype: str) -> bool:
    """Return whether a type of safetensors, such as BF16, holds floating-point numbers."""
    return dtype.startswith(("F", "BF"))


def native_weights(names: NativeNames, state: Iterable[str]) -> dict[str, Held]:
    """Return what each tensor of a file of a whole transformer holds.

    Args:
        names: names of its family.
        state: its tensors by their names in diffusers.

    Raises:
        UsageError: some have no native name.
    """
    return {names.prefix + held.native: held for held in names.hold(state)}


def read_whole(
    files: Iterable[Path], state: Mapping[str, torch.Tensor], names: NativeNames | None, key: str
) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the weights of a transformer by their names in diffusers, mapped where nothing changes its place.

    Args:
        files: its files, with native names or those of diffusers.
        state: tensors of the model, of which only names and shapes are read.
        names: names of its family; None: those of diffusers alone are known.
        key: configuration key, for errors.

    Raises:
        UsageError: tensors are missing, unknown or of another shape; all of them are named.
    """
    with ExitStack() as stack:
        opened = [stack.enter_context(safe_open(path, "pt")) for path in files]
        given = _stored(opened, key)
        held = [_as_published(state)]
        if names is not None:
            native = names.hold(state)
            held += [native, names.repackage(native)]
        forms = [(each, prefix) for each in held for prefix in _prefixes(names)]
        expected, prefix = max(
            forms, key=lambda form: sum(form[1] + each.native in given for each in form[0])
        )
        _check(given, expected, prefix, state, names, key)
        for each in expected:
            tensor = given[prefix + each.native].get_tensor(prefix + each.native)
            yield from zip(
                each.sources, each.split(tensor, [len(state[name]) for name in each.sources]), strict=True
            )


def _as_published(state: Iterable[str]) -> list[Held]:
    return [Held(name, (name,), ((0, 0),)) for name in state]


def _prefixes(names: NativeNames | None) -> list[str]:
    return list(dict.fromkeys(["", *([] if names is None else [names.prefix]), *_PREFIXES]))


def _stored(opened: Iterable[Any], key: str) -> dict[str, Any]:
    """Return the open file of each tensor."""
    given: dict[str, Any] = {}
    for file in opened:
        for name in file.keys():  # noqa: SIM118 - no mapping
            if name in given:
                raise UsageError(f"{key}: {name} is in two files of the folder: leave one of them out")
            given[name] = file
    return given


def _check(
    given: Mapping[str, Any],
    expected: list[Held],
    prefix: str,
    state: Mapping[str, torch.Tensor],
    names: NativeNames | None,
    key: str,
) -> None:
    if scaled := [name for name in given if _SCALED.search(name)]:
        raise UsageError(
            f"{key}: its weights are quantized, with scales beside them ({listed(scaled)}): take the bfloat16 or"
            " float16 file"
        )
    if lora := [name for name in given if ".lora_" in name]:
        raise UsageError(
            f"{key} holds adapters ({listed(lora)}): weights of the whole model belong here, and adapters into"
            " lora.start_from, or `sample --lora`"
        )
    needed = {prefix + held.native: _expected_shape(held, state) for held in expected}
    unknown = given.keys() - needed.keys()
    if not needed.keys() & given.keys() and (family := _family(given)) is not None:
        raise UsageError(f"{key} holds weights of {family} ({listed(given)}), and the model is another")
    if names is not None:
        unknown = {name for name in unknown if not names.is_computed(name)}
    shapes = {name: given[name].get_slice(name).get_shape() for name in needed.keys() & given.keys()}
    wrong = [
        f"{name} ({shape} instead of {list(needed[name])})"
        for name, shape in shapes.items()
        if shape != list(needed[name])
    ]
    problems = {
        "lacks": needed.keys() - given.keys(),
        "has unknown": unknown,
        "has of another shape": wrong,
    }
    integers = [
        f"{name} ({dtype})"
        for held in expected
        for name in [prefix + held.native]
        if name in given and state[held.sources[0]].is_floating_point()
        for dtype in [given[name].get_slice(name).get_dtype()]
        if not is_float(dtype)
    ]
    if integers:
        raise UsageError(
            f"{key}: its weights are whole numbers, as quantized files have them ({listed(integers)}): take the"
            " bfloat16 or float16 file"
        )
    found = [f"{problem} {len(each):,} ({listed(each)})" for problem, each in problems.items() if each]
    if found:
        raise UsageError(
            f"{key}: of the {len(needed):,} tensors of this model the file {', '.join(found)}: take the weights of the"
            " model that config.json of model.name describes"
        )


def _family(given: Iterable[str]) -> str | None:
    """Return the family whose native names most of a file's tensors have; None: there is none."""
    stems = list(given)
    for names in NAMES:
        for prefix in _prefixes(names):
            if names.known(stem.removeprefix(prefix) for stem in stems) > len(stems) / 2:
                return names.family
    return None


def _expected_shape(held: Held, state: Mapping[str, torch.Tensor]) -> tuple[int, ...]:
    first = state[held.sources[0]].shape
    if len(held.sources) == 1:
        return tuple(first)
    return (sum(len(state[source]) for source in held.sources), *first[1:])
