"""Pipeline parallelism: stages of blocks, and the order of their forwards and backwards."""
