"""What the engine asks of a method whose model is divided between clients and server."""

import sys
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any

from fedstrata.core.cut import Cut
from fedstrata.core.errors import Problem
from fedstrata.core.method import Method
from fedstrata.core.model import Layout
from fedstrata.core.preflight import Facts
from fedstrata.core.seeding import Seed
from fedstrata.core.types import JSON, Plan, Tensors
from fedstrata.models.state import Model
from fedstrata.split.divide import divide
from fedstrata.split.ends import Ends
from fedstrata.split.kvcache import Sessions
from fedstrata.split.messages import Form
from fedstrata.split.middle import Middle
from fedstrata.split.noise import Noise, NoiseSettings


class Divided(Method):
    """Base of methods whose clients hold the ends of the model while the server holds the middle."""

    if TYPE_CHECKING:  # settings of each of them, among its others
        wire: Form
        """In what numbers hidden states and gradients travel."""
        in_flight: int
        """How many batches of a training step may be under way at once."""
        noise: NoiseSettings | None
        """What is added to what leaves a client, if anything."""

    @abstractmethod
    def divides(self, client: str) -> Cut:
        """Returns where a client's model is divided."""

    def not_private(self, mechanism: str) -> str:
        """More than weights leaves its clients."""
        return "hidden states and gradients of single texts leave its clients"

    def not_summed(self) -> str:
        """More than weights leaves its clients."""
        return "hidden states and gradients of single texts go to the server; use fedlora"

    def problems(self, facts: Facts) -> list[Problem]:
        """What a client has trained is at no place a whole model that could be scored."""
        if facts.federation is None or not facts.federation.score_clients:
            return []
        return [
            Problem(
                "federation.score_clients",
                f"has no meaning with {self.name}: no client has a model",
                code="no_effect",
            )
        ]

    def noise_of(self, rng: Seed) -> Noise | None:
        """Returns the noise on what leaves a client, drawn from a seed; none if there is to be none."""
        return None if self.noise is None else Noise(self.noise, rng.child("noise"))

    def widest(self, clients: Iterable[str]) -> Cut:
        """Returns where the server's model is divided, which has all that any of these clients lacks."""
        cuts = [self.divides(client) for client in clients]
        return Cut(min(cut.front for cut in cuts), min(cut.back for cut in cuts))

    def sends(
        self, handler: str, plan: Plan, values: Mapping[str, JSON], trained: Tensors, layout: Layout
    ) -> Tensors:
        """All that trains of the ends, unless they stay at their client."""
        return {} if self.personal else trained

    def seen_by(self, model: Model, rng: Seed) -> Callable[[str], AbstractContextManager[Any]] | None:
        """With noise where documents are scored, too, the ends of the model ask its middle.

        The shared model is divided where the site's is, as in processes of their own. Noise is the same every
        time.
        """
        if self.noise is None or not self.noise.inference:
            return None

        @contextmanager
        def seen_by(site: str) -> Iterator[Model]:
            cut = self.divides(site)
            ends, middle = divide(model, cut)
            server = Sessions(Middle(middle, cut), sys.maxsize)  # as much as without the cut
            with Ends(ends, cut).connected(server, site, self.noise_of(rng.child(site))):
                yield ends

        return seen_by
