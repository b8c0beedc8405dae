"""Cursor of a stream: its position, the states that hold it, and the passes that begin there."""
