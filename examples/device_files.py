"""Many devices, each with a file of its own, in several processes.

Every device has a file with the wear of its bearings under eight loads, and bounds of its own on
the coefficients of the model that predicts it (the range that its firmware can represent). No
process reads all files: a device is made by the actor that owns it, when it takes part in a round,
and forgotten afterwards. The table shows the same training in one process and in actors of Ray,
which have the same results to the last bit.

    python examples/device_files.py [--quick]
"""

import argparse
import os
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pcfed import Agent, PCFedSplit, Problem, Ray, Result, run
from pcfed.losses import LeastSquares
from pcfed.sets import Box

LOADS = 8


@dataclass(frozen=True)
class DeviceFiles:
    """Makes the agent of a device from its file."""

    folder: Path

    def path(self, i: int) -> Path:
        """Return the file of a device."""
        return self.folder / f"device-{i}.npz"

    def write(self, devices: int) -> None:
        """Write files of devices, with data from a model that differs a little between them."""
        common = np.random.default_rng(0).uniform(0, 0.5, LOADS)
        for i in range(devices):
            rng = np.random.default_rng([1, i])
            loads = rng.uniform(0, 1, (30, LOADS))
            wear = loads @ (common + rng.normal(0, 0.1, LOADS)) + rng.normal(0, 0.05, 30)
            np.savez(self.path(i), loads=loads, wear=wear, bound=rng.choice([0.25, 0.5, 1.0]))

    def __call__(self, i: int) -> Agent:
        """Return the agent of a device."""
        with np.load(self.path(i)) as data:
            loss = LeastSquares(data["loads"], data["wear"])
            return Agent(loss, Box(0.0, float(data["bound"])), personalization=0.5)


def train(problem: Problem, rounds: int, backend: Ray | None) -> tuple[Result, float]:
    """Return the result of a training with a tenth of the devices in a round, and its seconds."""
    start = time.perf_counter()
    result = run(
        problem,
        PCFedSplit(),
        rounds=rounds,
        local_steps=5,
        participation=0.1,
        eval_every=rounds,
        backend=backend,
    )
    return result, time.perf_counter() - start


def main() -> None:
    """Train in one process and in actors, and compare."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="fewer devices and rounds")
    quick = parser.parse_args().quick
    devices, rounds = (300, 10) if quick else (5000, 30)
    with tempfile.TemporaryDirectory() as folder:
        files = DeviceFiles(Path(folder))
        files.write(devices)
        problem = Problem.lazy(devices, files)
        alone, seconds = train(problem, rounds, None)
        print(f"{devices} devices, {rounds} rounds, {os.cpu_count()} processors")
        print(f"{'processes':<12}{'seconds':>10}{'objective':>14}  same models")
        print(f"{'this one':<12}{seconds:>10.1f}{alone.history[-1].objective:>14.9f}")
        for actors in (2,) if quick else (2, 3):
            result, seconds = train(problem, rounds, Ray(actors=actors))
            same = "yes" if np.array_equal(result.models, alone.models) else "no"
            objective = result.history[-1].objective
            print(f"{f'{actors} actors':<12}{seconds:>10.1f}{objective:>14.9f}  {same}")


if __name__ == "__main__":
    main()
