"""One optimizer step: losses of its samples, what gradients are divided by, learning rate, optimizer, average."""
