"""Texts through a server in another process: those of the whole model, whatever the server forgets."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest
import torch
from divided import texts_of
from remote_run import PATIENT
from support import TINY, RunTiny, refused
from torch import Tensor

from fedstrata.core.cut import Cut
from fedstrata.core.documents import Document
from fedstrata.core.errors import ConfigurationError, LineError, RefusedError
from fedstrata.core.settings.source import read_source
from fedstrata.core.types import JSON
from fedstrata.engine.checkpoint import Checkpoints
from fedstrata.engine.prepare import prepare, prepare_client, prepare_prompts
from fedstrata.engine.remote import answering
from fedstrata.engine.remote.answering import Answers
from fedstrata.engine.remote.generating import Generating
from fedstrata.models.state import Model
from fedstrata.split.inference import RemoteMiddle
from fedstrata.split.kvcache import Sessions
from fedstrata.split.rows import Rows
from fedstrata.transport.grpc.hub import GrpcHub
from fedstrata.transport.grpc.membership import GrpcMembership
from fedstrata.transport.members import Arrival

CLIENTS = ("site-1", "site-2")
LM = (
    "data.types=null", "data.synthetic.sites=2", "data.synthetic.notes=4", "task={name: lm, max_length: 64}",
    "federation.rounds=1", "federation.floors=false", "training.batch_size=4",
)  # fmt: skip
SHAPE = "hidden_size: 32, num_hidden_layers: 3, num_attention_heads: 4, initializer_range: 0.3"
MODELS = {
    "llama": f"model.config={{model_type: llama, {SHAPE}, intermediate_size: 64, num_key_value_heads: 2}}",
    "gpt2": f"model.config={{model_type: gpt2, {SHAPE}}}",
}
METHOD = "method={name: fl_llama, cuts: {site-2: {front: 0, back: 1}}}"
PROMPTS = ["The patient has chest pain", "No fever", "He was given aspirin, and a day later he"]
TOKENS = 16
ENOUGH = 2**24

RunOf = Callable[[str], tuple[Path, list[str]]]


@pytest.fixture
def run_of(run_once: RunTiny) -> RunOf:
    """Trains a tiny language model of a family, once; gives the run directory and the overrides."""

    def train(family: str) -> tuple[Path, list[str]]:
        overrides = [*LM, MODELS[family], METHOD]
        return run_once(*overrides).folder, overrides

    return train


class Watched:
    """A server in this process, and what was asked of its sessions, in order."""

    def __init__(self, folder: Path, limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: list[str] = []
        for name in ("open", "extend", "run"):
            monkeypatch.setattr(Sessions, name, self._watching(name, getattr(Sessions, name)))
        self.answers = Answers(folder, (), CLIENTS, limit)
        self.hub = GrpcHub(
            self.answers.agreements(ENOUGH),
            largest=ENOUGH,
            clients=CLIENTS,
            timing=PATIENT,
            welcome=lambda client: {"committed": self.answers.committed},
        )
        self.address = self.hub.listen("127.0.0.1:0")

    def _watching(self, name: str, ask: Any) -> Any:
        def watched(sessions: Sessions, *args: Any) -> Any:
            self.calls.append(name)
            return ask(sessions, *args)

        return watched

    @contextmanager
    def serving(self) -> Iterator[None]:
        stopped = Event()
        thread = Thread(target=self.answers.serve, args=(self.hub,), kwargs={"until": stopped.is_set})
        thread.start()
        try:
            yield
        finally:
            stopped.set()
            self.hub.stop(1.0)
            thread.join()


def whole_model(overrides: list[str], folder: Path) -> Model:
    model = prepare(read_source(None, [*TINY, *overrides])).model
    model.load(Checkpoints(folder / "checkpoints").load(1)[1].tensors)
    return model


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server looks often whether it is to stop."""
    monkeypatch.setattr(answering, "WAIT", 0.05)


def session_of(own: Generating, address: str) -> Callable[[], GrpcMembership]:
    return lambda: GrpcMembership(address, own.id, own.agreement, greeting=own.greeting, timing=PATIENT)


