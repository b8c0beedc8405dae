"""Fused norm and modulation: operators, references and the kernels of csrc/."""
