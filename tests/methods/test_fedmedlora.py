"""Fed-MedLoRA, Fed-MedLoRA+, and the methods that share one factor of the adapters, on real tiny runs."""

from __future__ import annotations

import json
import math
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest
import torch
from support import Finished, RunTiny, prepared

from fedstrata.adapters.rank import is_first_factor, is_lora
from fedstrata.aggregate.influence import shares
from fedstrata.client.store import ClientStore
from fedstrata.core.types import Plan, Update
from fedstrata.models.state import Model
from fedstrata.wire import frame

LORA = "adapter={kind: lora, rank: 2}"
FEW = ("data.synthetic.notes=6", "federation.evaluate_every=2")
SERVER = ("data.split.server=2", "data.synthetic.notes=12")
PLUS = ("method={name: fedmedlora_plus}", LORA, *SERVER, "federation.rounds=1")


def untrained(*overrides: str) -> Model:
    return prepared(LORA, *overrides).model


@pytest.fixture
def travelling(monkeypatch: pytest.MonkeyPatch) -> dict[type, set[str]]:
    """The names of the tensors in plans and updates, as a run goes on."""
    names: dict[type, set[str]] = {Plan: set(), Update: set()}
    encode = frame.encode

    def watching(message):
        if type(message) in names:
            names[type(message)].update(message.tensors)
        return encode(message)

    monkeypatch.setattr(frame, "encode", watching)
    return names


def influence(run: Finished) -> dict[str, dict[str, Any]]:
    return run.of("round")[0]["state"]["influence"]


def test_sites_are_weighed_by_their_loss_and_their_examples(run_once: RunTiny) -> None:
    """By the loss of a token; and by that of a record, larger by the number of its tokens."""
    other = "method={name: fedmedlora_plus, loss: records, temperature: 2.0, weighting: influence}"
    runs = run_once(*PLUS), run_once(other, *PLUS[1:])
    for run, temperature in zip(runs, (1.0, 2.0), strict=True):
        facts = influence(run)
        assert run.summary["state"]["influence"] == facts and set(facts) == {"site-1", "site-2", "site-3"}
        assert run.of("round")[0]["loss"] is not None
        raw = {client: math.exp(-own["loss"] / temperature) for client, own in facts.items()}
        examples = {event["client"]: event["examples"] for event in run.of("client")}
        counts = examples if temperature == 1.0 else dict.fromkeys(examples, 1)
        total = sum(counts[client] * own for client, own in raw.items())
        for client, own in facts.items():
            assert own["influence"] == pytest.approx(raw[client] / sum(raw.values()))
            assert own["weight"] == pytest.approx(counts[client] * raw[client] / total)
            assert not own["capped"]
    tokens, records = map(influence, runs)
    ratios = {records[client]["loss"] / own["loss"] for client, own in tokens.items()}
    assert len({round(ratio, 6) for ratio in ratios}) == 1
    assert min(ratios) > 5


def test_a_site_that_harms_the_server_s_documents_counts_less(run_once: RunTiny) -> None:
    corrupt = "federation.corrupt={share: 0.3, kind: scale, strength: 300.0}"
    run = run_once(*PLUS, corrupt)
    (bad,) = run.of("run")[0]["corrupt"]["clients"]
    facts = influence(run)
    assert max(facts, key=lambda client: facts[client]["loss"]) == bad
    assert facts[bad]["weight"] < 0.1


@pytest.mark.slow  # test_influence holds the shares under a cap
def test_no_site_has_more_than_the_cap(run_once: RunTiny) -> None:
    sizes = (*PLUS[1:], "data.synthetic.imbalance=2.0", "data.synthetic.notes=24")
    free = run_once(PLUS[0], *sizes)
    capped = run_once("method={name: fedmedlora_plus, cap: 0.4}", *sizes)
    before, after = influence(free), influence(capped)
    largest = max(before, key=lambda client: before[client]["weight"])
    assert before[largest]["weight"] > 0.5
    assert after[largest] == before[largest] | {"weight": 0.4, "capped": True}
    assert max(own["weight"] for own in after.values()) <= 0.4 + 1e-9
    expected, _ = shares([math.log(own["weight"]) for own in before.values()], cap=0.4)
    assert [own["weight"] for own in after.values()] == pytest.approx(list(expected))


