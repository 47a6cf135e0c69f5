"""What a method of one's own may send under differential privacy: what was released, and nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from private_client import JOINT, PRIVATE
from support import TINY, TINY_SETTINGS, refused

import fedstrata as fs
from fedstrata.client.turn import Done, Failed, Order
from fedstrata.core.client import Client
from fedstrata.core.errors import ConfigurationError, NothingReleasedError, NotReleasedError
from fedstrata.core.seeding import Seed
from fedstrata.core.settings.source import read_source
from fedstrata.core.types import Message, Plan, Update
from fedstrata.engine.local import LocalEngine
from fedstrata.engine.prepare import prepare
from fedstrata.methods import METHODS
from fedstrata.methods.fedavg import FedAvg
from fedstrata.privacy.released import Released, digest
from fedstrata.train.local import accumulate, fit, to_device, update_of
from fedstrata.wire import frame

SECURE = (*PRIVATE, "privacy.noise=secure", "privacy.steps=1")


def answering(method: type[FedAvg]) -> type[FedAvg]:
    """Has a class say of its own halves that they are private and may be summed."""
    method.not_private = lambda self, mechanism: ""  # type: ignore[method-assign]
    method.not_summed = lambda self: ""  # type: ignore[method-assign]
    return method


@answering
class Answering(FedAvg):
    """It says that it is private and summed, whatever it does."""

    name: Literal["answering"] = "answering"  # type: ignore[assignment]

    def train(self, plan: Plan, client: Client, rng: Seed) -> Update:
        return super().train(plan, client, rng)


@answering
class OwnLoop(Answering):
    """Its clients train by a loop of its own, which neither clips nor adds noise."""

    name: Literal["own_loop"] = "own_loop"  # type: ignore[assignment]

    def train(self, plan: Plan, client: Client, rng: Seed) -> Update:
        model, names = client.model, client.model.layout.all
        model.load(plan.tensors)
        model.train_only(names)
        batch = client.task.collate(list(client.examples)[:2])
        client.task.loss(model.module, to_device(batch, torch.device("cpu")))[0].backward()
        with torch.no_grad():
            for parameter in model.parameters(names):
                if parameter.grad is not None:
                    parameter.sub_(parameter.grad)
        return update_of(client, model.tensors(names))


@answering
class OwnGradients(Answering):
    """Its clients draw units as private training does, and take gradients without noise."""

    name: Literal["own_gradients"] = "own_gradients"  # type: ignore[assignment]

    def train(self, plan: Plan, client: Client, rng: Seed) -> Update:
        names = client.model.layout.all
        client.model.load(plan.tensors)

        def plain(client: Client, drawn: Any, parameters: Any) -> tuple[float, float]:
            batches = [client.task.collate(list(unit)) for unit in drawn]
            return accumulate(client, batches or [client.task.collate([client.examples[0]])], parameters)

        fit(client, names, rng, gradients=plain)
        return update_of(client, client.model.tensors(names))


@answering
class SomethingElse(Answering):
    """It trains once, privately, and sends something else of the client's."""

    name: Literal["something_else"] = "something_else"  # type: ignore[assignment]
    what: Literal["more", "moved", "model", "count"] = "more"

    def train(self, plan: Plan, client: Client, rng: Seed) -> Update:
        update = super().train(plan, client, rng)
        tensors = dict(update.tensors)
        if self.what == "count":
            return Update(tensors, {}, weight=float(len(client.examples)))
        if self.what == "more":
            tensors["mean"] = torch.tensor([float(len(client.examples))])
        if self.what == "moved":
            first = min(tensors)
            tensors[first] = tensors[first] + 1.0
        if self.what == "model":
            client.model.load({name: tensor + 1.0 for name, tensor in tensors.items()})
            tensors = client.model.tensors(list(tensors))
        return Update(tensors, {}, weight=update.weight)


def turn(
    folder: Path, method: type[FedAvg], privacy: tuple[str, ...] = SECURE, **settings: Any
) -> Done | Failed:
    named = {"name": METHODS.name_of(method), **settings}
    experiment = prepare(read_source(None, [*TINY, *privacy, f"method={named}"]))
    engine = LocalEngine(experiment, folder, lambda *_: None)
    plan = frame.encode(Plan(experiment.method.start(experiment.model).tensors))
    return engine.compute(Order("site-1", 1, "train", 1, plan))


@pytest.mark.claim("differential_privacy#released")
@pytest.mark.parametrize("privacy", [SECURE, JOINT], ids=["local", "joint"])
@pytest.mark.parametrize("method", [OwnLoop, OwnGradients])
def test_tensors_that_no_private_training_has_released_are_refused(
    method: type[FedAvg], privacy: tuple[str, ...], tmp_path: Path
) -> None:
    with refused(NothingReleasedError, "nothing_released", values=[method.model_fields["name"].default]):
        turn(tmp_path, method, privacy)
    assert not list(tmp_path.rglob("release-*"))


