"""Plans of cascades, run on process groups: in one order, with handoffs, and with exact gradients."""
