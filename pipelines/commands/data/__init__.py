"""Commands that make and change datasets."""
