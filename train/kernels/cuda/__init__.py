"""The kernels of csrc/: their build, their launch and their library."""
