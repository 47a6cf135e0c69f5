"""What the one run loop asks of whatever has the clients: this process, or processes elsewhere.

Where an engine has nothing to do, what is here does it.
"""

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol, TypeAlias

from fedstrata.client.turn import Done, Failed, Order
from fedstrata.core.cohort import Mean, Service
from fedstrata.core.errors import FedstrataError
from fedstrata.core.types import ClientInfo, Plan, State, Update
from fedstrata.engine.book import Book
from fedstrata.models.state import Model
from fedstrata.wire.meter import Meter

Turns: TypeAlias = Generator[tuple[Order, Done | Failed], None, None]
Counted: TypeAlias = tuple[Mapping[str, float], int, Sequence[str]]
"""What clients have counted together, of how many documents, and who they are."""


class Engine(Protocol):
    """Where the clients of a run are, and how they are brought to compute."""

    command: str
    """What runs it, for messages."""
    sums: str = ""
    """Tells the run's masked sums from those of every other run; empty without secure aggregation."""
    counting: "Counting | None" = None
    """Sums under masks what clients elsewhere have counted; the run sets it, where it has such sums."""

    @property
    def whole(self) -> Model:
        """The whole model; without values where no side has all of them."""

    def facts(self) -> dict[str, Any]:
        """Returns what the record's `run` event says of the clients and their documents."""

    def require_same(self, begun: Mapping[str, Any]) -> None:
        """Refuses to go on with another run than this one.

        Args:
            begun: The `run` event with which it began.

        Raises:
            ConfigurationError: It is not this one.
        """
        return

    def wait(self, needed: int | None) -> None:
        """Waits for the clients of a round.

        Args:
            needed: How many are enough once patience has ended; all of them if none.

        Raises:
            LineError: Too few have come.
        """
        return

    def wait_for(self, clients: Sequence[str]) -> None:
        """Waits until these clients are there again, or no longer than it waits at the start of a round."""
        return

    def clients(self) -> Sequence[str]:
        """Returns the names of those that can be asked, in their usual order."""

    def info(self, client: str) -> ClientInfo:
        """Returns what is known of one of them."""

    def reserve(self) -> None:
        """Reserves in the budgets of the clients what the run may spend there; asked before anything else.

        Raises:
            ConfigurationError: There is no room for it.
        """
        return

    def budget(self) -> dict[str, Any] | None:
        """Returns what of the clients' budgets is spent and left, if they are here and have any."""
        return None

    def turns_begun(self, client: str) -> int:
        """Returns in how many turns a client began to train privately, killed ones included."""
        return 0

    def turns(self, orders: Iterable[Order]) -> Turns:
        """Has turns computed, and yields what came of them.

        What is done comes in the orders' order, each as soon as all before it are there, and is valid until
        the next is asked for; what failed may come sooner. Orders are taken as they can be begun.
        """

    def converse(self, orders: Iterable[Order], service: Service, meter: Meter) -> Turns:
        """Does as `turns`, for clients that meanwhile talk with a service.

        Args:
            orders: What is to be done.
            service: Whom they talk with.
            meter: Counts what they say, and what they are told.
        """

    def undo(self, client: str, number: int, error: Exception) -> None:
        """Drops what a client's last turn left behind, whose update does not count.

        Args:
            client: Its name.
            number: The round.
            error: Why it does not.
        """

    def committed(self, number: int, lost: Iterable[str]) -> None:
        """Hears that a round is committed, and who was lost to it."""
        return

    def delivered(self, number: int, clients: Iterable[str]) -> None:
        """Hears, when a run goes on, whose updates of the round under way count already."""
        return

    def score(self, number: int, state: State, part: str, *, final: bool) -> dict[str, Any]:
        """Scores what was learnt.

        Args:
            number: The round after which that is.
            state: What is shared.
            part: `validation` or `test`.
            final: Whether the run ends with it.

        Returns:
            `global`, `clients`, `mean_client` and `external` (see `scoring.Scorer.shared`), and `weighted`:
            which global scores are means of the clients'. Nothing where nobody has such documents.
        """

    def save(self, number: int, state: State) -> None:
        """Saves what was learnt, as a model or as one for each client."""

    def memory(self) -> Sequence[Mapping[str, int | None]]:
        """Returns the most memory that each process of this machine has had which computes for it."""
        return ()

    def end(self) -> None:
        """Hears that all is recorded; what only a run under way needs can go."""
        return

    def close(self) -> None:
        """Hears that the run is over, complete or not."""
        return


class Exchanging(Protocol):
    """The clients of a round, as the server's half of a sum asks them."""

    clients: Sequence[ClientInfo]
    book: Book

    def exchange(
        self,
        turn: str,
        call: int,
        clients: Sequence[str],
        message_of: Callable[[str], Plan],
        *,
        counted: bool = False,
    ) -> Iterator[tuple[str, Update]]:
        """Runs an exchange at these clients, and yields what they say.

        Args:
            turn: The built-in handler.
            call: How often the handler that is summed was called, this time included.
            clients: Who is asked.
            message_of: What each is sent.
            counted: Whether their updates are summed already, so that who is lost now is not lost to the
                round.
        """

    def inputs(
        self, turn: str, handler: str, plan_of: Callable[[ClientInfo], Plan]
    ) -> Iterator[tuple[ClientInfo, Update]]:
        """Has everybody train and mask, and yields the masked updates."""

    def wait_for(self, clients: Sequence[str]) -> None:
        """Waits until these clients are there, or no longer than the engine waits for clients."""

    def reject(self, client: str, error: FedstrataError) -> None:
        """Does without a client."""

    def take_back(self, error: FedstrataError) -> None:
        """Has everybody who is left drop what the round has brought."""


class Counting(Protocol):
    """Whatever sums counts, so that nobody sees those of one client."""

    def counted(self, cohort: Exchanging, plan: Plan, part: str, names: Sequence[str]) -> Counted | None:
        """Returns what clients have counted of their documents, all of them together.

        Args:
            cohort: The clients that have any.
            plan: What all of them are sent.
            part: Of the split.
            names: Of the counts.

        Returns:
            None if they could not be summed, of which the cohort's listener is told.
        """


class Summing(Protocol):
    """What makes the means of a round in place of one running sum of single updates."""

    def mean(self, cohort: Exchanging, handler: str, plan: Plan) -> Mean:
        """Returns the weighted mean of what a handler returns everywhere.

        Args:
            cohort: The clients of the round.
            handler: The handler.
            plan: What all of them are sent.
        """
