"""The model card of a finished run: what a stranger must know before using the model."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from huggingface_hub import EvalResult, ModelCard, ModelCardData
from rich.filesize import decimal

from fedstrata.core.settings.model import TrainedTokenizer
from fedstrata.core.settings.task import ClassifySettings, NerSettings
from fedstrata.record.scores import compared, overall, score_tables
from fedstrata.tasks.mention_pairs.markers import marked_example
from fedstrata.tasks.relations import RelationClassification

if TYPE_CHECKING:
    from fedstrata.core.settings.adapter import AdapterSettings
    from fedstrata.results.result import Result

PIPELINES = {
    "token-classification": "token-classification",
    "sequence-classification": "text-classification",
    "causal-lm": "text-generation",
}
"""The transformers pipeline of each kind of model."""

TEXT = "The patient has chest pain and takes aspirin."
CODE = {
    "token-classification": f"""from transformers import pipeline

tagger = pipeline("token-classification", model=".", aggregation_strategy="simple")
mentions = tagger("{TEXT}")""",
    "sequence-classification": f"""from transformers import pipeline

classifier = pipeline("text-classification", model=".", top_k=None)
labels = classifier("{TEXT}")""",
    "causal-lm": """from transformers import pipeline

generator = pipeline("text-generation", model=".")
text = generator("The patient has", max_new_tokens=40)[0]["generated_text"]""",
}

RELATION_CODE = f"""from transformers import AutoModelForTokenClassification, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained(".")
model = AutoModelForTokenClassification.from_pretrained(".").eval()
text = "{TEXT}"
inputs = tokenizer(text, return_tensors="pt")
marks = [inputs.char_to_token(text.rindex(sign)) for sign in "@#"]  # the closing ones
relation = model.config.id2label[int(model(**inputs).logits[0, marks].sum(dim=0).argmax())]"""
"""How a pair of mentions is classified, which no pipeline does."""

LANGUAGE_MODELS = {
    "lm": (
        "Says how likely a text is, and goes on with one: a language model.",
        "cuts longer texts into such windows",
        "the scores above are those of texts packed into such windows one after the other",
    ),
    "extract": (
        "Marks mentions and their modifiers in a sentence, as it is told to: a language model.",
        "asks it about one sentence at a time",
        "the pipeline above goes on with any text, and knows nothing of these instructions",
    ),
    "cloze": (
        "Answers questions with the likeliest of given answers: a language model.",
        "cuts longer texts at their end",
        "the pipeline above goes on with any text, and compares no answers",
    ),
    "summarize": (
        "Writes what a text comes to: a language model.",
        "cuts longer texts at their end",
        "the pipeline above goes on with any text, and knows nothing of the instruction",
    ),
}
"""What a language model of each task does; what becomes of long texts; what the pipeline does not."""

AUTO = {
    "token-classification": "AutoModelForTokenClassification",
    "sequence-classification": "AutoModelForSequenceClassification",
    "causal-lm": "AutoModelForCausalLM",
}
"""The transformers class of each kind of model."""

FORMAT_NAMES = {
    "i2b2": "in i2b2-2010 form",
    "brat": "in BRAT form",
    "conll": "in CoNLL form",
    "jsonl": "as JSON lines",
    "pubtator": "in PubTator form",
    "mtsamples": "in the form of MTSamples",
    "mimic": "in the form of MIMIC-III",
    "datasets": "in tables",
    "conllu": "in CoNLL-U form",
    "text": "as plain text",
    "ag_news": "in the form of AG News",
    "glue": "in the form of GLUE",
    "superglue": "in the form of SuperGLUE",
    "mts_dialog": "in the form of MTS-Dialog",
}

SCORED_AS = (
    "; a mention counts as found if its type and both its ends are right (`lenient`: if its type is, and it "
    "overlaps; `untyped`: whatever its type)"
)
"""What the scores of mentions mean."""
RELATIONS_SCORED_AS = (
    "; a relation counts as found if its type and both its mentions are right (`lenient`: if its type is, "
    "and both overlap; `untyped`: whatever its type)"
)
"""What the scores of relations mean."""


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


def is_path(name: str) -> bool:
    """Whether a model's or a file's name is a place on this machine, and none on the hub or in a package."""
    return Path(name).is_absolute() or name.startswith(("~", ".")) or "\\" in name


def card_of(facts: Facts) -> ModelCard:
    """Returns the model card."""
    template = (files("fedstrata.results") / "model_card.md").read_text(encoding="utf-8")
    card: ModelCard = ModelCard.from_template(
        _metadata(facts),
        template_str=template,
        name=facts.name,
        code=_code(facts),
        **_description(facts),
        **_making(facts),
        **_scores(facts),
    )
    return card


def _code(facts: Facts) -> str:
    """Returns how to use the folder."""
    kind, task = facts.result.task.kind, facts.result.task
    if facts.adapter is None:
        if isinstance(task, RelationClassification):
            return RELATION_CODE.replace(TEXT, marked_example(task.modifiers, typed=task.settings.typed))
        return CODE[kind]
    own = "import fedstrata.adapters.bottleneck\n" if facts.adapter.kind == "bottleneck" else ""
    labels = "" if kind == "causal-lm" else f", num_labels={len(facts.result.task.labels)}"
    return f"""{own}from peft import PeftModel
