"""Benchmarks of runs in the actors of a Ray cluster."""
