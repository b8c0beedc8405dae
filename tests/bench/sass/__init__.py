"""Analysis of disassembled kernels (SASS of sm_90): text, execution of the integer path, and counts."""
