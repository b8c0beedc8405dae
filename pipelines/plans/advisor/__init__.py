"""Advisor of sampling: layouts of a number of GPUs in order of their expected time, with bytes, memory and error."""
