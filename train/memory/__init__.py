"""Memory of a step, counted without a GPU or measured with one."""
