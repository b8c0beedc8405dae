"""Logs of a run: metrics as JSON lines, console, TensorBoard, Weights & Biases, losses by bucket."""
