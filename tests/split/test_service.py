"""The server's half of training: what it takes from whom, and what it keeps of clients that are lost."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import pytest
import torch
from divided import Tiny, deeper
from support import refused
from torch import Tensor

from fedstrata.core.cut import Cut
from fedstrata.core.errors import FrameError, TrainingError
from fedstrata.core.seeding import Seed
from fedstrata.core.settings.run import RunSettings
from fedstrata.core.types import Message
from fedstrata.split.divide import divide
from fedstrata.split.messages import ENDS, GRADIENT, STATES, pack, unpack
from fedstrata.split.middle import Middle
from fedstrata.split.modes import ClientBatch, Hierarchical, Sequential
from fedstrata.split.protocol import Course
from fedstrata.split.replica import Replica
from fedstrata.split.rows import Rows

CUT, HIDDEN, LENGTHS = Cut(1, 1), 32, (5, 9)
CLIENTS = ("a", "b", "c")
ReplicaOf = Callable[..., Replica]


@pytest.fixture
def replica(tiny_model: Tiny) -> ReplicaOf:
    """Makes copies of B that begin alike and take steps of plain gradient descent."""

    def make(client: str = "", *, family: str = "llama", **config: Any) -> Replica:
        server = divide(tiny_model(family, config=deeper(family, **config)), CUT)[1]
        server.train_only(server.layout.all)
        training = {"optimizer": "sgd", "learning_rate": 0.1, "clip_norm": None}
        settings = RunSettings.model_validate({"training": training})
        return Replica(Middle(server, CUT), settings.training, 100, Seed(0))

    return make


def courses(
    in_flight: int = 1, average_every: int | None = None, steps: int = 99, batches: int = 99
) -> dict[str, Course]:
    own = (in_flight, average_every)
    return {client: Course("float32", CUT, *own, steps=steps, batches=batches) for client in CLIENTS}


def drawn(seed: int, scale: float = 1.0) -> Tensor:
    """Returns (2, 9, hidden)."""
    generator = Seed(seed).torch()
    return scale * torch.randn(len(LENGTHS), max(LENGTHS), HIDDEN, generator=generator)


def states(seed: int = 0, batch: Any = 0, tensor: Tensor | None = None, **changes: Any) -> Message:
    rows = Rows(max(LENGTHS), tuple(max(LENGTHS) - length for length in LENGTHS)).to_json()
    values = {"batch": batch, "rows": rows, "cut": [1, 1], "wants_gradient": True, **changes}
    return pack(STATES, drawn(seed) if tensor is None else tensor, "float32", values)


def gradient(seed: int = 50, batch: Any = 0, tensor: Tensor | None = None, **changes: Any) -> Message:
    values = {"batch": batch, "terms": 4, "last": True, **changes}
    return pack(GRADIENT, drawn(seed) if tensor is None else tensor, "float32", values)


def said(answers: Iterable[tuple[str, Message]]) -> dict[str, Message]:
    return dict(answers)


def step(service: Any, client: str, seed: int) -> None:
    for message in (states(seed), gradient(seed + 50)):
        assert client in said(service.hear(client, message))


def weights(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in tensors.items()}


def assert_equal(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> None:
    assert one.keys() == other.keys()
    for name, tensor in one.items():
        torch.testing.assert_close(tensor, other[name], rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("by_step", [False, True])
@pytest.mark.parametrize("messages", [1, 2, 3])
def test_of_the_unfinished_step_of_a_lost_client_nothing_is_left(
    replica: ReplicaOf, by_step: bool, messages: int
) -> None:
    """Whether its states had come, a gradient too, or already the states of its second batch."""
    lossy, plain = (Sequential(replica(), courses(2), by_step=by_step) for _ in range(2))
    half = (states(9), gradient(9, last=False), states(10, batch=1))
    for service in (lossy, plain):
        step(service, "a", 1)
        if service is lossy:
            for message in half[:messages]:
                said(service.hear("b", message))
        said(service.leave("b", lost=True))
        step(service, "c", 2)
        if not by_step:
            step(service, "a", 3)
    assert_equal(lossy.tensors, plain.tensors)


@pytest.fixture
def unbounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets pass what is refused for its size, to see what holds without that."""
    monkeypatch.setattr("fedstrata.split.messages._LARGEST_NORM", math.inf)


@pytest.mark.usefixtures("unbounded")
def test_a_step_that_is_not_finite_costs_the_next_client_nothing(replica: ReplicaOf) -> None:
    lossy, plain = (Sequential(replica(), courses(), by_step=False) for _ in range(2))
    for service in (lossy, plain):
        service._replica.middle.model.load({name: 100.0 * own for name, own in service.tensors.items()})
    said(lossy.hear("a", states(1)))
    with refused(TrainingError, "not_finite", values=["inf"]):
        said(lossy.hear("a", gradient(tensor=drawn(2, 5e17), terms=1)))
    for service in (lossy, plain):
        said(service.leave("a", lost=True))
        step(service, "b", 3)
    assert_equal(lossy.tensors, plain.tensors)


