"""Fuzz one reader, or all one after another: python -m fuzz [SECONDS [TARGET]].

Inputs that found new code stay in .fuzz/corpus, those that break a contract in .fuzz/findings.
"""

from __future__ import annotations

import subprocess
import sys
import warnings
from pathlib import Path

HOME = Path(".fuzz")


def fuzz(name: str, seconds: int) -> None:
    """Fuzz one reader in this process, which ends with an error at the first finding."""
    import atheris  # only in the environment of make fuzz

    with atheris.instrument_imports(include=["pcfed", "tomllib", "json"]):
        from fuzz.targets import SEEDS, TARGETS
    warnings.simplefilter("ignore")
    corpus, findings = HOME / "corpus" / name, HOME / "findings" / name
    for folder in (corpus, findings):
        folder.mkdir(parents=True, exist_ok=True)
    for i, seed in enumerate(SEEDS[name]):
        (corpus / f"seed-{i}").write_bytes(seed)
    options = [
        f"-max_total_time={seconds}",
        "-timeout=20",
        "-rss_limit_mb=3000",
        "-max_len=8192",
        "-print_final_stats=1",
        "-verbosity=1",
        f"-artifact_prefix={findings}/",
    ]
    atheris.Setup([sys.argv[0], *options, str(corpus)], TARGETS[name])
    atheris.Fuzz()


def main() -> None:
    """Fuzz the readers, each in its own process; the exit code is 1 if there are findings."""
    seconds = int(sys.argv[1]) if len(sys.argv) > 1 else 600
    if len(sys.argv) > 2:
        fuzz(sys.argv[2], seconds)
        return
    names = ["toml", "csv", "npz", "set", "saved", "protocol", "secure"]
    failed = []
    for name in names:
        print(f"== {name}: {seconds // len(names)} seconds", flush=True)
        command = [sys.executable, "-m", "fuzz", str(seconds // len(names)), name]
        if subprocess.run(command).returncode:
            failed.append(name)
    found = ", ".join(failed)
    if found:
        sys.exit(f"fuzz: the contract of {found} is broken; the inputs are in {HOME / 'findings'}.")
    print(f"fuzz: no findings in {', '.join(names)}.")


if __name__ == "__main__":
    main()
