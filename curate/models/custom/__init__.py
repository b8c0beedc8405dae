"""Stages over clips that users write: what they derive from, where their code is found, how it is configured."""