def test_the_server_s_documents_are_nobody_else_s_and_the_same_for_every_method(run_once: RunTiny) -> None:
    def divided(*overrides: str) -> tuple[set[str], set[str]]:
        experiment = prepared(*overrides)
        known = {document.id for own in experiment.clients.values() for document in own.all}
        return known, {document.id for document in experiment.server}

    known, server = divided(*SERVER, LORA, "method={name: fedlora}")
    assert (known, server) == divided(*SERVER, "method={name: centralized}")
    assert len(server) == 2 and not known & server
    assert set(run_once(*PLUS).of("run")[0]["server_documents"]) == server
    assert divided(SERVER[1]) == (known | server, set())


def test_no_text_of_the_server_s_documents_is_in_the_run_directory(run_once: RunTiny) -> None:
    run = run_once(*PLUS)
    texts = [document.text for document in prepared(*SERVER).server]
    texts_of = (path for path in run.folder.rglob("*") if path.suffix in (".jsonl", ".json", ".yaml"))
    written = "".join(path.read_text(errors="ignore") for path in texts_of)
    for text in texts:
        assert not [line for line in text.splitlines() if len(line) > 30 and line in written]


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fedmedlora", "fedmedlora_plus"])
def test_the_printed_formulas_shrink_the_adapters_and_say_so(
    run_once: RunTiny, caplog: pytest.LogCaptureFixture, method: str
) -> None:
    rest = (LORA, *SERVER, "federation.rounds=1")
    plain = run_once(f"method={{name: {method}}}", *rest)
    assert not caplog.messages
    printed = run_once(f"method={{name: {method}, literal: true}}", *rest)
    (message,) = caplog.messages
    assert message.startswith(f"{method}: with method.literal")
    for name, tensor in plain.state.tensors.items():
        assert torch.equal(printed.state.tensors[name], tensor / 3 if is_lora(name) else tensor)


def test_influence_is_exported_under_numbers_and_not_names(run_once: RunTiny, tmp_path: Path) -> None:
    from fedstrata.results.export import SUMMARY, export
    from fedstrata.results.result import open_result

    run = run_once(*PLUS)
    out = tmp_path / "out"
    export(open_result(run.folder), out, licence=None, language=None, with_names=False)
    state = json.loads((out / SUMMARY).read_text())["state"]
    assert set(state["influence"]) == {"site 1", "site 2", "site 3"}


def stores(run: Finished) -> dict[str, dict[str, torch.Tensor]]:
    clients = run.of("run")[0]["clients"]
    return {
        client: dict(ClientStore(run.folder / "clients" / client, run.summary["rounds"]).read().tensors)
        for client in clients
    }


def assert_sent(run: Finished, names: Collection[str]) -> None:
    """Tensors of these names, and headers."""
    size = untrained().bytes_of(list(names))
    assert size < run.summary["communication"]["bytes_up_per_client_round"] < size + 200 * (len(names) + 1)


def test_fedsa_lora_shares_a_and_keeps_b_and_the_head(
    run_tiny: RunTiny, travelling: dict[type, set[str]]
) -> None:
    run = run_tiny("method={name: fedsa_lora}", LORA, FEW[1])
    assert_sent(run, run.state.tensors)
    assert run.state.tensors
    for names in (travelling[Plan], travelling[Update], set(run.state.tensors)):
        assert names == {name for name in run.state.tensors if is_first_factor(name)}
    kept = stores(run)
    for own in kept.values():
        assert {name for name in own if "modules_to_save" in name}
        seconds = {name.replace(".lora_B.", ".lora_A.") for name in own if is_lora(name)}
        assert seconds == set(run.state.tensors)
        assert all(bool(tensor.any()) for name, tensor in own.items() if ".lora_B." in name)
    names = list(kept["site-1"])
    assert any(not torch.equal(kept["site-1"][name], kept["site-2"][name]) for name in names)
    scores = run.summary["metrics"]
    assert scores["global"] is not None
    assert all(scores["clients"].values())


def test_ffa_lora_never_moves_or_sends_a(run_tiny: RunTiny, travelling: dict[type, set[str]]) -> None:
    from fedstrata.results.result import open_result

    run = run_tiny("method={name: ffa_lora}", LORA, *FEW)
    assert_sent(run, run.state.tensors)
    assert not any(is_first_factor(name) for names in travelling.values() for name in names)
    assert travelling[Plan] == travelling[Update] == set(run.state.tensors)
    model, saved = untrained(), open_result(run.folder).model
    first = [name for name in model.layout.all if is_first_factor(name)]
    for name in first:
        assert torch.equal(model.tensors([name])[name], saved.tensors([name])[name])
    assert {name.replace(".lora_B.", ".lora_A.") for name in run.state.tensors if is_lora(name)} == set(first)
    assert run.summary["trainable_parameters"] == sum(tensor.numel() for tensor in run.state.tensors.values())
