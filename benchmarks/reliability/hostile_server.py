"""A server that names masked sums as it likes, over sites that are real: what it learns of one site's update.

    python benchmarks/reliability/hostile_server.py

Four sites go through what `fedstrata join` does, each with its home, identity and lock, in this process. The
server tries to read the update of the first: each case prints the cosine of what it gets and that update.
`hostile.py` has these cases too. Last line: one JSON object.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from lying_server import OTHER, RUN, SITES, Site, changed, told

from fedstrata.client.secure_turns import COUNTED
from fedstrata.client.turn import Done, Order
from fedstrata.core.errors import FedstrataError
from fedstrata.core.types import JSON, ClientInfo, Plan, Tensors, Update
from fedstrata.engine.agreed import agreed, agreed_hash
from fedstrata.engine.masked_sums import MaskedSums
from fedstrata.engine.secure_mean import mean_terms
from fedstrata.engine.simulated_identities import simulated_identities
from fedstrata.privacy.secure_sum.mean import counted_in, counted_tensor, hash_of_frame, mean_from
from fedstrata.privacy.secure_sum.messages import MeanTerms, SumName
from fedstrata.privacy.secure_sum.refusals import SecureSumRefusal
from fedstrata.privacy.secure_sum.server import SumServer
from fedstrata.wire import frame

SECURE = "privacy.secure_aggregation=true"
VICTIM, OTHERS = SITES[0], SITES[1:]
READ = 0.3
"""A cosine with a site's update above which the server has learnt something of it."""


@dataclass
class Cohort:
    """The clients of a sum, as a server asks them; implements `protocol.Exchanging`."""

    sites: Mapping[str, Site]
    number: int
    call: int
    refused: dict[str, Exception] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.clients: Sequence[ClientInfo] = [
            ClientInfo(name, site.remote._site.count) for name, site in self.sites.items()
        ]
        attendance = SimpleNamespace(lost={})
        self.book: Any = SimpleNamespace(attendance=attendance, number=self.number, warn=lambda message: None)

    def exchange(
        self,
        turn: str,
        call: int,
        clients: Sequence[str],
        message_of: Callable[[str], Plan],
        *,
        counted: bool = False,
    ) -> Iterator[tuple[str, Update]]:
        """Yields what these sites answer in an exchange."""
        for client in clients:
            if (update := self._asked(client, turn, call, message_of(client))) is not None:
                yield client, update

    def inputs(
        self, turn: str, handler: str, plan_of: Callable[[ClientInfo], Plan]
    ) -> Iterator[tuple[ClientInfo, Update]]:
        """Yields masked updates."""
        for info in self.clients:
            if info.id in self.refused:
                continue
            if (update := self._asked(info.id, turn, self.call, plan_of(info))) is not None:
                yield info, update

    def _asked(self, client: str, turn: str, call: int, plan: Plan) -> Update | None:
        try:
            return self.sites[client].ask(turn, plan, number=self.number, call=call)
        except FedstrataError as error:
            self.refused[client] = error
            return None

    def wait_for(self, clients: Sequence[str]) -> None:
        """All sites are in this process."""

    def reject(self, client: str, error: FedstrataError) -> None:
        """Continues without a site."""
        self.book.attendance.lost[client] = self.refused[client] = error

    def take_back(self, error: FedstrataError) -> None:
        """Leaves what sites have stored: nothing here trains on it."""

    @property
    def kinds(self) -> dict[str, type[Exception]]:
        """What each site has refused with."""
        return {name: type(error) for name, error in self.refused.items()}


