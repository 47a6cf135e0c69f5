"""A server that lies at the join, between sessions or about a sum: what it learns of one site's update."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from lying_server import OTHER, RUN, SITES, Site, changed, told
from secure_federation import SITES as MEMBERS
from secure_federation import SUBJECT, Federation

from fedstrata.client.secure_turns import COUNTED
from fedstrata.client.turn import Done, Order
from fedstrata.core.errors import FedstrataError
from fedstrata.core.settings.source import flatten
from fedstrata.core.types import ClientInfo, Plan, Tensors, Update
from fedstrata.engine.agreed import OWN, SHARED, agreed, agreed_hash
from fedstrata.engine.masked_sums import MaskedSums
from fedstrata.engine.secure_mean import mean_terms
from fedstrata.engine.simulated_identities import simulated_identities
from fedstrata.privacy.secure_sum.mean import counted_in, counted_tensor, hash_of_frame, mean_from
from fedstrata.privacy.secure_sum.messages import ConsistencyProof, MeanTerms, SumName
from fedstrata.privacy.secure_sum.refusals import (
    AlreadyReleased,
    RoundNotNew,
    SecureSumRefusal,
    TooFewSites,
    TranscriptMismatch,
    WrongSum,
)
from fedstrata.privacy.secure_sum.server import SumServer
from fedstrata.wire import frame

SECURE = "privacy.secure_aggregation=true"
VICTIM, OTHERS = SITES[0], SITES[1:]


@dataclass
class Cohort:
    """The clients of a sum, as a server asks them; implements `protocol.Exchanging`."""

    sites: Mapping[str, Site]
    number: int
    call: int
    refused: dict[str, Exception] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.clients = [ClientInfo(name, site.remote._site.count) for name, site in self.sites.items()]
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
        for client in clients:
            if (update := self._asked(client, turn, call, message_of(client))) is not None:
                yield client, update

    def inputs(
        self, turn: str, handler: str, plan_of: Callable[[ClientInfo], Plan]
    ) -> Iterator[tuple[ClientInfo, Update]]:
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

    def wait_for(self, clients: Iterable[str]) -> None:
        pass

    def reject(self, client: str, error: FedstrataError) -> None:
        self.book.attendance.lost[client] = self.refused[client] = error

    def take_back(self, error: FedstrataError) -> None:
        pass

    @property
    def kinds(self) -> dict[str, type[Exception]]:
        """What each site has refused with."""
        return {name: type(error) for name, error in self.refused.items()}


class Server:
    """A server that names sums as it likes, over sites that are real; it has the settings of the last."""

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
        own, infos = self._own, [ClientInfo(each, weight) for each, weight in self.weights.items()]
        return mean_terms(own.privacy, own.method, own.model, name, plan, infos, {})

    def counted(
        self, *names: str, number: int, attempt: int = 0
    ) -> tuple[Mapping[str, float] | None, Cohort]:
        """Returns what these sites have counted together of their validation documents."""
        counts = sorted(self._own.task.counted([], []))
        plan = Plan(self.plan.tensors, {"part": "validation", "final": False, "names": counts})
        name = SumName(run=RUN, round=number, handler=COUNTED["validation"], call=1, attempt=attempt)
        tensors = (counted_tensor(counts),)
        hashed = hash_of_frame(frame.encode(plan))
        terms = MeanTerms(sum=name, plan=hashed, tensors=tensors, scale=1, loss=False, counts=True)
        _, total, cohort = self.summed(terms, plan, names)
        return (None if total is None else counted_in(total, counts)[0]), cohort

    def summed(
        self, terms: MeanTerms, plan: Plan, names: Sequence[str]
    ) -> tuple[tuple[str, ...], Tensors | None, Cohort]:
        cohort = Cohort({name: self.sites[name] for name in names}, terms.sum.round, terms.sum.call)
        self._sums += 1  # it forgets what it has stored
        folder, agrees = self._folder / f"server-{self._sums}", agreed_hash(agreed(self._own))
        sums = MaskedSums(self._own.privacy, folder, self._own.model, agrees, 0)
        try:
            _, survivors, total = sums.run(cohort, plan, terms, {})
        except SecureSumRefusal:
            return (), None, cohort
        return survivors, total, cohort

    def recovered(self, first: Tensors, second: Tensors | None, *others: str) -> float:
        """Returns the cosine of the victim's change and what two means, with it and without, give for it."""
        if second is None:
            return 0.0
        own = in_the_clear(self.sites[VICTIM], self.plan)
        total, rest = (sum(self.weights[name] for name in names) for names in (SITES, others))
        pairs = [
            ((first[name] - base) * total - (second[name] - base) * rest, own[name] - base)
            for name, base in self.plan.tensors.items()
        ]
        return cosine(*(torch.cat([each.flatten() for each in side]) for side in zip(*pairs, strict=True)))


