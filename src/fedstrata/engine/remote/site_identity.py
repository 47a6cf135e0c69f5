"""What a site in a process of its own needs for secure aggregation: an identity and a lock of its own."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from fedstrata.client.turn import Workplace
from fedstrata.core.errors import ConfigurationError, Problem
from fedstrata.engine.prepare import Experiment
from fedstrata.engine.remote.site_scoring import SiteScoring

if TYPE_CHECKING:
    from fedstrata.client.secure_turns import SecureTurns


def secure_turns_of(
    experiment: Experiment,
    workplace: Workplace,
    client: str,
    files: tuple[Path | None, Path | None],
    scoring: SiteScoring,
) -> SecureTurns | None:
    """Returns what answers the orders of masked sums at a site; none where there are none.

    Args:
        experiment: What is run.
        workplace: Where the site computes.
        client: Its name.
        files: Where its identity lies, and where it says whom it sums with, if they are named.
        scoring: How it scores its documents.

    Raises:
        ConfigurationError: A file is missing or wrong; or one is named, and the server asks for updates in
            the clear.
    """
    identity, lock = files
    asked, problems = experiment.privacy.settings.secure_aggregation, []
    for option, path in (("--identity", identity), ("--lock", lock)):
        if asked and path is None:
            message = "is needed: the run has privacy.secure_aggregation (see fedstrata keys --help)"
            problems.append(Problem(option, message, code="missing"))
        if path is not None and not asked:
            message = "is given, and the server says privacy.secure_aggregation: false; nothing was sent"
            problems.append(Problem(option, message, code="no_effect"))
    if problems:
        raise ConfigurationError(problems)
    if identity is None or lock is None:
        return None
    from fedstrata.client.secure_turns import SecureTurns  # noqa: PLC0415 - for masks alone

    score = partial(scoring.score, masked=True) if scoring.tells else None
    turns = SecureTurns(workplace, lambda name: (identity, lock), score)
    turns.pinned(client)
    return turns
