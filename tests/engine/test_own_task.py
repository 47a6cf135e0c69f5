"""A task of a user's own, which no other file knows: planned, trained, resumed, predicted with, exported."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from pydantic import Field
from support import executed, refused

from fedstrata.core.documents import Document
from fedstrata.core.errors import ConfigurationError
from fedstrata.core.settings.source import read_source
from fedstrata.planning.plan import make_plan
from fedstrata.results.export import export
from fedstrata.results.predict import check_output, open_inputs, predict_files
from fedstrata.results.result import open_result
from fedstrata.tasks import TASKS
from fedstrata.tasks.causal import CausalTask, cross_entropies
from fedstrata.tasks.texts import padding_id, whole_texts
from fedstrata.tasks.windows import Row, run_model


@dataclass(frozen=True, slots=True)
class Beginning(Row):
    document: int
    input_ids: np.ndarray
    targets: np.ndarray
    pad_id: int


class Beginnings(CausalTask):
    """How a text begins, told token by token."""

    name: Literal["beginnings"] = "beginnings"
    words: int = Field(default=8, description="Tokens of a text.")

    learns: ClassVar[str] = "how a text begins"
    metric: ClassVar[str] = "surprise"
    metrics: ClassVar[tuple[str, ...]] = ("surprise",)
    lower_is_better: ClassVar[frozenset[str]] = frozenset(metrics)
    needs_annotations: ClassVar[bool] = False

    def fitted(self, clients: Mapping[str, Any]) -> Beginnings:
        return self

    def encode(self, documents: Sequence[Document], tokenizer: Any) -> list[Beginning]:
        texts = (
            np.array(ids[: self.words + 1], dtype=np.int32) for ids, _ in whole_texts(documents, tokenizer)
        )
        pad_id = padding_id(tokenizer)
        return [Beginning(index, ids[:-1], ids[1:], pad_id) for index, ids in enumerate(texts)]

    def predict(self, module: torch.nn.Module, batch: Mapping[str, torch.Tensor]) -> list[np.ndarray]:
        with torch.no_grad():
            losses = torch.cat(list(cross_entropies(run_model(module, batch), batch["labels"])))
        sums = losses.view(batch["labels"].shape).sum(dim=1) / batch["attention_mask"].sum(dim=1)
        return list(sums.cpu().numpy())

    def decode(
        self, documents: Sequence[Document], examples: Sequence[Any], predictions: Sequence[np.ndarray]
    ) -> list[float]:
        return [float(own) for own in predictions]

    def tally(self, documents: Sequence[Document], answers: Sequence[float]) -> dict[str, float]:
        return {"surprise": sum(answers), "documents": len(answers)}

    def scores(self, tally: Mapping[str, float], apart: Mapping[str, float]) -> dict[str, float]:
        return {"surprise": tally["surprise"] / tally["documents"]}

    def known(self, document: Document) -> Document:
        return replace(document, spans=(), relations=(), labels=())

    def annotate(self, document: Document, answer: float) -> Document:
        return replace(self.known(document), metadata={**document.metadata, "surprise": f"{answer:.3f}"})


SETTINGS = (
    f"task={{name: '{TASKS.name_of(Beginnings)}', words: 6}}",
    "data.types=null",
    "data.split={train: 0.6, validation: 0.2, test: 0.2}",
    "data.synthetic.sites=2",
    "data.synthetic.notes=6",
    "federation.evaluate_every=1",
    "training.learning_rate=0.05",
    "training.epochs=3",
    "model.config={model_type: gpt2, n_embd: 16, n_layer: 2, n_head: 2, n_positions: 256}",
    "model.init=random",
    "model.tokenizer=mini",
    "method={name: fedavg}",
)


def test_a_task_of_ones_own_runs_from_end_to_end(tmp_path: Path) -> None:
    plan = make_plan(read_source(None, [*SETTINGS, "federation.rounds=1"]), seconds=0.0)
    assert (plan.task, plan.metrics) == ("beginnings", ("surprise",))
    folder = tmp_path / "run"

    executed(folder, [*SETTINGS, "federation.rounds=1"])
    done = executed(folder, ["federation.rounds=2"], resume=True)
    first, last = (event["global"]["surprise"] for event in done.of("round"))
    assert last < first
    result = open_result(folder)
    assert result.task == Beginnings(words=6)
    (tmp_path / "note.txt").write_text("The patient has chest pain and takes aspirin.")
    output = check_output(result.task, None)
    inputs = open_inputs(tmp_path / "note.txt", "text", output)
    outcome = predict_files(result, inputs, tmp_path / "out", output, lambda count: None)
    assert outcome.scores is not None and outcome.scores["surprise"] > 0
    export(result, tmp_path / "exported", licence=None, language=None, with_names=False)
    assert "Learns how a text begins" in (tmp_path / "exported" / "README.md").read_text()


def test_its_settings_are_checked_as_any_other_s() -> None:
    for wrong, at, code, values in (
        ("task.wrods=3", "task.wrods", "unknown_key", ["'words'", "extra_metrics, max_length, name, words"]),
        ("task.max_length=1", "task.max_length", "out_of_range", [8, 1]),
        ("data.relations=[a]", "data.relations", "no_effect", ["beginnings", Beginnings.learns]),
    ):
        with refused(ConfigurationError, code, at=at, values=values):
            make_plan(read_source(None, [*SETTINGS, wrong]))
