"""Foundations without video: arrays, random words, files, shared memory, text of others."""
