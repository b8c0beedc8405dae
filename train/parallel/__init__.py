"""How the processes of one run work together; model code knows nothing of it."""
