"""One iteration as cascades: which module runs on which microbatch, with how many GPUs, on which of them, and when."""
