"""The exported folder: it works as its card says, and gives away no path and no site's name."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from huggingface_hub import ModelCard
from private_client import PRIVATE
from support import Finished, RunTiny, refused
from transformers import AutoModelForTokenClassification

from fedstrata.core.errors import ConfigurationError
from fedstrata.data.synthetic import generate
from fedstrata.data.writers import write
from fedstrata.methods import METHODS
from fedstrata.record.words import epsilon
from fedstrata.results.card import Facts, card_of, method_source
from fedstrata.results.export import export
from fedstrata.results.result import Result, open_result

GIVEN: dict[str, Any] = {"licence": None, "language": None, "with_names": False}


def exported(
    done: Finished, out: Path, *, client: str | None = None, **options: Any
) -> tuple[ModelCard, str]:
    """Exports and returns the card and all that a person can read in the folder."""
    export(open_result(done.folder, client=client), out, **GIVEN | options)
    readable = (path.read_text() for path in sorted(out.iterdir()) if path.suffix in (".md", ".json"))
    return ModelCard.load(out / "README.md"), "\n".join(readable)


def test_the_code_of_the_card_runs(
    run_once: RunTiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    card, _ = exported(run_once("federation.rounds=1", "training.learning_rate=1e-9"), tmp_path / "tagger")
    (code,) = re.findall(r"```python\n(.*?)```", card.text, flags=re.DOTALL)
    assert len(code.splitlines()) <= 4
    monkeypatch.chdir(tmp_path / "tagger")
    names: dict[str, Any] = {}
    exec(code, names)  # noqa: S102 - the card's own code is what is tested
    assert names["mentions"]
    groups = {mention["entity_group"] for mention in names["mentions"]}
    assert groups <= {"problem", "test", "treatment", "drug"}


@pytest.mark.parametrize("noise", ["seeded", pytest.param("secure", marks=pytest.mark.slow)])
def test_a_card_says_what_epsilon_covers_and_what_it_does_not(
    run_once: RunTiny, tmp_path: Path, noise: str
) -> None:
    run = run_once(*PRIVATE, f"privacy.noise={noise}", "federation.rounds=1")
    card, _ = exported(run, tmp_path / "private")
    told = card.text[card.text.index("## Privacy") :]
    assert f"**epsilon {epsilon(run.summary['privacy']['epsilon'])} at delta 0.01**" in told
    assert "**not covered by epsilon**" in told
    assert "Trained without" not in told
    assert ("An experiment that protects nobody" in told) == (noise == "seeded")


@pytest.mark.claim("security_review#no-epsilon")
def test_the_card_of_a_run_without_privacy_has_no_epsilon(run_once: RunTiny, tmp_path: Path) -> None:
    card, _ = exported(run_once("federation.rounds=1"), tmp_path / "plain")
    assert "Trained without differential privacy." in card.text
    assert "psilon" not in card.text


@pytest.mark.parametrize(("most", "told"), [("2", True), pytest.param("null", False, marks=pytest.mark.slow)])
def test_a_card_says_how_much_of_a_long_text_is_read(
    run_tiny: RunTiny, tmp_path: Path, most: str, told: bool
) -> None:
    classify = ("task.name=classify", "data.types=null", "federation.rounds=0")
    card, _ = exported(run_tiny(*classify, f"task.max_windows={most}"), tmp_path / "card")
    assert "overlapping windows" in card.text
    assert ("and reads the first 2 alone" in card.text) == told


def test_what_the_card_says_is_what_the_run_did(run_once: RunTiny, tmp_path: Path) -> None:
    done = run_once("federation.rounds=1")
    parts = list(done.of("run")[0]["clients"].values())
    unseen = sum(own["test"] for own in parts)
    card, _ = exported(done, tmp_path / "tagger", licence="apache-2.0")
    summary = done.summary
    head = card.data
    assert (head.license, head.language, head.library_name) == ("apache-2.0", "en", "transformers")
    assert head.pipeline_tag == "token-classification"
    assert head.base_model is None  # random weights are no model of the hub
    assert {item.metric_type: item.metric_value for item in head.eval_results} == {
        name: round(value, 4) for name, value in summary["metrics"]["global"].items() if "/" not in name
    }
    for fact in (
        "`layer_skipping`",
        METHODS["layer_skipping"].travels,
        "9,609 of 126,473 (7.6 %)",
        f"{summary['communication']['percent_of_full_model']:.1f} % of the whole model",
        "| seed | 0 |",
        "| site 1 | {train} | {validation} | {test} |".format(**parts[0]),
        f"{unseen} documents that were not trained on",
        "| | f1 | precision | recall | lenient_f1 |",
    ):
        assert fact in card.text, fact
    assert not re.search(r"None|nan|Undefined|\{\{|\{%", card.content)


def test_neither_paths_nor_names_of_sites_leave(run_tiny: RunTiny, tmp_path: Path) -> None:
    secret = tmp_path / "stmarys-hospital"
    corpus = [
        replace(document, site="st-marys", id=f"st-marys/{document.id.rpartition('/')[2]}")
        for document in generate(seed=1, sites=1, notes=12)
    ]
    write(corpus, secret / "notes", "jsonl")
    rows = [f"{document.id},{document.patient}" for document in corpus]
    (secret / "people.csv").write_text("\n".join(["document,patient", *rows]))
    done = run_tiny(
        "federation.rounds=0",
        "data.format=jsonl",
        f"data.path={secret / 'notes'}",
        f"data.patients={secret / 'people.csv'}",
        "data.synthetic={}",
        "name=stmarys",
    )
    assert "st-marys" in done.summary["metrics"]["clients"]
    card, readable = exported(done, tmp_path / "out")
    assert not re.search(r"st-?marys", readable)
    assert str(tmp_path) not in readable
    assert "people.csv" not in readable
    assert card.data.license == "other"
    assert "language" not in card.data.to_dict()
    _, named = exported(done, tmp_path / "named", with_names=True)
    assert "st-marys" in named


def test_the_summary_for_programs(run_once: RunTiny, tmp_path: Path) -> None:
    done = run_once("federation.rounds=1")
    exported(done, tmp_path / "out")
    facts = json.loads((tmp_path / "out" / "fedstrata.json").read_text())
    assert facts["metrics"]["global"] == done.summary["metrics"]["global"]
    assert list(facts["metrics"]["clients"].values()) == list(done.summary["metrics"]["clients"].values())
    assert list(facts["documents"]) == ["site 1", "site 2", "site 3"]
    assert facts["settings"]["task"]["max_length"] == 64
    assert facts["settings"]["model"]["tokenizer"] == "mini"
    assert facts["labels"][:3] == ["O", "B-drug", "I-drug"]


def test_the_model_of_one_client(run_once: RunTiny, tmp_path: Path) -> None:
    done = run_once("federation.rounds=1", "method={name: local_only}")
    card, readable = exported(done, tmp_path / "out", client="site-2")
    assert "site-1" not in readable  # not as the place of its model either
    own = done.summary["metrics"]["clients"]["site-2"]["precision"]
    (value,) = [item.metric_value for item in card.data.eval_results if item.metric_type == "precision"]
    assert value == round(own, 4)


def test_sites_held_out_of_training(run_tiny: RunTiny, tmp_path: Path) -> None:
    held_out = "data.split={test_sites: [site-3]}"
    done = run_tiny("federation.rounds=0", "method={name: local_only}", held_out)
    with refused(ConfigurationError, "missing", at="--client", values=["of: site-1, site-2  ["]):
        open_result(done.folder)
    card, readable = exported(done, tmp_path / "out", client="site-1")
    assert ":\n\n| | site 3 |\n|---|---:|\n| f1 |" in card.text
    assert not re.search(r"site-\d", readable)


@pytest.mark.slow
def test_the_card_of_an_experiment_with_corrupt_clients_says_so_and_names_none(
    run_tiny: RunTiny, tmp_path: Path
) -> None:
    done = run_tiny(
        "federation={rounds: 1, corrupt: {share: 0.2, kind: gaussian}}",
        "method={name: fedavg, aggregation: krum}",
        "data.synthetic={sites: 5, notes: 30}",
    )
    card, readable = exported(done, tmp_path / "out")
    assert re.search(r"`fedavg`, .*`krum`", card.text) and "`gaussian`" in card.text
    facts = json.loads((tmp_path / "out" / "fedstrata.json").read_text())
    assert facts["state"]["aggregation"]["chosen"][0].startswith("site ")
    assert facts["corrupt"]["clients"][0].startswith("site ")
    assert not re.search(r"site-\d", readable)


def test_pooled_training_sends_no_model(run_once: RunTiny, tmp_path: Path) -> None:
    done = run_once("federation.rounds=1", "method={name: centralized}")
    card, _ = exported(done, tmp_path / "out")
    assert METHODS["centralized"].travels in card.text
    assert "size of an update" not in card.text


def served_card(result: Result, **start: Any) -> str:
    """The card of that run, as if its clients had been processes of their own."""
    served = {**result.start, "id": "0123456789abcdef", **start}
    clients = dict.fromkeys(served["clients"], "a")
    return " ".join(str(card_of(Facts(replace(result, start=served), "tagger", None, None, clients))).split())


UNTESTED = ("federation.rounds=0", "data.split={train: 0.9, validation: 0.1, test: 0.0}")


def test_a_run_without_test_documents(run_once: RunTiny, tmp_path: Path) -> None:
    done = run_once(*UNTESTED)
    card, _ = exported(done, tmp_path / "out")
    assert card.data.eval_results is None
    assert "no test documents" in card.text


@pytest.mark.parametrize("kind", ["privacy", "secure_aggregation"])
def test_a_card_says_that_clients_have_kept_their_scores_and_not_that_there_are_no_documents(
    run_once: RunTiny, kind: str
) -> None:
    text = served_card(open_result(run_once(*UNTESTED).folder), **{kind: {"scores": "none"}})
    assert "privacy.scores: none" in text
    assert ("no mask hides those of one client" in text) == (kind == "privacy")
    assert "no test documents" not in text


@pytest.mark.parametrize("summed", [None, {"scores": "summed"}])
def test_the_card_of_a_served_run_says_nothing_of_documents_that_the_server_has_never_seen(
    run_once: RunTiny, summed: dict[str, str] | None
) -> None:
    """A server without data of its own has the synthetic notes in its settings, which nobody trained on."""
    result = open_result(run_once("federation.rounds=1").folder)
    text = served_card(result, data=None, secure_aggregation=summed)
    for wrong in ("ynthetic", "simulated in one process", "no text of a patient"):
        assert wrong not in text
    assert ("secure aggregation" in text) == ("nobody has seen those of a single client" in text)
    assert ("secure aggregation" in text) == bool(summed)


def test_a_folder_in_use_is_left_alone(run_once: RunTiny, tmp_path: Path) -> None:
    done = run_once("federation.rounds=1")
    with refused(ConfigurationError, "exists"):
        exported(done, done.folder)
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


@pytest.mark.parametrize("name", METHODS)
def test_every_method_names_its_source(name: str) -> None:
    source = method_source(SimpleNamespace(method=METHODS[name]()))
    assert source != "not named" and "Travels" not in source
    assert len(source) > 20


LORA = ("method={name: fedavg}", "adapter={kind: lora, rank: 2}", "federation.rounds=1")


@pytest.mark.slow  # that it can be kept is fast
def test_a_lora_is_merged_into_a_plain_model(run_once: RunTiny, tmp_path: Path) -> None:
    card, _ = exported(run_once(*LORA), tmp_path / "merged")
    files = {path.name for path in (tmp_path / "merged").iterdir()}
    assert "model.safetensors" in files and "adapter_config.json" not in files
    assert card.data.library_name == "transformers"
    merged = AutoModelForTokenClassification.from_pretrained(tmp_path / "merged")
    assert not any("lora" in name for name in merged.state_dict())


@pytest.mark.parametrize(
    "adapter",
    ["{kind: lora, rank: 2}", pytest.param("{kind: bottleneck, width: 4}", marks=pytest.mark.slow)],
)
def test_an_adapter_alone_names_no_place(run_once: RunTiny, tmp_path: Path, adapter: str) -> None:
    done = run_once("method={name: fedavg}", f"adapter={adapter}", "federation.rounds=1")
    card, _ = exported(done, tmp_path / "adapter", keep_adapter=True)
    files = {path.name for path in (tmp_path / "adapter").iterdir()}
    assert {"adapter_model.safetensors", "adapter_config.json"} <= files and "model.safetensors" not in files
    config = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())
    assert config["base_model_name_or_path"] is None
    assert card.data.library_name == "peft"
    assert ("fedstrata.adapters.bottleneck" in card.text) == ("bottleneck" in adapter)


def test_a_run_without_an_adapter_has_none_to_keep(run_once: RunTiny, tmp_path: Path) -> None:
    with refused(ConfigurationError, "not_found", at="--adapter"):
        exported(run_once("federation.rounds=1"), tmp_path / "x", keep_adapter=True)
    assert not (tmp_path / "x").exists()