def test_the_copy_of_a_lost_client_is_in_no_average(replica: ReplicaOf) -> None:
    weighed = dict(zip(CLIENTS, (1.0, 5.0, 3.0), strict=True))
    whole = Hierarchical({each: replica(each) for each in CLIENTS}, courses(), weighed, average_every=None)
    for number, client in enumerate(CLIENTS):
        step(whole, client, number)
    alone = {client: weights(whole._replicas[client].tensors) for client in CLIENTS}
    said(whole.leave("a"))
    said(whole.leave("b", lost=True))
    said(whole.leave("c"))
    mean = {name: (alone["a"][name] + 3.0 * alone["c"][name]) / 4.0 for name in alone["a"]}
    assert_equal(whole.tensors, mean)


def test_those_who_wait_for_an_average_get_one_without_the_lost(replica: ReplicaOf) -> None:
    """Of those that are there and of one that has finished before."""
    service = Hierarchical(
        {each: replica(each) for each in CLIENTS}, courses(), dict.fromkeys(CLIENTS, 1.0), average_every=1
    )
    for number, client in enumerate(("a", "c")):
        step(service, client, number)
    before = {client: weights(each.tensors) for client, each in service._replicas.items()}
    said(service.leave("c"))
    assert not said(service.hear("a", states(7)))
    assert said(service.leave("b", lost=True)).keys() == {"a"}
    mean = {name: (before["a"][name] + before["c"][name]) / 2.0 for name in before["a"]}
    assert_equal(service._replicas["a"].tensors, mean)


SHORT = Rows(8, (0, 0)).to_json()
LEFT = Rows(9, (4, 0), "left").to_json()
UNFIT: dict[str, tuple[Message, str, list[str]]] = {
    "another cut": (states(cut=[-1, 0]), "not_agreed", ["Cut(front=-1, back=0)", "Cut(front=1, back=1)"]),
    "rows of another length": (states(rows=SHORT), "wrong_shape", ["(2, 9, 32)", "2 rows of 8"]),
    "fewer rows": (states(rows=Rows(9, (0,)).to_json()), "wrong_shape", ["(2, 9, 32)", "1 rows of 9"]),
    "no rows": (states(rows=None), "missing", ["rows"]),
    "padding on the left": (states(rows=LEFT), "wrong_padding", []),
    "a gradient before states": (gradient(), "out_of_order", ["gradient", "batch 0"]),
    "no batch": (states(batch="x"), "invalid", ["batch=str"]),
    "states that overflow in B": (states(tensor=drawn(1, 1e16)), "not_finite", ["states"]),
    "ends": (Message({}, {"kind": ENDS}), "out_of_order", ["ends"]),
    "no flag": (states(wants_gradient=[]), "invalid", ["wants_gradient=[]"]),
}
UNFIT_GRADIENTS: dict[str, tuple[Message, str, list[str]]] = {
    "other rows": (gradient(tensor=drawn(1)[:1]), "wrong_shape", ["batch 0", "(2, 9, 32)", "(1, 9, 32)"]),
    "another batch": (gradient(batch=1), "out_of_order", ["gradient", "batch 1"]),
    "too many terms": (gradient(terms=10**400), "invalid", ["terms=10000"]),
    "terms that are no number": (gradient(terms=float("nan")), "invalid", ["terms=nan"]),
    "states again": (states(batch=1), "out_of_order", ["states", "batch 1", " 0 ", "method.in_flight"]),
    "a norm beyond all numbers": (gradient(tensor=drawn(1, 1e37)), "not_finite", ["gradient", " inf"]),
    "a gradient that overflows in B": (gradient(tensor=drawn(1, 1e16)), "not_finite", ["gradient", "e+"]),
}


@pytest.mark.parametrize("what", [*UNFIT, *UNFIT_GRADIENTS])
def test_a_message_that_does_not_fit_is_its_sender_s(replica: ReplicaOf, what: str) -> None:
    """It is refused when it comes, and the others go on as if its sender had never been."""
    lossy, plain = (ClientBatch(replica(), courses(), dict.fromkeys(CLIENTS, 1.0)) for _ in range(2))
    for service in (lossy, plain):
        own = {**UNFIT, **UNFIT_GRADIENTS}[what]
        if what in UNFIT_GRADIENTS:
            for number, client in enumerate(CLIENTS):
                answers = said(service.hear(client, states(number)))
            assert answers.keys() == set(CLIENTS)
        if service is lossy:
            with refused(FrameError, own[1], values=own[2]):
                said(service.hear("a", own[0]))
        said(service.leave("a", lost=True))
        if what in UNFIT:
            for number, client in enumerate("bc"):
                answers = said(service.hear(client, states(number + 1)))
            assert answers.keys() == {"b", "c"}
        for number, client in enumerate("bc"):
            answers = said(service.hear(client, gradient(number + 60)))
        assert answers.keys() == {"b", "c"}
    assert_equal(lossy.tensors, plain.tensors)


