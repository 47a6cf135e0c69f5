"""The model card of a finished run: what a stranger must know before using the model."""

import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from huggingface_hub import EvalResult, ModelCard, ModelCardData
from jinja2 import StrictUndefined, Template
from rich.filesize import decimal

from fedstrata.core.settings.adapter import AdapterSettings
from fedstrata.core.settings.model import TrainedTokenizer
from fedstrata.models.blocks import transformers_model
from fedstrata.models.given import names_factory
from fedstrata.models.plain import PlainModel
from fedstrata.record.privacy import withheld_scores
from fedstrata.record.scores import compared, overall, score_tables
from fedstrata.record.words import epsilon
from fedstrata.results.result import Result

PIPELINES = {
    "token-classification": "token-classification",
    "sequence-classification": "text-classification",
    "causal-lm": "text-generation",
}
"""The transformers pipeline of each kind of model."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What a card is made from.

    Attributes:
        result: The run.
        name: The model's name.
        licence: As the Hugging Face hub names it; none if it is not known.
        language: The code of the texts' language; none if it is not known.
        clients: The name of each client in the card.
        adapter: What the folder holds in place of a model; none if it holds a whole one.
    """

    result: Result
    name: str
    licence: str | None
    language: str | None
    clients: Mapping[str, str]
    adapter: AdapterSettings | None = None

    @property
    def synthetic(self) -> bool:
        """Whether the training data is the synthetic corpus, as far as is known here."""
        return not self.result.served and self.result.settings.data.format == "synthetic"

    @property
    def factory(self) -> str:
        """The name of the factory that gave the model; empty if none did."""
        name = self.result.settings.model.name
        return name if names_factory(name) else ""

    @property
    def plain(self) -> bool:
        """Whether the model is a module of one's own, which transformers does not know."""
        return isinstance(transformers_model(self.result.model.module), PlainModel)


def is_path(name: str) -> bool:
    """Whether a model's or a file's name is a place on this machine, and none on the hub or in a package."""
    return Path(name).is_absolute() or name.startswith(("~", ".")) or "\\" in name


def card_of(facts: Facts) -> ModelCard:
    """Returns the model card: what is said in it, and when, stands in `model_card.md`."""
    result, metrics = facts.result, facts.result.summary["metrics"]
    tested = [result.client] if result.client is not None else list(metrics["clients"])
    held_out = metrics.get("external") or {}
    text = (files("fedstrata.results") / "model_card.md").read_text(encoding="utf-8")
    card = Template(text, undefined=StrictUndefined).render(
        card_data=_metadata(facts).to_yaml(),
        name=facts.name,
        facts=facts,
        result=result,
        summary=result.summary,
        privacy=result.summary["privacy"],
        epsilon=epsilon,
        task=result.task,
        words=result.task.card_words(),
        source=method_source(result),
        trained_tokenizer=isinstance(result.settings.model.tokenizer, TrainedTokenizer),
        test_documents=_total(result.start["clients"][client]["test"] for client in tested),
        score_tables=score_tables(result.scores),
        summed=result.served and result.start.get("secure_aggregation") is not None,
        withheld=withheld_scores(result.start) if result.client is None else "",
        held_out=compared({facts.clients[site]: own for site, own in held_out.items()}),
        is_path=is_path,
        decimal=decimal,
    )
    return ModelCard(card)


def _total(counts: Iterable[int | None]) -> str:
    """Returns how many documents there are in all; where some are hidden, how many at least."""
    every = list(counts)
    known = sum(count for count in every if count is not None)
    return str(known) if None not in every else f"at least {known}"


def _metadata(facts: Facts) -> ModelCardData:
    """Returns the YAML head of the card, which the hub reads."""
    result = facts.result
    name, kind = result.settings.model.name, PIPELINES[result.task.kind]
    elsewhere = name == "mini" or ":" in name or is_path(name) or facts.factory
    on_hub = not (elsewhere or result.settings.model.init == "random")
    scores = overall(result.scores).items()
    metrics = {key: value for key, value in scores if not key.endswith("left_out")}  # those are counts
    known = ("fedstrata-synthetic", "synthetic clinical notes")
    data = known if facts.synthetic else ("private", "not named")
    results = [
        EvalResult(
            task_type=kind,
            dataset_type=data[0],
            dataset_name=data[1],
            dataset_split="test",
            metric_type=metric,
            metric_value=round(value, 4),
            metric_name=f"{metric}, test split of the run",
        )
        for metric, value in metrics.items()
    ]
    return ModelCardData(
        model_name=facts.name,
        language=facts.language or ("en" if facts.synthetic else None),
        license=facts.licence or "other",
        license_name=None if facts.licence else "not-stated",
        library_name="peft" if facts.adapter is not None else None if facts.plain else "transformers",
        pipeline_tag=kind,
        base_model=name if on_hub else None,
        tags=["fedstrata", "federated-learning", result.method.name],
        metrics=list(metrics) or None,
        eval_results=results or None,
    )


def method_source(result: Result) -> str:
    """Returns the paper of the method, as its own file names it."""
    text = sys.modules[type(result.method).__module__].__doc__ or ""
    found = re.search(r"^Source: (.*?)(?=^[A-Z][a-z ]*:|\Z)", text, flags=re.MULTILINE | re.DOTALL)
    return " ".join(found[1].split()).rstrip(".") if found else "not named"
