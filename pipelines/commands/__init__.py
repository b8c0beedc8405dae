"""One module per command of `reelweave`."""
