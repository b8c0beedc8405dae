"""Baseline planners: FlexSP, Arachne's genetic algorithm, dual approximation, CP-SAT."""