def cosine(one: torch.Tensor, other: torch.Tensor) -> float:
    return float(torch.nn.functional.cosine_similarity(one.double(), other.double(), dim=0))


def in_the_clear(site: Site, plan: Plan, number: int = 1) -> Tensors:
    """Returns the tensors that a site trains, which no server sees."""
    order = Order(site.name, number, "train", 1, frame.encode(plan))
    done = site.remote._workplace.compute(order, site.remote._site)
    assert isinstance(done, Done)
    update = frame.decode(frame.split(done.update.tobytes()), Update)
    return {name: tensor.clone() for name, tensor in update.tensors.items()}


@pytest.fixture
def server(tmp_path: Path) -> Server:
    return Server(tmp_path)


def test_every_shared_setting_is_in_what_sites_agree_on(server: Server) -> None:
    found = agreed(server.sites[VICTIM].experiment)
    shared = {path for path, _ in flatten(told(SECURE)["settings"]) if not path.startswith(OWN)}
    assert {path.partition(".")[0] for path in shared} == set(SHARED)
    assert shared | {"fedstrata", "protocol", "labels", "tokenizer"} == found.keys()


def another(value: Any) -> Any:
    """Returns a value that differs as little as it can."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + 1
    return value * (1 + 1e-12) or 1e-30 if isinstance(value, float) else [value, "another"]


@pytest.mark.claim("security_review#other-settings")
@pytest.mark.parametrize("liars", [2, 3])
def test_whichever_setting_differs_between_sites_no_share_leaves(
    server: Server, tmp_path: Path, liars: int
) -> None:
    """Three sites whose updates are zero, or whose noise can be removed, would reveal the fourth's."""
    found = agreed(server.sites[VICTIM].experiment)
    honest = agreed_hash(found)
    for number, path in enumerate(found):
        lie = agreed_hash({**found, path: another(found[path])})
        assert lie != honest, path
        subjects = {site: replace(SUBJECT, agreed=lie) for site in MEMBERS[:liars]}
        sums = Federation(MEMBERS[:4], tmp_path / str(number), subjects=subjects)
        sums.server.unusable = lambda sent: {}  # type: ignore[method-assign] # a hostile server ignores it
        survivors = sums.masked_sum().survivors
        signed = tuple(sums.clients[site].sign(survivors) for site in sums.present)
        proof = ConsistencyProof(sum=sums.name, signatures=signed)
        for site in MEMBERS[:4] if liars == 2 else MEMBERS[3:4]:
            with pytest.raises(TranscriptMismatch):
                sums.clients[site].unmask(proof)


@pytest.mark.claim("security_review#other-settings")
@pytest.mark.parametrize("honest", [True, False], ids=["honest", "hostile"])
def test_other_settings_for_three_sites_do_not_reveal_the_update_of_the_fourth(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, honest: bool
) -> None:
    lie = changed(told(SECURE), "training.learning_rate", 1e-30)
    server = Server(tmp_path, lies=dict.fromkeys(OTHERS, lie))
    if honest:
        _, cohort = server.mean(*SITES)
        assert cohort.kinds == {VICTIM: TranscriptMismatch}, "it is left out before it masks anything"
        return
    monkeypatch.setattr(SumServer, "unusable", lambda own, sent: {})
    terms = server.terms(SumName(run=RUN, round=1, handler="train", call=1, attempt=0), server.plan)
    _, total, _ = server.summed(terms, server.plan, SITES)
    own = in_the_clear(server.sites[VICTIM], server.plan)
    assert total is not None, "of masks that do not cancel"
    pairs = [(total[name], own[name] - base) for name, base in server.plan.tensors.items()]
    taken, true = (torch.cat([each.flatten() for each in side]) for side in zip(*pairs, strict=True))
    assert abs(cosine(taken, true)) < 0.1


@pytest.mark.claim("security_review#sum-again")
@pytest.mark.parametrize(
    "name",
    [
        {"attempt": 65},
        {"run": OTHER},
        {"number": 2},
        {"number": 2, "plan": {"another": "value beside the same tensors"}},
    ],
    ids=["a crash", "another run", "the next round", "other values"],
)
def test_no_second_sum_over_a_model_leaves_one_site_out(server: Server, name: dict[str, Any]) -> None:
    first, _ = server.mean(*SITES)
    assert first is not None
    if "plan" in name:
        name = {**name, "plan": Plan(server.plan.tensors, name["plan"])}
    if "run" in name:  # which people have agreed on at each site
        server.new_run()
    second, cohort = server.mean(*OTHERS, **name)
    assert cohort.kinds == dict.fromkeys(OTHERS, AlreadyReleased)
    assert server.recovered(first, second, *OTHERS) == 0.0
    again, cohort = server.mean(*SITES, **{**name, "attempt": 130})
    assert again is not None, "with the same sites it reveals nothing"
    assert not cohort.refused