@pytest.mark.usefixtures("unbounded")
def test_states_that_b_cannot_bear_are_their_sender_s(replica: ReplicaOf) -> None:
    """What B makes of them is not finite; its gradient is then taken without them."""
    lossy, plain = (
        ClientBatch(replica(family="gpt2"), courses(), dict.fromkeys(CLIENTS, 1.0)) for _ in range(2)
    )
    said(plain.leave("a"))
    said(lossy.hear("a", states(tensor=torch.full((2, 9, HIDDEN), 3e38))))
    for service in (lossy, plain):
        for number, client in enumerate("bc"):
            answers = said(service.hear(client, states(number)))
        if service is lossy:
            with refused(FrameError, "not_finite"):
                unpack(answers["a"], "float32")
            said(service.leave("a", lost=True))
        for number, client in enumerate("bc"):
            answers = said(service.hear(client, gradient(number + 60)))
        assert answers.keys() == {"b", "c"}
    assert_equal(lossy.tensors, plain.tensors)


@pytest.mark.parametrize(("steps", "batches"), [(1, 1), (1, 2), (3, 1)])
def test_a_turn_has_no_more_steps_than_its_client_has_examples_for(
    replica: ReplicaOf, steps: int, batches: int
) -> None:
    service = Hierarchical({"a": replica()}, courses(steps=steps, batches=batches), {"a": 1.0}, None)
    for _ in range(steps):
        for batch in range(batches):
            said(service.hear("a", states(batch=batch)))
            said(service.hear("a", gradient(batch=batch, last=batch == batches - 1)))
    with refused(FrameError, "out_of_range", values=[f" {steps} steps", f" {batches} batches"]):
        list(service.hear("a", states()))


def test_a_step_that_is_never_called_complete_has_an_end(replica: ReplicaOf) -> None:
    service = Hierarchical({"a": replica()}, courses(steps=9, batches=2), {"a": 1.0}, None)
    for batch in range(2):
        said(service.hear("a", states(batch=batch)))
        said(service.hear("a", gradient(batch=batch, last=False)))
    with refused(FrameError, "out_of_range", values=[" 2 batches", "step 1"]):
        list(service.hear("a", states(batch=2)))


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_batches_of_one_joint_step_have_dropout_of_their_own(replica: ReplicaOf, dropout: float) -> None:
    service = ClientBatch(replica(attention_dropout=dropout), {"a": courses()["a"]}, {"a": 1.0})
    answers = []
    for batch in range(2):
        answers.append(unpack(said(service.hear("a", states(0, batch=batch)))["a"], "float32"))
        said(service.hear("a", gradient(batch=batch, last=False)))
    assert torch.equal(*answers) == (not dropout)


def test_no_more_waits_for_a_client_than_may_be_under_way(replica: ReplicaOf) -> None:
    service = Sequential(replica(), courses(2), by_step=True)
    for batch in range(2):
        assert not said(service.hear("b", states(batch, batch=batch)))  # it is the turn of `a`
    with refused(FrameError, "out_of_order", values=[" 0, 1 ", "method.in_flight", " 2 "]):
        said(service.hear("b", states(2, batch=2)))


def test_ends_are_averaged_when_the_method_averages_them(replica: ReplicaOf) -> None:
    service = ClientBatch(replica(), courses(average_every=2), dict.fromkeys(CLIENTS, 1.0))
    for number in range(2):
        for message in (states(number), gradient(number)):
            for client in CLIENTS:
                answers = said(service.hear(client, message))
        assert answers.keys() == set(CLIENTS)
    with refused(FrameError, "out_of_order", values=["states", "ends"]):
        said(service.hear("a", states(5)))
    broken = Message({"head": torch.tensor([float("inf")])}, {"kind": ENDS})
    with refused(FrameError, "not_finite", values=["head"]):
        said(service.hear("a", broken))
    said(service.leave("a", lost=True))
    for client, value in (("b", 1.0), ("c", 2.0)):
        answers = said(service.hear(client, Message({"head": torch.tensor([value])}, {"kind": ENDS})))
    assert float(answers["b"].tensors["head"]) == 1.5
