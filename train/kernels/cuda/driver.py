"""Kernel launches through the CUDA driver, for code compiled at run time without a runtime library."""

import ctypes
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from threading import RLock
from typing import Any, NoReturn

import torch

from reelweave.loader.errors import RunError
from reelweave.train.kernels.cuda.launcher import Launch, Pointers, Run, argument_blocks
from reelweave.train.kernels.cuda.rules import constant

# Constants of cuda.h.
_MULTIPROCESSORS, _MAJOR, _MINOR, _SHARED_LIMIT = 16, 75, 76, 97
_DYNAMIC_SHARED = 8
_CLUSTER_MAJOR = constant("ClusterOldest")
_STATIC_SHARED = constant("StaticBytes")
_WITHOUT_ASKING = constant("UnaskedBytes") - _STATIC_SHARED
"""Largest dynamic shared memory without a request: static memory counts towards the device's limit, too."""


class _LaunchConfig(ctypes.Structure):
    """CUlaunchConfig of cuda.h; without attributes, since a kernel names its clusters itself."""

    _fields_ = (
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared_bytes", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.c_void_p),
        ("attribute_count", ctypes.c_uint),
    )


_Call = tuple[_LaunchConfig, Any, ctypes.c_void_p, ctypes.Array[ctypes.c_void_p]]
_Prepared = tuple[list[Callable[..., None]], list[_Call]]


