"""The gate of privacy by patients: an audit finds who is trained on without noise, and not at epsilon 1.

On `mini`, with 600 canaries. Were epsilon 2 true, even ideal scores would refute 1 in about a third of runs:
what passes here has no fault as large as noise that is forgotten, and may have smaller ones.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from fedstrata.auditing.audit_report import bound_of
from fedstrata.auditing.membership import Membership, Target, audit_membership
from fedstrata.core.settings.source import read_source

CANARIES = 600
SEEDS = range(1, 6)


def audited(*overrides: str) -> Membership:
    source = read_source(Path(__file__).parent / "gate.yaml", overrides)
    return audit_membership(source, Target(CANARIES), lambda event, facts: None)


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_without_noise_more_than_epsilon_2_is_found(seed: int) -> None:
    """Measured: 3.9 to 5.5."""
    found = audited(f"seed={seed}", "privacy.epsilon=null", "privacy.sigma=0.0")
    assert found.epsilon is None
    assert bound_of(found).epsilon > 2.0


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_at_epsilon_1_no_more_is_found(seed: int) -> None:
    """Measured: 0 to 0.1."""
    found = audited(f"seed={seed}")
    assert found.epsilon == pytest.approx(1.0, abs=0.01)
    assert bound_of(found).epsilon <= 1.0
    assert 0.2 < found.power.one_run_gaussian.found < 0.5, "which says how little this proves"
