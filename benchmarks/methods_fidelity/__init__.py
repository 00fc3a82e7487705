"""Methods against published numbers: ``python -m benchmarks.methods_fidelity``."""
