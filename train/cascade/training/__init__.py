"""Training by cascades: what a step holds, what it costs, its plan, and what each cascade of it computes."""
