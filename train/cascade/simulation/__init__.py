"""Planning without GPUs: traces of steps, cost tables, simulated execution, timelines."""