@pytest.mark.usefixtures("quick")
def test_a_client_goes_on_with_a_server_that_was_started_anew(
    run_of: RunOf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, overrides = run_of("llama")
    server = Watched(folder, ENOUGH, monkeypatch)
    receive, heard = server.hub.receive, [0]

    def forgetting(seconds: float, **unless: Any) -> Arrival | None:
        arrival = receive(seconds, **unless)
        heard[0] += arrival is not None
        if heard[0] in (2, 7, 9) and arrival is not None and arrival.lost is None:
            server.hub.drop(arrival.client, LineError("the server has ended"))
            return Arrival(arrival.client, arrival.session, lost=LineError("the server has ended"))
        return arrival

    monkeypatch.setattr(server.hub, "receive", forgetting)
    experiment = prepare_prompts(read_source(None, [*TINY, *overrides]), "site-1")
    prompts = [Document(text, text) for text in PROMPTS]
    with server.serving():
        own = Generating(experiment, "site-1", tmp_path, prompts, tokens=TOKENS)
        found = own.run(session_of(own, server.address))
    expected = texts_of(whole_model(overrides, folder), PROMPTS, TOKENS)
    assert [document.text_pair for document in found] == expected
    assert server.calls.count("open") >= 2


@pytest.mark.usefixtures("quick")
def test_documents_are_scored_through_the_server_and_noise_is_added_where_it_is_asked_for(
    run_of: RunOf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, overrides = run_of("llama")
    expected = json.loads((folder / "summary.json").read_text())["metrics"]["clients"]["site-1"]

    def scores(*more: str) -> Any:
        source = read_source(None, [*TINY, *overrides, *more])
        own = Generating(prepare_client(source, "site-1"), "site-1", tmp_path, None)
        assert [document.metadata["perplexity"] for document in own.run(session_of(own, server.address))]
        return own.scores

    server = Watched(folder, ENOUGH, monkeypatch)
    noise = "method.noise={scale: 3.0, inference: %s}"
    with server.serving():
        exact = scores()
        assert exact == pytest.approx(expected, rel=1e-4)
        assert scores(noise % "false") == exact
        noised = scores(noise % "true")
        assert noised != pytest.approx(exact, rel=1e-4)
        assert scores(noise % "true") != noised  # nobody can know it beforehand
    assert set(server.calls) == {"run"}


@pytest.mark.slow
@pytest.mark.usefixtures("quick")
def test_what_the_server_cannot_answer_costs_only_the_client_that_asks(
    run_of: RunOf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, overrides = run_of("llama")
    server = Watched(folder, 4_000, monkeypatch)
    source = read_source(None, [*TINY, *overrides])
    prompts = [Document("one", "No fever")]
    own = Generating(prepare_prompts(source, "site-1"), "site-1", tmp_path, prompts, tokens=4)
    with server.serving():
        long = [Document("long", " ".join(["No fever"] * 100))]
        other = Generating(prepare_prompts(source, "site-2"), "site-2", tmp_path, long, tokens=4)
        with refused(RefusedError, "session_too_large", values=[" 4000;"]):
            other.run(session_of(other, server.address))
        for wrong, code, values in (
            (_wrong_shape, "wrong_shape", ["(1, 2, 32)", "(1, 3, 32)"]),
            (_not_finite, "not_finite", ["states"]),
        ):
            with monkeypatch.context() as patch, refused(RefusedError, code, values=values):
                patch.setattr(RemoteMiddle, "open", wrong)
                own.run(session_of(own, server.address))
        assert own.run(session_of(own, server.address))[0].text_pair


def _wrong_shape(middle: RemoteMiddle, session: str, states: Tensor, rows: Rows) -> Tensor:
    return middle._ask("open", states[:, 1:2].repeat(1, 2, 1), {"rows": Rows(3, (0,)).to_json()})


def _not_finite(middle: RemoteMiddle, session: str, states: Tensor, rows: Rows) -> Tensor:
    values: dict[str, JSON] = {"rows": rows.to_json(), "session": session}
    return middle._ask("open", torch.full_like(states, float("nan")), values)


def test_what_cannot_be_answered_is_refused(run_of: RunOf, tmp_path: Path) -> None:
    folder, overrides = run_of("gpt2")
    source = read_source(None, [*TINY, *overrides])
    experiment = prepare_prompts(source, "site-1")
    with refused(ConfigurationError, "out_of_range", at="--prompts", values=["--max-new-tokens", " 1024,"]):
        Generating(experiment, "site-1", tmp_path, [Document("one", "No fever")], tokens=1024)
    with refused(ConfigurationError, "missing", at="--prompts"):
        Generating(experiment, "site-1", tmp_path, [])
    own = prepare_prompts(read_source(None, [*TINY, *overrides, "method.average_ends=never"]), "site-1")
    with refused(ConfigurationError, "not_found", at="--home", values=["'site-1'"]):
        Generating(own, "site-1", tmp_path, [Document("one", "No fever")])
    with refused(ConfigurationError, "no_effect", at="--max-new-tokens, --temperature", values=["lm"]):
        Generating(prepare_client(source, "site-1"), "site-1", tmp_path, None, temperature=1.0)
    with refused(ConfigurationError, "not_finished", at="RUN"):
        empty = tmp_path / "empty"
        empty.mkdir()
        (empty / "config.yaml").write_text((folder / "config.yaml").read_text())
        Answers(empty, (), CLIENTS, ENOUGH)
    middle = Answers(folder, (), ["site-1"], ENOUGH)._middle
    assert middle.model.layout.blocks[0] == () and Cut(1, 1).middle(3) == range(1, 2)
