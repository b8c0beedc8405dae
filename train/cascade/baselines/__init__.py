"""Planners of others to compare with: FlexSP, Arachne's genetic algorithm, CP-SAT."""
