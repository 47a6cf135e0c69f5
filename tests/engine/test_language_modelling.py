"""Federated language modelling: models from scratch, fine-tuning, clients' own perplexity, predictions."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from support import Finished, assert_same_tensors, executed, refused
from transformers import AutoModelForCausalLM, AutoTokenizer, pipeline

from fedstrata.core.errors import ConfigurationError, TrainingError
from fedstrata.core.settings.source import read_source
from fedstrata.data.readers import read
from fedstrata.planning.plan import make_plan
from fedstrata.results.export import export
from fedstrata.results.predict import check_output, open_inputs, predict_files
from fedstrata.results.result import open_result

GPT2 = "model.config={model_type: gpt2, n_embd: 16, n_layer: 3, n_head: 2, n_positions: 64}"
PLAIN = (
    "model.config={model_type: openai-gpt, n_embd: 16, n_layer: 3, n_head: 2, n_positions: 64, "
    "attn_pdrop: 0.0, resid_pdrop: 0.0, embd_pdrop: 0.0}"
)
UNTIED = (
    "model.config={model_type: llama, hidden_size: 16, intermediate_size: 24, num_hidden_layers: 3, "
    "num_attention_heads: 2, num_key_value_heads: 2}"
)
WORDS = "model.tokenizer={train: words, vocabulary: 60, lower_case: true}"
LM = (
    "data.format=text",
    "data.text.documents=paragraphs",
    "task={name: lm, max_length: 16}",
    "model.init=random",
    "training.learning_rate=0.01",
    "training.batch_size=4",
    "federation.rounds=2",
    "method={name: fedavg}",
    "federation.floors=false",
    WORDS,
)


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two sites with sentences of one pattern."""
    folder = tmp_path_factory.mktemp("texts")
    for site, drugs in (("north", ("aspirin", "heparin")), ("south", ("insulin", "metformin"))):
        (folder / site).mkdir(parents=True)
        lines = [f"The patient {n} takes {drugs[n % 2]} daily .\nNo fever , no pain ." for n in range(12)]
        (folder / site / "notes.txt").write_text("\n\n".join(lines))
    return folder


def run(folder: Path, *overrides: str, **how: bool) -> Finished:
    return executed(folder, overrides, **how)


def base(texts: Path, *overrides: str) -> tuple[str, ...]:
    return (*LM, f"data.path={texts}", GPT2, *overrides)


@pytest.fixture(scope="module")
def whole(texts: Path, tmp_path_factory: pytest.TempPathFactory) -> Finished:
    return run(tmp_path_factory.mktemp("whole") / "run", *base(texts))


@pytest.mark.parametrize(
    ("model", "method"),
    [
        (GPT2, "{name: layer_skipping, top: 1}"),
        pytest.param(PLAIN, "{name: fedavg}", marks=pytest.mark.slow),
        pytest.param(UNTIED, "{name: fedprox, mu: 0.1}", marks=pytest.mark.slow),
    ],
    ids=["gpt2", "openai-gpt", "llama"],
)
def test_models_from_scratch_learn_to_predict(texts: Path, tmp_path: Path, model: str, method: str) -> None:
    done = run(tmp_path / "run", *base(texts, model, f"method={method}", "federation.rounds=3"))
    scores = [event["global"] for event in done.of("round")]
    assert scores[-1]["perplexity"] < scores[0]["perplexity"]
    assert scores[-1]["perplexity"] == pytest.approx(math.exp(scores[-1]["loss"]))
    assert done.summary["metrics"]["best"] == {"perplexity": scores[-1]["perplexity"], "round": 3}
    assert done.of("run")[0]["lower_is_better"] == ["bits_per_byte", "loss", "perplexity"]
    loaded = AutoModelForCausalLM.from_pretrained(done.folder / "model")
    tokenizer = AutoTokenizer.from_pretrained(done.folder / "model")
    assert loaded.config.vocab_size == len(tokenizer) <= 60


def test_after_full_rounds_a_run_fine_tunes_the_model_of_another(
    whole: Finished, texts: Path, tmp_path: Path
) -> None:
    """Two commands: the second starts where the first ended, with its tokenizer."""
    other = [item for item in base(texts) if not item.startswith("model.")]
    top = ("method={name: layer_skipping, top: 1}", "training.learning_rate=1e-9", "federation.rounds=1")
    tuned = run(tmp_path / "second", *other, f"model.name={whole.folder / 'model'}", *top)
    before, after = (done.summary["metrics"]["global"]["perplexity"] for done in (whole, tuned))
    assert after == pytest.approx(before, rel=1e-4)
    one, other = (own.folder / "model" / "tokenizer.json" for own in (whole, tuned))
    assert one.read_bytes() == other.read_bytes()


