"""Plans on paper: traces of steps, cost tables, simulated execution, timelines."""