class Server:
    """A server that names sums as it likes, over sites that are real; it has the settings of the last.

    Args:
        folder: In which every site has its home.
        settings: Overrides of the settings.
        lies: Of sites that are given other settings: what they are given.
    """

    def __init__(self, folder: Path, *settings: str, lies: Mapping[str, Any] | None = None) -> None:
        simulated_identities(folder, SITES)
        self._said = said = told(SECURE, *settings)
        self.sites = {name: Site(folder, (lies or {}).get(name, said), name) for name in SITES}
        self._folder, self._sums = folder, 0
        self._own = self.sites[SITES[-1]].experiment
        model = self._own.model
        model.restore()
        tensors = model.tensors(self._own.method.trainable(model.layout))
        self.plan = Plan({name: each.clone() for name, each in tensors.items()}, {})
        self.weights = {name: site.remote._site.count for name, site in self.sites.items()}

    def new_run(self) -> None:
        """Has every site join another run, as with `--new-run`."""
        for name in self.sites:
            self.sites[name] = Site(self._folder, self._said, name, run=OTHER, runs=2)

    def mean(
        self,
        *names: str,
        plan: Plan | None = None,
        run: str = RUN,
        number: int = 1,
        call: int = 1,
        attempt: int = 0,
    ) -> tuple[Tensors | None, Cohort]:
        """Returns the mean over these sites, if there is one, and who has refused what."""
        plan, own = plan or self.plan, self._own
        terms = self.terms(SumName(run=run, round=number, handler="train", call=call, attempt=attempt), plan)
        survivors, total, cohort = self.summed(terms, plan, names)
        if total is None:
            return None, cohort
        found = mean_from(total, plan.tensors, terms, survivors, own.privacy.settings.range)
        return found.mean.tensors, cohort

    def terms(self, name: SumName, plan: Plan) -> MeanTerms:
        """Returns what a mean of this name is made of."""
        own, infos = self._own, [ClientInfo(each, weight) for each, weight in self.weights.items()]
        return mean_terms(own.privacy, own.method, own.model, name, plan, infos, {})

    def counted(
        self, *names: str, number: int, attempt: int = 0
    ) -> tuple[Mapping[str, float] | None, Cohort]:
        """Returns what these sites have counted together of their validation documents."""
        counts = sorted(self._own.task.counted([], []))
        plan = Plan(self.plan.tensors, {"part": "validation", "final": False, "names": list[JSON](counts)})
        name = SumName(run=RUN, round=number, handler=COUNTED["validation"], call=1, attempt=attempt)
        tensors = (counted_tensor(counts),)
        hashed = hash_of_frame(frame.encode(plan))
        terms = MeanTerms(sum=name, plan=hashed, tensors=tensors, scale=1, loss=False, counts=True)
        _, total, cohort = self.summed(terms, plan, names)
        return (None if total is None else counted_in(total, counts)[0]), cohort

    def summed(
        self, terms: MeanTerms, plan: Plan, names: Sequence[str]
    ) -> tuple[tuple[str, ...], Tensors | None, Cohort]:
        """Returns whose inputs are in a sum, the sum if there is one, and who has refused what."""
        cohort = Cohort({name: self.sites[name] for name in names}, terms.sum.round, terms.sum.call)
        self._sums += 1  # it forgets what it has stored
        folder, agrees = self._folder / f"server-{self._sums}", agreed_hash(agreed(self._own))
        sums = MaskedSums(self._own.privacy, folder, self._own.model, agrees, 0)
        try:
            _, survivors, total = sums.run(cohort, plan, terms, {})
        except SecureSumRefusal:
            return (), None, cohort
        return survivors, total, cohort

    def nudged(self) -> Plan:
        """Returns the plan with one bit changed."""
        tensors = {name: tensor.clone() for name, tensor in self.plan.tensors.items()}
        numbers = next(iter(tensors.values())).view(-1)
        numbers[0] = torch.nextafter(numbers[0], numbers[0] + 1)
        return Plan(tensors, {})

    def recovered(
        self,
        first: Tensors,
        second: Tensors | None,
        *others: str,
        bases: tuple[Tensors, Tensors] | None = None,
    ) -> float:
        """Returns the cosine of the victim's change and what two means, with it and without, give for it."""
        if second is None:
            return 0.0
        own = in_the_clear(self.sites[VICTIM], self.plan)
        one, two = bases or (self.plan.tensors, self.plan.tensors)
        total, rest = (sum(self.weights[name] for name in names) for names in (SITES, others))
        pairs = [
            ((first[name] - one[name]) * total - (second[name] - two[name]) * rest, own[name] - base)
            for name, base in self.plan.tensors.items()
        ]
        return cosine(*(torch.cat([each.flatten() for each in side]) for side in zip(*pairs, strict=True)))


def cosine(one: torch.Tensor, other: torch.Tensor) -> float:
    return float(torch.nn.functional.cosine_similarity(one.double(), other.double(), dim=0))


def in_the_clear(site: Site, plan: Plan, number: int = 1) -> Tensors:
    """Returns the tensors that a site trains, which no server sees."""
    order = Order(site.name, number, "train", 1, frame.encode(plan))
    done = site.remote._workplace.compute(order, site.remote._site)
    if not isinstance(done, Done):
        raise done.error
    update = frame.decode(frame.split(done.update.tobytes()), Update)
    return {name: tensor.clone() for name, tensor in update.tensors.items()}


def other_settings(folder: Path) -> float:
    """Has three sites train so slowly that their updates are zero; takes what the sum holds of the fourth."""
    lie = changed(told(SECURE), "training.learning_rate", 1e-30)
    server, unusable = Server(folder, lies=dict.fromkeys(OTHERS, lie)), SumServer.unusable
    try:
        SumServer.unusable = lambda *_: {}  # type: ignore[method-assign] # which it ignores
        name = SumName(run=RUN, round=1, handler="train", call=1, attempt=0)
        _, total, _ = server.summed(server.terms(name, server.plan), server.plan, SITES)
    finally:
        SumServer.unusable = unusable  # type: ignore[method-assign]
    if total is None:
        return 0.0
    own = in_the_clear(server.sites[VICTIM], server.plan)
    pairs = [(total[each], own[each] - base) for each, base in server.plan.tensors.items()]
    return cosine(*(torch.cat([each.flatten() for each in side]) for side in zip(*pairs, strict=True)))


