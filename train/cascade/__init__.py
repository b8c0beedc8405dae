"""Cascade training: degree, GPUs and start time of every module and microbatch of an iteration."""