@pytest.mark.claim("differential_privacy#released")
@pytest.mark.parametrize("what", ["more", "moved", "model", "count"])
def test_something_else_beside_what_was_released_is_refused(what: str, tmp_path: Path) -> None:
    with refused(NotReleasedError, "not_released", values=["something_else"]) as caught:
        turn(tmp_path, SomethingElse, what=what)
    assert not isinstance(caught.value, NothingReleasedError)
    assert not list(tmp_path.rglob("release-*"))


def test_what_was_released_may_leave(tmp_path: Path) -> None:
    done = turn(tmp_path, Answering)
    assert frame.decode(done.update, Update).tensors


class NoAnswer(FedAvg):
    """Its clients send what no base of it knows of."""

    name: Literal["no_answer"] = "no_answer"  # type: ignore[assignment]

    def train(self, plan: Plan, client: Client, rng: Seed) -> Update:
        update = super().train(plan, client, rng)
        client.store.write(Message({}, {"turns": 1}))
        return update


class Mixin:
    """A half that a class gets beside FedAvg's answers."""

    def train(self, plan: Plan, client: Client, rng: Seed) -> Update:
        raise AssertionError


class Mixed(Mixin, FedAvg):  # type: ignore[misc]
    """It overrides nothing in its own body."""

    name: Literal["mixed"] = "mixed"  # type: ignore[assignment]


@pytest.mark.parametrize("method", [NoAnswer, Mixed])
@pytest.mark.parametrize(
    ("setting", "path"),
    [
        (PRIVATE, "privacy.mechanism"),
        (JOINT, "privacy.mechanism"),
        (("privacy={secure_aggregation: true}",), "privacy.secure_aggregation"),
    ],
)
def test_a_half_of_its_own_needs_an_answer_of_its_own(
    method: type[FedAvg], setting: tuple[str, ...], path: str
) -> None:
    assert method().unanswered == ("not_private", "not_summed")
    with pytest.raises(ConfigurationError) as caught:
        prepare(read_source(None, [*TINY, *setting, f"method={{name: '{METHODS.name_of(method)}'}}"]))
    assert path in {problem.path for problem in caught.value.problems}


def test_every_method_of_ours_answers_for_its_halves() -> None:
    assert [name for name, method in METHODS.items() if method.model_construct().unanswered] == []
    assert Answering().unanswered == ()


@pytest.mark.slow
def test_the_check_of_a_method_finds_both() -> None:
    of: Mapping[str, Any] = {n: v for n, v in TINY_SETTINGS.items() if not n.startswith("data.synthetic")}
    settings = {**of, "task.types": of["data.types"]}
    with pytest.raises(fs.testing.ContractError, match="not_private, not_summed"):
        fs.testing.check_method(NoAnswer(), settings=settings)
    with pytest.raises(fs.testing.ContractError, match="something_else"):
        fs.testing.check_method(SomethingElse(what="moved"), settings=settings)


def test_a_later_turn_of_the_round_may_send_what_was_left_out_and_no_other_round_may(tmp_path: Path) -> None:
    method = "method={name: fedtlu, portion: 0.34, selection: sketched}"
    experiment = prepare(read_source(None, [*TINY, *SECURE, method]))
    engine = LocalEngine(experiment, tmp_path, lambda *_: None)
    state = experiment.method.start(experiment.model)
    block = list(experiment.model.layout.blocks[0])
    train = frame.encode(Plan(state.tensors, {"seed": 1}))
    upload = frame.encode(Plan({}, {"names": [*block]}))
    assert isinstance(engine.compute(Order("site-1", 1, "train", 1, train)), Done)
    done = engine.compute(Order("site-1", 1, "upload", 1, upload))
    assert set(frame.decode(done.update, Update).tensors) == set(block)
    with pytest.raises(NothingReleasedError):
        engine.compute(Order("site-1", 2, "upload", 1, upload))


def test_what_follows_from_a_release_is_compared_with_what_was_released() -> None:
    """A rank that was cut off is; that of a model that has moved on is not."""
    method = METHODS.make({"name": "flora"}, "method")
    layout: Any = None
    whole = {"a.lora_A.weight": torch.ones(4, 8), "a.lora_B.weight": torch.ones(8, 4)}
    part = {"a.lora_A.weight": torch.ones(2, 8), "a.lora_B.weight": torch.ones(8, 2)}
    own = Released()
    own.begin(whole)
    own.finish(whole)
    plan = Plan({}, {"rank": 2})
    own.require(method, "train", plan, Update(part, {}, weight=1.0), layout, set())
    whole["a.lora_A.weight"][:] = 3.0
    with pytest.raises(NotReleasedError):
        own.require(method, "train", plan, Update(part, {}, weight=1.0), layout, set())
    assert digest(torch.zeros(2)) != digest(torch.zeros(2, 1))
    assert digest(torch.zeros(2)) != digest(torch.zeros(2, dtype=torch.int32))
