"""Shards as tars: headers, samples, members, media, Energon's sidecars."""
