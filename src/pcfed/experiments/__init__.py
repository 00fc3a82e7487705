"""The experiments of the paper, and ours: presets, runner, figures."""
