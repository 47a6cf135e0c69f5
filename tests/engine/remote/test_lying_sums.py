"""A server that lies at the join, between sessions or about a sum: what it learns of one site's update."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hostile_server import (
    ATTACKS,
    OTHERS,
    READ,
    SECURE,
    VICTIM,
    Cohort,
    Server,
)
from lying_server import OTHER, RUN, SITES, changed, told
from secure_federation import SITES as MEMBERS
from secure_federation import SUBJECT, Federation
from support import assert_same_tensors

from fedstrata.core.settings.source import flatten
from fedstrata.core.types import Plan
from fedstrata.engine.agreed import OWN, SHARED, agreed, agreed_hash
from fedstrata.engine.simulated_identities import simulated_identities
from fedstrata.privacy.secure_sum.mean import hash_of_frame, mean_from
from fedstrata.privacy.secure_sum.messages import ConsistencyProof, SumName
from fedstrata.privacy.secure_sum.refusals import (
    AlreadyReleased,
    RoundNotNew,
    TooFewSites,
    TranscriptMismatch,
    WrongSum,
)
from fedstrata.wire import frame


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
@pytest.mark.parametrize(
    "same", ["without tensors", "other order", "an unknown tensor", "fewer", "other dtype", "another model"]
)
def test_a_model_is_recognised_however_a_plan_holds_it(server: Server, same: str) -> None:
    """Every task begins with the model as all have it, so that these plans train the same."""
    if same == "another model":
        server.plan, same = other_model(server), "other dtype"
    tensors = server.plan.tensors
    assert server.mean(*SITES)[0] is not None
    plans = {
        "without tensors": {},
        "other order": dict(reversed(tensors.items())),
        "an unknown tensor": {**tensors, "unknown": torch.ones(1)},
        "fewer": dict(list(tensors.items())[1:]),
        "other dtype": {name: tensor.double() for name, tensor in tensors.items()},
    }
    second, cohort = server.mean(*OTHERS, number=2, plan=Plan(plans[same], {}))
    assert second is None
    assert set(cohort.kinds.values()) <= {AlreadyReleased, WrongSum}
    assert len(cohort.kinds) == len(OTHERS)


@pytest.mark.claim("security_review#sum-again")
def test_a_plan_without_tensors_is_none_of_those_that_had_some(server: Server) -> None:
    """A sum of the model as it is, one of other tensors, and the first again without one site."""
    empty, hashed = Plan({}, {}), hash_of_frame(frame.encode(Plan({}, {})))

    def summed(number: int, *names: str) -> tuple[bool, Cohort]:
        name = SumName(run=RUN, round=number, handler="train", call=1, attempt=0)
        terms = server.terms(name, server.plan).model_copy(update={"plan": hashed})
        _, total, cohort = server.summed(terms, empty, names)
        return total is not None, cohort

    assert summed(1, *SITES)[0]
    server.mean(*OTHERS, number=2, plan=other_model(server))
    there, cohort = summed(3, *OTHERS)
    assert not there
    assert len(cohort.kinds) == len(OTHERS)


@pytest.mark.claim("security_review#sum-again")
def test_a_call_that_the_method_does_not_make_is_refused(server: Server) -> None:
    server.mean(*SITES)
    assert server.mean(*OTHERS, call=2)[1].kinds == dict.fromkeys(OTHERS, WrongSum)


@pytest.mark.claim("security_review#sum-again")
def test_a_round_before_the_last_released_one_is_refused(server: Server) -> None:
    """So is a server that was restored from a backup and has another model than it had in that round."""
    server.mean(*SITES, number=3)
    other = other_model(server)
    for again, refusal in (({"number": 2}, RoundNotNew), ({"number": 3, "attempt": 1}, AlreadyReleased)):
        assert server.mean(*SITES, plan=other, **again)[1].kinds == dict.fromkeys(SITES, refusal)


@pytest.mark.claim("secure_aggregation#restored-server")
def test_a_server_restored_from_a_backup_makes_the_same_sums_with_the_same_sites(server: Server) -> None:
    before = [server.mean(*SITES, number=number)[0] for number in (1, 2)]
    after = [server.mean(*SITES, number=number, attempt=1)[0] for number in (1, 2)]
    for one, two in zip(before, after, strict=True):
        assert one is not None and two is not None
        assert_same_tensors(one, two)


@pytest.mark.claim("secure_aggregation#allow-without")
def test_a_sum_without_a_site_needs_the_consent_of_each_remaining_site(tmp_path: Path) -> None:
    server = Server(tmp_path, "federation.rounds=9")
    first, _ = server.mean(*SITES)
    assert first is not None
    for name in OTHERS[:2]:
        server.sites[name].remote._workplace.allow_without = {VICTIM: ""}
    second, cohort = server.mean(*OTHERS, number=2)
    assert cohort.kinds == {OTHERS[2]: AlreadyReleased}
    assert second is None
    server.sites[OTHERS[2]].remote._workplace.allow_without = {VICTIM: ""}
    second, cohort = server.mean(*OTHERS, number=2, attempt=1)
    assert not cohort.refused
    assert server.recovered(first, second, *OTHERS) > 0.5, "which is what the option's help warns of"
    server.plan = other_model(server)
    assert server.mean(*SITES, number=3)[0] is not None
    second, cohort = server.mean(*OTHERS, number=4)
    assert cohort.kinds == dict.fromkeys(OTHERS, AlreadyReleased), "one consent is of one model"
    assert second is None


def other_model(server: Server) -> Plan:
    return Plan({name: tensor + 0.25 for name, tensor in server.plan.tensors.items()}, {})


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
def test_a_model_changed_by_one_bit_is_another_model(tmp_path: Path) -> None:
    """What no hash can stop, and differential privacy alone bounds: the pages state it as a cost."""
    assert ATTACKS["one bit"][3](tmp_path) > 0.5


def test_sites_that_are_too_few_for_their_own_locks_refuse(tmp_path: Path) -> None:
    names = tuple(f"site-{number}" for number in range(1, 8))
    simulated_identities(tmp_path, names)
    server = Server(tmp_path)
    _, cohort = server.mean(*SITES)
    assert set(cohort.kinds.values()) <= {TooFewSites}


@pytest.mark.claim("security_review#known-steps")
def test_steps_of_a_known_size_name_who_has_moved_a_number(tmp_path: Path) -> None:
    assert ATTACKS["known steps"][3](tmp_path) > 0.9, "which the page warns of"


@pytest.mark.slow
@pytest.mark.parametrize("case", ATTACKS)
def test_attacks_read_an_update_only_where_the_pages_state_the_cost(case: str, tmp_path: Path) -> None:
    _, _, cost, act = ATTACKS[case]
    assert (act(tmp_path) > READ) == (cost is not None)


@pytest.mark.claim("security_review#not-finite")
@pytest.mark.claim("security_review#diverged")
@pytest.mark.parametrize("value", [float("nan"), 3e38])
def test_a_model_that_diverges_on_a_word_does_not_tell_which_site_has_it(
    tmp_path: Path, value: float
) -> None:
    """Sites refuse what is not finite, and where finite numbers diverge nobody fails by name."""
    server = Server(tmp_path, "method={name: fedavg}")
    own, (embedding, *_) = server._own.model, server._own.model.layout.embedding
    have = {site: words_of(server, site) for site in SITES}
    word = min(word for word in have[VICTIM] if not any(word in have[site] for site in OTHERS))
    poisoned = own.tensors([embedding])[embedding].clone()
    poisoned[word] = value
    plan = Plan({**server.plan.tensors, embedding: poisoned}, {})
    terms = server.terms(SumName(run=RUN, round=1, handler="train", call=1, attempt=0), plan)
    _, total, cohort = server.summed(terms, plan, SITES)
    if math.isnan(value):
        assert cohort.kinds == dict.fromkeys(SITES, WrongSum)
        return
    assert not cohort.refused
    assert total is not None
    found = mean_from(total, plan.tensors, terms, SITES, 1.0)
    assert found.diverged == 1
    assert any(
        "diverge" in facts["message"] or "nan" in facts["message"] for facts in warnings(server, VICTIM)
    )


def words_of(server: Server, site: str) -> set[int]:
    """Returns the tokens of a site's training documents, which the server does not know."""
    remote = server.sites[site].remote
    batches = [remote._site.task.collate([example]) for example in remote._site.encode()]
    return {int(token) for batch in batches for token in batch["input_ids"].flatten()}


def warnings(server: Server, site: str) -> list[Any]:
    return [facts for event, facts in server.sites[site].log if event == "warning"]


@pytest.mark.claim("security_review#other-settings")
def test_other_settings_for_three_sites_do_not_reveal_the_update_of_the_fourth(tmp_path: Path) -> None:
    lie = changed(told(SECURE), "training.learning_rate", 1e-30)
    _, cohort = Server(tmp_path / "honest", lies=dict.fromkeys(OTHERS, lie)).mean(*SITES)
    assert cohort.kinds == {VICTIM: TranscriptMismatch}, "it is left out before it masks anything"
    hidden = ATTACKS["other settings"][3](tmp_path / "hostile")
    assert 0.0 < abs(hidden) < 0.1, "of masks that do not cancel"
