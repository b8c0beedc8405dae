"""Where a stream stands: its position, the states that hold it, and the passes that begin there."""
