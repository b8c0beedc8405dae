"""Compilation of csrc/ by NVRTC, which torch's CUDA wheels include, with a cache on disk.

A unit is compiled as a whole and contains only a family's kernels of the requested dtypes. A whole family
takes ten times as long.
"""

import ctypes
import logging
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch

from reelweave.loader.base.whole_file import whole_file
from reelweave.loader.errors import RunError
from reelweave.train.kernels.cuda.sources import CSRC, cache_folder, digest

_TYPES = {"f32": "float", "bf16": "__nv_bfloat16", "f16": "__half"}
_GATED = {"layer_norm_modulate": "false", "gate_residual_norm_modulate": "true"}
_PAIR = re.compile(
    r"^(?P<family>[a-z_]+?)_(?:forward|backward)_\w*?(?P<x>bf16|f16|f32)_(?P<m>bf16|f16|f32)(?:_[ev]|$)"
)
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Unit:
    """Kernels compiled together.

    Attributes:
        name: base name of the cached file.
        source: CUDA C++ that includes files of csrc/.
    """

    name: str
    source: str


def unit_of(kernel: str) -> Unit:
    """Return the unit of a kernel: its family at its dtypes, or else the file of csrc/ that its name begins with."""
    match = _PAIR.match(kernel)
    if match and match["family"] in _GATED:
        family, x, m = match["family"], match["x"], match["m"]
        instances = f"REEL_INSTANCES({family}, {_GATED[family]}, {x}, {_TYPES[x]}, {m}, {_TYPES[m]})"
        return Unit(f"{family}_{x}_{m}", f'#include "instances.cuh"\n{instances}\n')
    source = next(path for path in CSRC.glob("*.cu") if kernel.startswith(f"{path.stem}_"))
    return Unit(source.stem, f'#include "{source.name}"\n')


def binary(unit: Unit, architecture: int, folder: Path | None = None) -> bytes:
    """Return the unit for sm_`architecture`, cached: a cubin, or PTX if NVRTC is older than the GPU.

    Args:
        unit: unit to compile.
        architecture: compute capability, such as 90.
        folder: cache folder; None: `cache_folder`.

    Raises:
        RunError: it does not compile.
    """
    target_name = target(architecture)
    path = (
        folder or cache_folder()
    ) / f"{unit.name}-{target_name}-{digest(unit.source, target_name, _version())}.bin"
    if path.exists():
        return path.read_bytes()
    compiled = compile_unit(unit, target_name)
    try:
        with whole_file(path) as aside:
            aside.write_bytes(compiled)
    except OSError as error:
        _log.warning("kernels: %s cannot be kept in %s: %s", unit.name, path.parent, error)
    return compiled


def compile_unit(unit: Unit, target: str) -> bytes:
    """Compile the unit for ``sm_90`` (a cubin) or ``compute_90`` (PTX).

    Raises:
        RunError: it does not compile.
    """
    library, program = _library(), ctypes.c_void_p()
    options = [f"-arch={target}", "-std=c++17", f"-I{CSRC}", f"-I{headers()}"]
    arguments = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
    _check(library.nvrtcCreateProgram(ctypes.byref(program), unit.source.encode(), b"unit.cu", 0, None, None))
    try:
        if library.nvrtcCompileProgram(program, len(options), arguments):
            log = _output(library.nvrtcGetProgramLogSize, library.nvrtcGetProgramLog, program).decode()
            raise RunError(f"NVRTC refuses {unit.name} for {target}: {log.strip()[:500]}")
        kind = "CUBIN" if target.startswith("sm_") else "PTX"
        return _output(getattr(library, f"nvrtcGet{kind}Size"), getattr(library, f"nvrtcGet{kind}"), program)
    finally:
        library.nvrtcDestroyProgram(ctypes.byref(program))


@cache
def target(architecture: int) -> str:
    """Return the target: the architecture itself, or PTX of the newest that NVRTC supports."""
    count = ctypes.c_int()
    _check(_library().nvrtcGetNumSupportedArchs(ctypes.byref(count)))
    supported = (ctypes.c_int * count.value)()
    _check(_library().nvrtcGetSupportedArchs(supported))
    if architecture in supported:
        return f"sm_{architecture}"
    return f"compute_{max(older for older in supported if older < architecture)}"


def lacks() -> str | None:
    """Return the reason why NVRTC cannot be used here; None if it can."""
    if _place() is None:
        return "no NVRTC: PyTorch's CUDA wheels carry it"
    if headers() is None:
        return "no cuda_bf16.h: PyTorch's CUDA wheels carry it"
    return None


@cache
def headers() -> Path | None:
    """Return the folder of CUDA headers in torch's wheels or a toolkit."""
    return _first("include", "cuda_bf16.h")


@cache
def _place() -> Path | None:
    return _first("lib", "libnvrtc.so.*") or _first("lib64", "libnvrtc.so.*")


def _first(folder: str, pattern: str) -> Path | None:
    wheels = Path(torch.__file__).parents[1] / "nvidia"
    for root in (*sorted(wheels.glob(f"*/{folder}")), Path("/usr/local/cuda", folder)):
        if paths := sorted(root.glob(pattern)):
            return root if folder == "include" else paths[-1]
    return None


@cache
def _library() -> ctypes.CDLL:
    if lack := lacks():
        raise RunError(lack)
    return ctypes.CDLL(str(_place()))


@cache
def _version() -> str:
    major, minor = ctypes.c_int(), ctypes.c_int()
    _check(_library().nvrtcVersion(ctypes.byref(major), ctypes.byref(minor)))
    return f"{major.value}.{minor.value}"


def _output(size_of: Callable[..., int], read: Callable[..., int], program: ctypes.c_void_p) -> bytes:
    size = ctypes.c_size_t()
    _check(size_of(program, ctypes.byref(size)))
    content = ctypes.create_string_buffer(size.value)
    _check(read(program, content))
    return content.raw


def _check(code: int) -> None:
    if code:
        describe = _library().nvrtcGetErrorString
        describe.restype = ctypes.c_char_p
        raise RunError(f"NVRTC fails: {describe(code).decode()}")