def test_a_resumed_run_has_the_tokenizer_it_began_with(whole: Finished, texts: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    run(broken, *base(texts, "federation.rounds=1"))
    resumed = run(broken, "federation.rounds=2", resume=True)
    assert_same_tensors(whole.state.tensors, resumed.state.tensors)
    assert resumed.summary["metrics"] == whole.summary["metrics"]
    for folder in (whole.folder, broken):
        kept = AutoTokenizer.from_pretrained(folder / "tokenizer")
        assert kept.get_vocab() == AutoTokenizer.from_pretrained(folder / "model").get_vocab()
    text = (broken / "tokenizer" / "tokenizer.json").read_text().replace('"aspirin"', '"warfarin"')
    (broken / "tokenizer" / "tokenizer.json").write_text(text)
    run(broken, "federation.rounds=3", resume=True)
    assert "warfarin" in AutoTokenizer.from_pretrained(broken / "model").get_vocab(), "none is built anew"


@pytest.mark.parametrize(
    "method",
    [pytest.param("{name: fedavg}", marks=pytest.mark.slow), "{name: layer_skipping, top: 1, head: local}"],
)
def test_clients_own_models_are_scored_without_a_trace(texts: Path, tmp_path: Path, method: str) -> None:
    overrides = base(texts, UNTIED, f"method={method}", "federation.evaluate_every=2", "federation.rounds=3")
    plain = run(tmp_path / "plain", *overrides)
    scored = run(tmp_path / "scored", *overrides, "federation.score_clients=true", report=True)
    assert_same_tensors(plain.state.tensors, scored.state.tensors)
    for one, other in zip(plain.of("round"), scored.of("round"), strict=True):
        assert (one["loss"], one.get("global")) == (other["loss"], other.get("global"))
        assert one["exchanges"] == other["exchanges"]
    assert [event["trained"] for event in plain.of("round")] == [None] * 3
    assert plain.summary["metrics"]["trained"] is None
    first, second, third = (event["trained"] for event in scored.of("round"))
    assert (first, set(second), set(third)) == (None, {"validation"}, {"validation", "test"})
    own = third["test"]["clients"]
    assert own.keys() == {"north", "south"}
    assert own["north"] != own["south"]
    mean = sum(scores["perplexity"] for scores in own.values()) / 2
    assert third["test"]["mean"]["perplexity"] == pytest.approx(mean)
    trained = scored.summary["metrics"]["trained"]
    assert (trained["clients"], trained["mean"]) == (own, third["test"]["mean"])
    best = min(
        (event["validation"]["mean"]["perplexity"], number) for number, event in ((2, second), (3, third))
    )
    assert trained["best"] == {"perplexity": best[0], "round": best[1]}
    spent = scored.of("round")[-1]
    assert spent["evaluate_seconds"] + spent["train_seconds"] < spent["seconds"]


def test_a_model_that_a_client_distorts_is_no_clients_own(texts: Path, tmp_path: Path) -> None:
    corrupt = "federation.corrupt={share: 0.25, kind: scale, strength: 1e30}"
    robust = "method={name: fedavg, aggregation: median}"
    done = run(
        tmp_path / "run", *base(texts, robust, corrupt), "partition={by: tokens, clients: 4}",
        "federation.score_clients=true", "federation.rounds=1",
    )  # fmt: skip
    (start,), (event,) = done.of("run"), done.of("round")
    honest = {name for name, parts in start["clients"].items() if parts["train"]}
    honest -= set(start["corrupt"]["clients"])
    assert event["trained"]["test"]["clients"].keys() == honest
    assert len(honest) == 3


@pytest.mark.parametrize(
    ("method", "code"), [("{name: fedavg}", "diverged"), ("{name: fedtlu}", "not_finite")]
)
def test_a_model_that_is_no_longer_finite_is_an_error_that_says_so(
    texts: Path, tmp_path: Path, method: str, code: str
) -> None:
    corrupt = "federation.corrupt={share: 0.5, kind: scale, strength: 1e45}"
    with refused(TrainingError, code):
        run(tmp_path / "run", *base(texts, f"method={method}", corrupt))


def test_the_only_client_of_a_round_has_the_global_model_after_it(texts: Path, tmp_path: Path) -> None:
    """What is scored is what was sent: of one client the mean is its own model."""
    done = run(tmp_path / "run", *base(texts, "method={name: centralized}", "federation.score_clients=true"))
    for event in done.of("round"):
        (own,) = event["trained"]["validation"]["clients"].values()
        assert own == pytest.approx(event["global"], rel=1e-6)
    assert done.summary["metrics"]["trained"]["mean"] == pytest.approx(
        done.summary["metrics"]["global"], rel=1e-6
    )


def test_prediction_is_each_documents_own_perplexity(whole: Finished, texts: Path, tmp_path: Path) -> None:
    result = open_result(whole.folder)
    inputs = open_inputs(texts, "text", check_output(result.task, None), result.settings.data)
    outcome = predict_files(result, inputs, tmp_path / "out", "jsonl", lambda count: None)
    facts = [own.metadata for own in read(tmp_path / "out" / "predictions.jsonl", "jsonl")]
    assert len(facts) == outcome.documents == 24
    total, tokens = (sum(float(own[key]) for own in facts) for key in ("nats", "tokens"))
    assert outcome.scores is not None
    assert not outcome.unknown
    assert outcome.scores["perplexity"] == pytest.approx(math.exp(total / tokens), rel=1e-4)
    first = float(facts[0]["nats"]) / float(facts[0]["tokens"])
    assert float(facts[0]["perplexity"]) == pytest.approx(math.exp(first), rel=1e-4)
    with refused(ConfigurationError, "not_supported", at="--format", values=["lm", "jsonl", "'brat'"]):
        check_output(result.task, "brat")


def test_an_exported_model_goes_on_with_a_text(whole: Finished, tmp_path: Path) -> None:
    export(open_result(whole.folder), tmp_path / "out", licence=None, language=None, with_names=False)
    card = (tmp_path / "out" / "README.md").read_text()
    assert "pipeline_tag: text-generation" in card
    assert "| perplexity | " in card
    kept = AutoModelForCausalLM.from_pretrained(tmp_path / "out").generation_config
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out")
    assert (kept.eos_token_id, kept.pad_token_id) == (tokenizer.eos_token_id, tokenizer.pad_token_id)
    generator = pipeline("text-generation", model=str(tmp_path / "out"))
    (answer,) = generator("The patient", max_new_tokens=3, do_sample=False)
    assert answer["generated_text"].lower().startswith("the patient")


def test_a_plan_counts_what_clients_models_cost(texts: Path) -> None:
    overrides = base(texts, "federation.rounds=3")
    plan = make_plan(read_source(None, overrides), seconds=0.0)
    assert plan.task == "lm"
    assert plan.metrics == ("perplexity", "loss", "bits_per_byte")
    more = make_plan(read_source(None, [*overrides, "federation.score_clients=true"]), seconds=0.0)
    assert more.communication == plan.communication
    assert more.time["evaluate_seconds"] > plan.time["evaluate_seconds"]


def test_the_shape_of_a_model_may_come_from_a_folder_and_the_tokens_from_the_texts(
    texts: Path, tmp_path: Path
) -> None:
    shape = "model.config={num_hidden_layers: 1}"
    done = run(tmp_path / "run", *base(texts, "model.name=mini", shape, "federation.rounds=1"))
    config = AutoModelForCausalLM.from_pretrained(done.folder / "model").config
    assert (config.model_type, config.hidden_size, config.num_hidden_layers) == ("llama", 192, 1)
    assert config.vocab_size == len(AutoTokenizer.from_pretrained(done.folder / "model"))


def test_bytes_spell_every_text(texts: Path, tmp_path: Path) -> None:
    own = "model.tokenizer={train: bytes, vocabulary: 300}"
    done = run(tmp_path / "run", *base(texts, own, "federation.rounds=1"))
    tokenizer = AutoTokenizer.from_pretrained(done.folder / "model")
    text = "Naïve 体温 38.5 °C\n😀 no fever"
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text
    model = AutoModelForCausalLM.from_pretrained(done.folder / "model")
    assert model.get_input_embeddings().weight.shape[0] == len(tokenizer) <= 300
    assert torch.equal(model.get_input_embeddings().weight, model.get_output_embeddings().weight)
