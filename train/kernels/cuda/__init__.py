"""Build, launch and library of the kernels in csrc/."""
