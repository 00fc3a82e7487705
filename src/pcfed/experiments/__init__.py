"""The experiments of the paper, and ours: presets, runner, figures."""

from pcfed.extras import require

require(__name__, "experiments", "threadpoolctl")
