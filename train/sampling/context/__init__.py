"""Context-parallel sampling: the tokens of a video over several ranks."""
