"""Benchmarks of pcfed; timings are ratios that are measured in one run."""