from transformers import {AUTO[kind]}, AutoTokenizer

base = {AUTO[kind]}.from_pretrained(BASE{labels})  # the model this was trained from
model = PeftModel.from_pretrained(base, ".")"""


def _metadata(facts: Facts) -> ModelCardData:
    """Returns the YAML head of the card, which the hub reads."""
    result = facts.result
    name, kind = result.settings.model.name, PIPELINES[result.task.kind]
    on_hub = not (name == "mini" or ":" in name or is_path(name) or result.settings.model.init == "random")
    scores = overall(result.scores).items()
    metrics = {key: value for key, value in scores if not key.endswith("left_out")}  # those are counts
    data = ("private", "not named")
    if facts.synthetic:
        data = ("fedstrata-synthetic", "synthetic clinical notes")
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
        library_name="transformers" if facts.adapter is None else "peft",
        pipeline_tag=kind,
        base_model=name if on_hub else None,
        tags=["fedstrata", "federated-learning", result.method.name],
        metrics=list(metrics) or None,
        eval_results=results or None,
    )


def _description(facts: Facts) -> dict[str, Any]:
    """Returns the paragraphs of the card."""
    result = facts.result
    labels = result.task.labels
    limits = f"It was trained on windows of {result.settings.task.max_length} tokens"
    cut = "cuts longer texts into overlapping windows"
    if isinstance(result.task, RelationClassification):
        what = f"Says how two mentions of a text are related: the likeliest of {', '.join(labels)}. They are "
        what += "marked as below, the main mention by `@ * type * ... @`, its modifier by `# ^ type ^ ... #`."
        limits += f" around two mentions, at most {result.task.settings.most_words} words apart"
        cut = "asks it about every such pair of the mentions that a text comes with"
        long = "other text means nothing to it"
    elif result.task.kind == "token-classification":
        types = [label[2:] for label in labels if label.startswith("B-")]
        what = f"Finds mentions in text, of these types: {', '.join(types)}."
        long = "the pipeline above does not, unless it is given a `stride`"
        if isinstance(result.settings.task, NerSettings) and result.settings.task.whole_words:
            long += ", and finds pieces of words where `fedstrata predict` finds whole words"
    elif result.task.kind == "causal-lm":
        what, cut, long = LANGUAGE_MODELS[result.settings.task.name]
    else:
        what = f"Labels texts, with {_how_many(facts)} these {len(labels)} labels: {', '.join(labels)}."
        long = "the pipeline above takes them as one window, longer than any it was trained on"
        if isinstance(result.settings.task, ClassifySettings) and result.settings.task.max_windows:
            cut += f" and reads the first {result.settings.task.max_windows} alone"
    if result.client is not None:
        what += f" This is the model of one client, {facts.clients[result.client]}, made for its own notes."
    return {
        "what": what,
        "use_text": f"To use it with {'PEFT' if facts.adapter else 'transformers'}, in this folder:",
        "data": _data(facts),
        "limits": f"{limits}. `fedstrata predict` {cut}; {long}.",
        "privacy": _privacy(facts),
        "licence_text": f"`{facts.licence}`."
        if facts.licence
        else "Not stated (`other`): state one in the head of this file before you hand the model on. The "
        "licence of the starting point and the terms of the training data both bear on it.",
    }


def _how_many(facts: Facts) -> str:
    """Says how many labels a text is given, and by what rule."""
    settings = facts.result.settings.task
    if isinstance(settings, ClassifySettings) and settings.problem_type == "multi_label":
        return f"each that has a probability of {settings.threshold:g} or more, of"
    return "the likeliest of"


def _data(facts: Facts) -> str:
    """Says what kind of documents the model was trained on, and not where they lie."""
    settings = facts.result.settings
    if facts.result.served:
        return "Documents of the clients, which only they have seen. Clients were processes of their own."
    if facts.synthetic:
        text = "Synthetic clinical notes that fedstrata generates; no text of a patient."
    else:
        kind = "Annotated documents" if facts.result.task.needs_annotations else "Documents"
        text = f"{kind} {FORMAT_NAMES[settings.data.format]}. Where they lie is left out here."
    clients = "are the sites" if settings.partition.by == "site" else f"were made `{settings.partition.by}`"
    corrupt = facts.result.summary.get("corrupt")
    if corrupt:
        count = f"{len(corrupt['clients'])} of {facts.result.summary['clients']}"
        text += (
            f" On purpose {count} clients were corrupt (`{corrupt['kind']}`), so this model is an experiment."
        )
    return f"{text} Clients {clients}; they were simulated in one process, with every byte counted."


def _privacy(facts: Facts) -> str:
    """Says what is known of how much the model gives away."""
    private = facts.result.summary["privacy"]
    if private["epsilon"] is not None:
        return (
            f"Trained with differential privacy ({private['mechanism']}): epsilon {private['epsilon']:g} at "
            f"delta {private['delta']:g}."
        )
    text = "Trained without differential privacy. "
    if isinstance(facts.result.settings.model.tokenizer, TrainedTokenizer):
        text += (
            "The tokenizer was built from the training texts: its vocabulary shows which words occur there. "
        )
    if facts.synthetic:
        return text + "Its training notes are synthetic, so it can give no patient away."
    return text + (
        "A model can give away text that it was trained on, and so can the updates that were sent: treat it "
        "as you would treat the notes, until the owners of the data have agreed to more."
    )


def _making(facts: Facts) -> dict[str, Any]:
    """Returns the rows of the tables on how the model was made."""
    result, summary = facts.result, facts.result.summary
    parameters, trained = summary["model"]["parameters"], summary["trainable_parameters"]
    sent = summary["communication"]
    moved = sent["bytes_up"] is not None
    rule = result.method.robust_rule
    merged_by = "" if rule is None else f", updates merged by `{rule}`"
    rows = [{"name": facts.clients[client], **parts} for client, parts in result.start["clients"].items()]
    return {
        "method": f"`{result.method.name}`{merged_by}",
        "source": method_source(result),
        "travels": result.method.travels,
        "base": _base(facts),
        "trained": f"{trained:,} of {parameters:,} ({100 * trained / parameters:.1f} %)",
        "rounds": summary["rounds"],
        "client_count": summary["clients"],
        "sent": f"{decimal(sent['bytes_up'])} up, {decimal(sent['bytes_down'])} down" if moved else None,
        "update": f"{sent['percent_of_full_model']:.1f} %" if moved else None,
        "seed": summary["seed"],
        "versions": ", ".join(f"{name} {number}" for name, number in result.start["versions"].items()),
        "clients": rows,
    }


def _base(facts: Facts) -> str:
    """Says which model was fine-tuned."""
    settings, blocks = facts.result.settings.model, facts.result.summary["model"]["blocks"]
    if settings.init == "random":
        family = settings.config.get("model_type", settings.name)
        return f"random weights, {'a folder of its own' if is_path(family) else family} with {blocks} blocks"
    if settings.name == "mini":
        return f"`mini`, the small model that comes with fedstrata (Apache-2.0), {blocks} blocks"
    if is_path(settings.name):
        return f"a model in a folder of its own, {blocks} blocks"
    if settings.name.startswith("package:"):
        return f"the Python package `{settings.name.removeprefix('package:')}`, {blocks} blocks"
    revision = f" at `{settings.revision}`" if settings.revision else ""
    return f"[{settings.name}](https://huggingface.co/{settings.name}){revision}, {blocks} blocks"


def method_source(result: Result) -> str:
    """Returns the paper of the method, as its own file names it."""
    text = sys.modules[type(result.method).__module__].__doc__ or ""
    found = re.search(r"^Source: (.*?)(?=^[A-Z][a-z ]*:|\Z)", text, flags=re.MULTILINE | re.DOTALL)
    return " ".join(found[1].split()).rstrip(".") if found else "not named"


def _scores(facts: Facts) -> dict[str, Any]:
    """Returns the tables of scores."""
    result, scores = facts.result, facts.result.scores
    held_out = result.summary["metrics"].get("external") or {}
    tested = [result.client] if result.client is not None else list(result.summary["metrics"]["clients"])
    rules = {"spans": SCORED_AS, "relations": RELATIONS_SCORED_AS}
    return {
        "score_tables": score_tables(scores),
        "held_out": compared({facts.clients[site]: own for site, own in held_out.items()}),
        "test_documents": sum(result.start["clients"][client]["test"] for client in tested),
        "scored_as": "".join(rules.get(kind, "") for kind in result.task.gives),
        "averaged": " Scores are means over the clients, weighted by documents." if result.served else "",
    }
