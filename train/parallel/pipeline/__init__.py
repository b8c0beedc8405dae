"""Pipeline parallelism: stages of blocks, and the order of forwards and backwards."""
