"""Our lower bounds of epsilon are those of jax-privacy, which runs in an environment of its own."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedstrata.core.seeding import Seed
from fedstrata.privacy.attacks.audit import Claim, Guesses, correct, planned_guesses
from fedstrata.privacy.attacks.bounds import Errors, Guessed, clopper_pearson, one_run, one_run_gaussian

PINNED = (
    "jax-privacy==2.0.0",
    "jax==0.10.2",
    "jaxlib==0.10.2",
    "dp-accounting==0.6.0",
    "numpy==2.4.6",
    "scipy==1.17.1",
)
OUT_OF_REACH = ("after connection broken", "(from versions: none)", "Temporary failure in name resolution")
"""What pip says where the index does not answer; where it does, and lacks a version, it names others."""
SEED = Seed(0).child("test")


@pytest.fixture
def python(tmp_path: Path) -> Iterator[Path]:
    """The Python of an environment that has jax-privacy; it takes half a gigabyte, and is removed."""
    folder = tmp_path / "environment"
    try:
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        own = folder / "bin" / "python"
        install = [str(own), "-m", "pip", "install", "--disable-pip-version-check", *PINNED]
        done = subprocess.run(install, capture_output=True, text=True, check=False)
        if done.returncode and any(sign in done.stderr for sign in OUT_OF_REACH):
            pytest.skip(f"jax-privacy could not be had: {done.stderr.strip().splitlines()[-1]}")
        assert done.returncode == 0, done.stderr
        yield own
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def cases() -> Iterator[tuple[dict[str, Any], dict[str, float]]]:
    """Yields what jax-privacy is asked, and what we find."""
    sizes, signals, confidences, deltas = (
        (20, 200, 1000),
        (0.0, 1.0, 3.0, 9.0),
        (0.9, 0.95, 0.999),
        (1e-5, 1e-2),
    )
    for number, (size, signal, confidence, delta) in enumerate(product(sizes, signals, confidences, deltas)):
        generator = np.random.default_rng(number)
        included = generator.random(size) < 0.5
        scores = generator.normal(size=size) + signal * included
        above = Guesses(int(0.3 * size), 0)
        threshold = float(np.sort(scores)[size - above.included])
        guesses = planned_guesses(one_run, size, Claim(2.0, delta, confidence))
        guess = Guessed(size, guesses.count, correct(scores, included, guesses, SEED))
        high = Guessed(size, above.count, correct(scores, included, above, SEED))
        called = scores >= threshold
        errors = Errors(
            *(int(each.sum()) for each in (included, ~included, included & ~called, ~included & called))
        )
        asked = {
            "inside": scores[included].tolist(),
            "outside": scores[~included].tolist(),
            "threshold": threshold,
            "delta": delta,
            "confidence": confidence,
            "canaries": guess.canaries,
            "guesses": guess.guesses,
            "correct": guess.correct,
        }
        yield (
            asked,
            {
                "clopper_pearson": clopper_pearson(errors, delta, confidence),
                "one_run_above": one_run(high, delta, confidence),
                "one_run_gaussian_above": one_run_gaussian(high, delta, confidence),
                "one_run": one_run(guess, delta, confidence),
                "one_run_gaussian": one_run_gaussian(guess, delta, confidence),
            },
        )


@pytest.mark.slow
def test_our_bounds_are_those_of_jax_privacy(python: Path, tmp_path: Path) -> None:
    asked, ours = zip(*cases(), strict=True)
    (tmp_path / "cases.json").write_text(json.dumps(asked), encoding="utf-8")
    script = Path(__file__).with_name("jax_privacy_bounds.py")
    files = (str(tmp_path / name) for name in ("cases.json", "found.json"))
    subprocess.run([str(python), str(script), *files], check=True, cwd=tmp_path, env={"JAX_PLATFORMS": "cpu"})
    theirs = json.loads((tmp_path / "found.json").read_text(encoding="utf-8"))
    for case, found, expected in zip(asked, ours, theirs, strict=True):
        told = {name: value for name, value in case.items() if name not in {"inside", "outside"}}
        assert found == pytest.approx(expected, abs=1e-5, rel=1e-5), told
    for name in ours[0]:  # and neither says nothing all the time
        assert sum(found[name] > 0.5 for found in ours) > len(ours) / 4, name
