"""Execution of cascade plans on process groups: a common order, handoffs, exact gradients."""
