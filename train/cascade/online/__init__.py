"""Online correction of plans: measured cascades, stragglers and lost GPUs."""
