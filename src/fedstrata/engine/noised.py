"""Scores of a simulated divided model with noise on what leaves the clients (`method.noise.inference`)."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING

from fedstrata.methods.fl_llama import FLLLaMA
from fedstrata.split.divide import divide
from fedstrata.split.ends import Ends
from fedstrata.split.kvcache import Sessions
from fedstrata.split.middle import Middle

if TYPE_CHECKING:
    from fedstrata.engine.prepare import Experiment
    from fedstrata.models.state import Model


def with_noise(experiment: Experiment) -> Callable[[str], AbstractContextManager[Model]] | None:
    """Returns how a site's documents are answered with noise; none if there is to be none.

    The shared model is divided where the site's is, and its ends ask its middle, as in processes of their
    own. Noise is the same every time.

    Args:
        experiment: The experiment; what its model holds when the context is entered is what answers.
    """
    method = experiment.method
    own = method.settings.noise if isinstance(method, FLLLaMA) else None
    if not isinstance(method, FLLLaMA) or own is None or not own.inference:
        return None

    @contextmanager
    def seen_by(site: str) -> Iterator[Model]:
        cut = method.cut_of(site)
        ends, middle = divide(experiment.model, cut)
        noise = method.noise(experiment.seed.child("scores", site))
        server = Sessions(Middle(middle, cut), sys.maxsize)  # as much as without the cut
        with Ends(ends, cut).connected(server, site, noise):
            yield ends

    return seen_by