@pytest.mark.claim("security_review#sum-again")
def test_a_call_that_the_method_does_not_make_is_refused(server: Server) -> None:
    server.mean(*SITES)
    assert server.mean(*OTHERS, call=2)[1].kinds == dict.fromkeys(OTHERS, WrongSum)


@pytest.mark.claim("security_review#sum-again")
def test_a_round_before_the_last_released_one_is_refused(server: Server) -> None:
    """So is a server that was restored from a backup and has another model than it had in that round."""
    server.mean(*SITES, number=3)
    other = Plan({name: tensor + 1 for name, tensor in server.plan.tensors.items()}, {})
    assert server.mean(*SITES, number=2, plan=other)[1].kinds == dict.fromkeys(SITES, RoundNotNew)
    assert server.mean(*SITES, number=3, plan=other, attempt=1)[1].kinds == dict.fromkeys(
        SITES, AlreadyReleased
    )


@pytest.mark.claim("secure_aggregation#restored-server")
def test_a_server_restored_from_a_backup_makes_the_same_sums_with_the_same_sites(server: Server) -> None:
    before = [server.mean(*SITES, number=number)[0] for number in (1, 2)]
    after = [server.mean(*SITES, number=number, attempt=1)[0] for number in (1, 2)]
    for one, two in zip(before, after, strict=True):
        assert one is not None
        assert two is not None
        assert all(torch.equal(one[name], two[name]) for name in one)


@pytest.mark.claim("secure_aggregation#allow-without")
def test_a_sum_without_a_site_needs_the_consent_of_each_remaining_site(server: Server) -> None:
    first, _ = server.mean(*SITES)
    assert first is not None
    for name in OTHERS[:2]:
        server.sites[name].remote._workplace.allow_without = frozenset({VICTIM})
    second, cohort = server.mean(*OTHERS, number=2)
    assert cohort.kinds == {OTHERS[2]: AlreadyReleased}
    assert second is None
    server.sites[OTHERS[2]].remote._workplace.allow_without = frozenset({VICTIM})
    second, cohort = server.mean(*OTHERS, number=2, attempt=1)
    assert not cohort.refused
    assert server.recovered(first, second, *OTHERS) > 0.5, "which is what the option's help warns of"


@pytest.mark.claim("security_review#third-of-the-sites")
def test_a_server_that_picks_a_small_roster_is_refused(server: Server) -> None:
    """Of four sites it asks three, two of which collude: the lock of the victim demands three survivors."""
    assert server.mean(*SITES[:2])[0] is None
    assert server.mean(*SITES[:3], attempt=1)[0] is not None, "three of four are enough"


def test_counts_of_one_model_are_not_summed_with_other_sites(tmp_path: Path) -> None:
    server = Server(tmp_path, "privacy.scores=summed", "data.synthetic.notes=96")
    first, cohort = server.counted(*SITES, number=1)
    assert first is not None, cohort.refused
    second, cohort = server.counted(*OTHERS, number=2)
    assert second is None
    assert cohort.kinds == dict.fromkeys(OTHERS, AlreadyReleased)
    again, cohort = server.counted(*SITES, number=3)
    assert again == first


@pytest.mark.claim("security_review#one-bit")
def test_a_model_changed_by_one_bit_is_another_model(server: Server) -> None:
    """What no hash can stop, and differential privacy alone bounds: the pages state it as a cost."""
    first, _ = server.mean(*SITES)
    assert first is not None
    tensors = {name: tensor.clone() for name, tensor in server.plan.tensors.items()}
    changed = next(iter(tensors.values())).view(-1)
    changed[0] = torch.nextafter(changed[0], changed[0] + 1)
    second, cohort = server.mean(*OTHERS, number=2, plan=Plan(tensors, {}))
    assert not cohort.refused
    assert server.recovered(first, second, *OTHERS) > 0.5


def test_sites_that_are_too_few_for_their_own_locks_refuse(tmp_path: Path) -> None:
    names = tuple(f"site-{number}" for number in range(1, 8))
    simulated_identities(tmp_path, names)
    server = Server(tmp_path)
    _, cohort = server.mean(*SITES)
    assert set(cohort.kinds.values()) <= {TooFewSites}
