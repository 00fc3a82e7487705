"""Timings of pcfed, always as ratios measured in one run."""