def again(**named: Any) -> Callable[[Path], float]:
    """Returns what sums a model with all sites, and then without the first."""

    def act(folder: Path) -> float:
        server = Server(folder)
        first, _ = server.mean(*SITES)
        if "run" in named:
            server.new_run()
        second, _ = server.mean(*OTHERS, **named)
        return 0.0 if first is None else server.recovered(first, second, *OTHERS)

    return act


def small_roster(folder: Path) -> float:
    """Sums two sites of four, one of which tells the server its own update."""
    server = Server(folder)
    found, _ = server.mean(*SITES[:2])
    return 0.0 if found is None else 1.0


def one_bit(folder: Path) -> float:
    """Sums without the first site a model that differs by one bit from the one that was summed with it."""
    server = Server(folder)
    first, _ = server.mean(*SITES)
    second, _ = server.mean(*OTHERS, number=2, plan=server.nudged())
    return 0.0 if first is None else server.recovered(first, second, *OTHERS)


def neighbouring_rounds(folder: Path) -> float:
    """Follows the protocol; the first site drops out of the second of two rounds."""
    server = Server(folder)
    first, _ = server.mean(*SITES)
    if first is None:
        return 0.0
    second, _ = server.mean(*OTHERS, number=2, plan=Plan(first, {}))
    return server.recovered(first, second, *OTHERS, bases=(server.plan.tensors, first))


def known_steps(folder: Path) -> float:
    """Follows the protocol; reads out of one sum of one AdamW step a site which numbers the first has moved.

    AdamW's first step moves each number by the learning rate, up, down or not at all, and sites weigh by
    their numbers of examples, which they tell: the sum of three possible moves of each has few solutions.
    """
    one_step = ("training.batch_size=256", "training.epochs=1", "training.schedule=constant")
    server = Server(folder, *one_step, "training.warmup=0", "training.weight_decay=0.0")
    mean, _ = server.mean(*SITES)
    if mean is None:
        return 0.0
    weights = torch.tensor([float(server.weights[name]) for name in SITES], dtype=torch.float64)
    moves = torch.cartesian_prod(*[torch.tensor([-1.0, 0.0, 1.0], dtype=torch.float64)] * len(SITES))
    sums, order = (moves @ weights).sort()
    own, rate = in_the_clear(server.sites[VICTIM], server.plan), server._own.settings.training.learning_rate
    read, true = [], []
    for name, base in server.plan.tensors.items():
        total = (mean[name] - base).double().flatten() * weights.sum() / rate
        above = torch.searchsorted(sums, total).clamp(1, len(sums) - 1)
        nearest = torch.where((sums[above - 1] - total).abs() < (sums[above] - total).abs(), above - 1, above)
        read.append(moves[order[nearest], 0])
        true.append((own[name] - base).flatten())
    return cosine(torch.cat(read), torch.cat(true))


ATTACKS: Mapping[str, tuple[str, str, str | None, Callable[[Path], float]]] = {
    "other settings": (
        "security_review#other-settings",
        "gives three sites other settings",
        None,
        other_settings,
    ),
    "claims a crash": ("security_review#sum-again", "claims a crash and sums again", None, again(attempt=65)),
    "another run": ("security_review#sum-again", "sums again as another run", None, again(run=OTHER)),
    "another round": ("security_review#sum-again", "sums again as the next round", None, again(number=2)),
    "another call": ("security_review#sum-again", "sums again as another call", None, again(call=2)),
    "small roster": ("security_review#third-of-the-sites", "sums two sites of four", None, small_roster),
    "one bit": (
        "security_review#sum-again",
        "sums again a model that it has changed by one bit",
        "security_review#one-bit",
        one_bit,
    ),
    "neighbouring rounds": (
        "security_review#sum-again",
        "compares two rounds, of which a site has dropped out of one",
        "security_review#one-bit",
        neighbouring_rounds,
    ),
    "known steps": (
        "security_review#sum-again",
        "works out which site has moved a number, in a sum of one AdamW step each",
        "security_review#known-steps",
        known_steps,
    ),
}
"""Of each attack: the claim, what the server does, the claim that says what it costs, and the attack, which
returns the cosine of what was learnt and the victim's update."""


def main() -> None:
    found = {}
    with tempfile.TemporaryDirectory(prefix="hostile-server-") as place:
        for case, (_, does, cost, act) in ATTACKS.items():
            found[case] = act(Path(place, case.replace(" ", "-")))
            kind = "documented cost" if cost else "broken promise"
            print(f"{case}: the server {does}; cosine {found[case]:.3f}", end="")
            print(f" ({kind})" if abs(found[case]) > READ else "")
    print(json.dumps(found))


if __name__ == "__main__":
    main()
