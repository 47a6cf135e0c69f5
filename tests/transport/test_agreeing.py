"""What the server compares when a client comes, of weights that it does not keep itself."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from support import TINY, refused

from fedstrata.core.errors import ConfigurationError, RefusedError
from fedstrata.core.settings.source import read_source
from fedstrata.engine.prepare import Experiment, prepare_client, prepare_server
from fedstrata.engine.remote.agreeing import Agreements
from fedstrata.engine.remote.joining import RemoteClient

EMBEDDING, LOWEST = "model.embed_tokens.weight", "model.layers.0.mlp.up_proj.weight"
CLIENTS = ("site-1", "site-2")
METHOD = "method={name: fl_llama, cuts: {site-2: {front: 0, back: 1}}}"

Greetings = dict[str, dict[str, Any]]


@pytest.fixture(scope="module")
def greetings(tmp_path_factory: pytest.TempPathFactory) -> Greetings:
    """What two clients say, of which the second leaves the server a block more."""
    source, found = read_source(None, [*TINY, METHOD, "data.synthetic.notes=12"]), {}
    for client in CLIENTS:
        home = tmp_path_factory.mktemp(client)
        remote = RemoteClient(prepare_client(source, client), client, home, lambda event, facts: None)
        found[client] = {**remote.greeting, "facts": dict(remote.agreement.facts)}
    return found


@pytest.fixture(scope="module")
def agreements() -> Callable[..., Agreements]:
    experiment = prepare_server(read_source(None, [*TINY, METHOD, "data.synthetic.notes=12"]), CLIENTS)
    return lambda **options: Agreements(experiment, CLIENTS, 2**26, **options)


def changed(greeting: Mapping[str, Any], part: str, name: str, value: Any) -> dict[str, Any]:
    return {**greeting, part: {**greeting[part], name: value}}


def test_what_clients_hold_is_agreed_on_though_the_server_has_it_not(
    agreements: Callable[..., Agreements], greetings: Greetings
) -> None:
    agree = agreements()
    for client in CLIENTS:
        agreed = agree(client, greetings[client])
        assert set(agreed.trained) == set(greetings[client]["trained"])
        assert EMBEDDING in agreed.trained
    assert LOWEST not in agreed.trained  # of the second client; the server has it
    assert agreed.conversation.rows == greetings["site-2"]["rows"]


EXTRACT = "task={name: extract, templates: short, max_length: 320, tasks: [ner], mentions: %s}"


def test_a_server_without_documents_agrees_on_what_was_set_and_not_on_what_clients_found(
    tmp_path: Path,
) -> None:
    """Templates and types that are left open are filled in by each client from its documents."""
    given = (*TINY, METHOD, "data.synthetic.notes=12")
    source = read_source(None, [*given, EXTRACT % "[problem, drug]"])
    agree = Agreements(prepare_server(source, CLIENTS), CLIENTS, 2**26)
    remote = RemoteClient(prepare_client(source, "site-1"), "site-1", tmp_path, lambda event, facts: None)
    assert agree("site-1", {**remote.greeting, "facts": dict(remote.agreement.facts)})
    other = {**remote.agreement.facts, "task.mentions": ["problem"]}
    with refused(RefusedError, "conflict", values=["task.mentions: 'drug' at the server"]):
        agree("site-1", {**remote.greeting, "facts": other})
    with refused(ConfigurationError, "missing", at="task.mentions", values=["'auto'"]):
        prepare_server(read_source(None, [*given, EXTRACT % "auto"]), CLIENTS)


@pytest.mark.claim("processes#other-weights")
def test_a_client_with_false_weights_that_comes_first_has_nobody_else_refused(
    agreements: Callable[..., Agreements], greetings: Greetings
) -> None:
    """Of a weight that the server does not keep: it reads the model of its configuration."""
    agree = agreements()
    own = greetings["site-1"]["weights"][EMBEDDING]
    told = [f"{EMBEDDING} is 0123 at client 'site-1'", f"{own} at the server"]
    with refused(RefusedError, "other_weights", values=told):
        agree("site-1", changed(greetings["site-1"], "weights", EMBEDDING, "0123"))
    agree("site-2", greetings["site-2"])
    agree("site-1", greetings["site-1"])  # comes again with the right ones
    more = changed(greetings["site-1"], "weights", "elsewhere", "0123")
    with refused(RefusedError, "unknown_name", values=["'site-1'", "elsewhere"]):
        agree("site-1", more)


def test_the_weights_of_a_saved_model_are_read_in_parts(saved: Callable[..., Path], tmp_path: Path) -> None:
    """By the server, which keeps no more than the middle: they are those of a client that reads its side."""
    folder = saved("llama", config={"num_hidden_layers": 4})
    given = [item for item in TINY if not item.startswith("model")]
    source = read_source(None, [*given, METHOD, f"model.name={folder}", "adapter={kind: lora, rank: 2}"])
    agree = Agreements(prepare_server(source, CLIENTS), CLIENTS, 2**26)
    for client in CLIENTS:
        remote = RemoteClient(prepare_client(source, client), client, tmp_path, lambda event, facts: None)
        own = {**remote.greeting, "facts": dict(remote.agreement.facts)}
        agree(client, own)
        name = next(name for name in own["weights"] if "embed" in name)
        values = [f"{name} is 0123 at client '{client}'", "at the server"]
        with refused(RefusedError, "other_weights", values=values):
            agree(client, changed(own, "weights", name, "0123"))


def test_a_client_with_other_weights_than_the_server_or_the_beginning_is_refused(
    agreements: Callable[..., Agreements], greetings: Greetings
) -> None:
    told = [f"{LOWEST} is 0123 at client 'site-1'", "at the server"]
    with refused(RefusedError, "other_weights", values=told):
        agreements()("site-1", changed(greetings["site-1"], "weights", LOWEST, "0123"))
    with refused(RefusedError, "other_weights", values=[EMBEDDING, "0123 at the beginning"]):
        agreements(known={EMBEDDING: "0123"})("site-1", greetings["site-1"])


def test_a_client_that_does_not_say_its_weights_is_refused(
    agreements: Callable[..., Agreements], greetings: Greetings
) -> None:
    agree, own = agreements(), greetings["site-1"]
    partly = {name: value for name, value in own["weights"].items() if name != EMBEDDING}
    for weights, missing in (
        (partly, 1),
        ({}, len(own["weights"])),
        (dict.fromkeys(own["weights"]), len(own["weights"])),
    ):
        with refused(RefusedError, "missing", values=[f"{missing} hashes", EMBEDDING]):
            agree("site-1", {**own, "weights": weights})


def test_a_client_whose_ends_are_called_or_shaped_otherwise_is_refused(
    agreements: Callable[..., Agreements], greetings: Greetings
) -> None:
    agree, own = agreements(), greetings["site-1"]
    for other, code, values in (
        (
            changed(own, "trained", EMBEDDING, ["float32", [3, 32]]),
            "conflict",
            [f"{EMBEDDING} is ['float32', [3, 32]]"],
        ),
        (
            changed(own, "trained", "other", ["float32", [3]]),
            "conflict",
            ["other is ", "at client 'site-1', None"],
        ),
        ({**own, "trained": None}, "missing", ["it holds"]),
        ({**own, "length": 0}, "missing", ["it holds"]),
        ({**own, "examples": 0}, "missing", ["examples"]),
        ({**own, "examples": 10**400}, "missing", ["examples"]),
        ({**own, "documents": "x"}, "missing", ["documents", "train, validation, test"]),
        (changed(own, "windows", "test", -1), "missing", ["windows", " of test"]),
    ):
        with refused(RefusedError, code, values=values):
            agree("site-1", other)


def test_a_site_that_lacks_a_label_takes_part_where_all_are_named(tmp_path: Path) -> None:
    """Each machine has the documents of its own client; the server needs none then."""
    tiny = [item for item in TINY if not item.startswith(("data", "task"))]
    settings = [*tiny, "method.name=fl_llama", "federation.min_clients=2"]

    def client(name: str, labels: str, *more: str) -> Experiment:
        documents = [
            {**note, "id": f"{number}", "site": name, "spans": [{"start": 0, "end": 4, "label": label}]}
            for number, label in enumerate(labels * 6)
        ]
        path = tmp_path / f"{name}.jsonl"
        path.write_text("\n".join(map(json.dumps, documents)))
        data = f"data={{format: jsonl, path: {path}}}"
        return prepare_client(read_source(None, [*settings, data, *more]), name)

    def said(experiment: Experiment, name: str) -> Mapping[str, Any]:
        remote = RemoteClient(experiment, name, tmp_path / "home", lambda event, facts: None)
        return {**remote.greeting, "facts": dict(remote.agreement.facts)}

    note, named, auto = {"text": "Pain today."}, "task={name: ner, types: [a, b, c]}", "task={name: ner}"
    elsewhere = "data={format: jsonl, path: /nowhere}"
    both = ("north", "south")
    server = prepare_server(read_source(None, [*settings, named, elsewhere]), both)
    agree = Agreements(server, both, 2**26)
    agree("north", said(client("north", "ab", named, "data.types=[a, b, c]"), "north"))
    agree("south", said(client("south", "abc", named), "south"))
    told = ["labels: ", "c' at the server", "task.types:"]
    with refused(RefusedError, "conflict", values=told):
        agree("north", said(client("north", "ab", auto), "north"))
    with refused(ConfigurationError, "missing", values=["'d'", "'11'"]):
        client("north", "abcd", named)
    with pytest.raises(ConfigurationError, match="data"):
        prepare_server(read_source(None, [*settings, auto, elsewhere]), both)
