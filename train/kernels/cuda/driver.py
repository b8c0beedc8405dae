"""Kernel launches through the CUDA driver, for code compiled at run time without a runtime library."""

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from threading import RLock

import torch

from reelweave.loader.errors import RunError
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

    def run(
        self,
        kernel: str,
        device: torch.device,
        args: ctypes.Structure,
        grid: tuple[int, int],
        block: tuple[int, int],
        shared_bytes: int = 0,
    ) -> None:
        """Launch the kernel on the device's current stream, after `resident` with the same bytes.

        Raises:
            RunError: the driver reports an error.
        """
        function = self._function(kernel, device)
        pointers = (ctypes.c_void_p * 1)(ctypes.addressof(args))
        stream = ctypes.c_void_p(self._stream(device))
        with self._current(device):
            self._call("cuLaunchKernel", function, *grid, 1, *block, 1, shared_bytes, stream, pointers, None)

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
        index = _index(device)
        if index not in self._contexts:
            with self._lock:
                context = ctypes.c_void_p()
                self._call("cuDevicePrimaryCtxRetain", ctypes.byref(context), self._ordinal(index))
                self._contexts[index] = context
        self._call("cuCtxPushCurrent_v2", self._contexts[index])
        try:
            yield
        finally:
            self._call("cuCtxPopCurrent_v2", ctypes.byref(ctypes.c_void_p()))

    def _ask(self, attribute: int, index: int) -> int:
        value = ctypes.c_int()
        self._call("cuDeviceGetAttribute", ctypes.byref(value), attribute, self._ordinal(index))
        return value.value

    def _ordinal(self, index: int) -> ctypes.c_int:
        ordinal = ctypes.c_int()
        self._call("cuDeviceGet", ctypes.byref(ordinal), index)
        return ordinal

    def _call(self, name: str, *arguments: object) -> None:
        code = getattr(self._cuda, name)(*arguments)
        if code:
            text = ctypes.c_char_p()
            self._cuda.cuGetErrorString(code, ctypes.byref(text))
            raise RunError(f"{name} fails: {(text.value or b'unknown error').decode()}")


def _index(device: torch.device) -> int:
    return device.index or 0
