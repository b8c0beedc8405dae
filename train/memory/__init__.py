"""Memory of a step: predicted by a dry run without a GPU, or measured on one."""
