"""Everything that numba compiles, and nothing else."""