class TorchLauncher:
    """Launcher (`reelweave.train.kernels.cuda.launcher.Launcher`) on torch's contexts and streams.

    Contexts, kernels and occupancies are queried once. Nothing synchronizes with the device, so that launches
    after the first call can be captured into a CUDA graph.
    """

    def __init__(
        self,
        cuda: ctypes.CDLL,
        binary: Callable[[str, int], bytes],
        stream: Callable[[torch.device], int],
    ) -> None:
        """Initialize the CUDA driver.

        Args:
            cuda: the libcuda library.
            binary: returns the image of a kernel for an architecture; equal bytes are loaded once.
            stream: returns the handle of a device's current stream.
        """
        self._cuda, self._binary, self._stream = cuda, binary, stream
        self._quick = ctypes.PyDLL(cuda._name, handle=cuda._handle)
        self._call("cuInit", 0)
        # Forward and backward run in different threads.
        self._lock = RLock()
        self._contexts: dict[int, ctypes.c_void_p] = {}
        self._modules: dict[tuple[bytes, int], ctypes.c_void_p] = {}
        self._functions: dict[tuple[str, int], ctypes.c_void_p] = {}
        self._resident: dict[tuple[str, int, int, int, int], int] = {}
        self._attribute = cache(self._ask)

    def shared_limit(self, device: torch.device) -> int:
        """Return the dynamic shared memory available to a block, in bytes."""
        return self._attribute(_SHARED_LIMIT, _index(device)) - _STATIC_SHARED

    def clusters(self, device: torch.device) -> bool:
        """Return True if blocks may form clusters."""
        return self._attribute(_MAJOR, _index(device)) >= _CLUSTER_MAJOR

    def resident(
        self, kernel: str, device: torch.device, threads: int, shared_bytes: int, cluster: int = 1
    ) -> int:
        """Return the number of clusters of such blocks that are resident on the device at once."""
        key = kernel, _index(device), threads, shared_bytes, cluster
        num_clusters = self._resident.get(key)
        if num_clusters is None:
            function, count = self._function(kernel, device), ctypes.c_int()
            with self._current(device):
                if shared_bytes > _WITHOUT_ASKING:
                    # Set the limit, since a smaller value for another width would lower it again.
                    self._call("cuFuncSetAttribute", function, _DYNAMIC_SHARED, self.shared_limit(device))
                if cluster > 1:
                    config = _LaunchConfig((cluster, 1, 1), (threads, 1, 1), shared_bytes)
                    query = "cuOccupancyMaxActiveClusters"
                    self._call(query, ctypes.byref(count), function, ctypes.byref(config))
                else:
                    query = "cuOccupancyMaxActiveBlocksPerMultiprocessor"
                    self._call(query, ctypes.byref(count), function, threads, ctypes.c_size_t(shared_bytes))
            if count.value == 0:
                raise RunError(f"{kernel} does not fit a multiprocessor of {device}")
            num_clusters = (
                count.value if cluster > 1 else count.value * self._attribute(_MULTIPROCESSORS, key[1])
            )
            self._resident[key] = num_clusters
        return num_clusters

    def prepare(self, device: torch.device, launches: Sequence[Launch]) -> Run:
        """Return a function that runs the launches on the device's current stream; any thread may call it.

        Call it after `resident` with the same bytes. Argument blocks and configurations are in use during a call, in
        which other threads may run; each call takes a set that is free.

        Raises:
            RunError: the driver reports an error; the returned function, too.
        """
        context, stream = self._context(_index(device)), self._stream
        # Launches may wait for the device, and let other threads of Python run meanwhile. These two do not.
        push, pop = self._quick.cuCtxPushCurrent_v2, self._quick.cuCtxPopCurrent_v2
        launch, popped = self._cuda.cuLaunchKernelEx, ctypes.byref(ctypes.c_void_p())
        functions = [self._function(each.kernel, device) for each in launches]

        def new() -> _Prepared:
            blocks, writers = argument_blocks(launches)
            return writers, [*map(_configure, launches, functions, blocks)]

        free = [new()]

        def run(pointers: Sequence[Pointers]) -> None:
            try:
                prepared = free.pop()
            except IndexError:
                prepared = new()
            writers, calls = prepared
            # A plan may launch less than its operator has pointers for.
            for write, of_run in zip(writers, pointers, strict=False):
                if of_run:
                    write(*of_run)
            if code := push(context):
                self._refuse("cuCtxPushCurrent_v2", code)
            try:
                handle = stream(device)
                for config, at, function, parameters in calls:
                    config.stream = handle
                    if code := launch(at, function, parameters, None):
                        self._refuse("cuLaunchKernelEx", code)
            finally:
                pop(popped)
            free.append(prepared)

        return run

    def architecture(self, device: torch.device) -> int:
        """Return the compute capability, such as 90."""
        return 10 * self._attribute(_MAJOR, _index(device)) + self._attribute(_MINOR, _index(device))

    def _function(self, kernel: str, device: torch.device) -> ctypes.c_void_p:
        key = kernel, _index(device)
        if key not in self._functions:
            with self._lock, self._current(device):
                image = self._binary(kernel, self.architecture(device))
                if (image, key[1]) not in self._modules:
                    module = ctypes.c_void_p()
                    self._call("cuModuleLoadData", ctypes.byref(module), image)
                    self._modules[image, key[1]] = module
                function = ctypes.c_void_p()
                module = self._modules[image, key[1]]
                self._call("cuModuleGetFunction", ctypes.byref(function), module, kernel.encode())
                self._functions[key] = function
        return self._functions[key]

    @contextmanager
    def _current(self, device: torch.device) -> Iterator[None]:
        """Enter torch's context of the device, since a thread may have none or another device's."""
        self._call("cuCtxPushCurrent_v2", self._context(_index(device)))
        try:
            yield
        finally:
            self._call("cuCtxPopCurrent_v2", ctypes.byref(ctypes.c_void_p()))

    def _context(self, index: int) -> ctypes.c_void_p:
        if index not in self._contexts:
            with self._lock:
                context = ctypes.c_void_p()
                self._call("cuDevicePrimaryCtxRetain", ctypes.byref(context), self._ordinal(index))
                self._contexts[index] = context
        return self._contexts[index]

    def _ask(self, attribute: int, index: int) -> int:
        value = ctypes.c_int()
        self._call("cuDeviceGetAttribute", ctypes.byref(value), attribute, self._ordinal(index))
        return value.value

    def _ordinal(self, index: int) -> ctypes.c_int:
        ordinal = ctypes.c_int()
        self._call("cuDeviceGet", ctypes.byref(ordinal), index)
        return ordinal

    def _call(self, name: str, *arguments: object) -> None:
        if code := getattr(self._cuda, name)(*arguments):
            self._refuse(name, code)

    def _refuse(self, name: str, code: int) -> NoReturn:
        text = ctypes.c_char_p()
        self._cuda.cuGetErrorString(code, ctypes.byref(text))
        raise RunError(f"{name} fails: {(text.value or b'unknown error').decode()}")


def _index(device: torch.device) -> int:
    return device.index or 0


def _configure(launch: Launch, function: ctypes.c_void_p, block: ctypes.Structure) -> _Call:
    """Return the configuration of a launch, and the arguments of cuLaunchKernelEx before the last."""
    config = _LaunchConfig((*launch.grid, 1), (*launch.block, 1), launch.shared_bytes)
    parameters = (ctypes.c_void_p * 1)(ctypes.addressof(block))
    return config, ctypes.byref(config), function, parameters
