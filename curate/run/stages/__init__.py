"""Stages over clips and over pairs of clips: what workers do, which models they load, what results depend on."""
