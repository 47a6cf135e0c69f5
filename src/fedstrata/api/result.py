"""What a finished run has learnt, for use: scores, tables, the model, predictions, files to hand on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedstrata.api.arguments import warn_of_trained, with_argument_names
from fedstrata.api.tables import annotations_frame, scores_frame
from fedstrata.core.documents import Document
from fedstrata.core.errors import Problem, did_you_mean, refuse, refused
from fedstrata.core.settings.yaml import as_yaml
from fedstrata.data.readers.datasets import is_table
from fedstrata.engine.run_folder import free_folder
from fedstrata.record.floors import cautions, floor_text
from fedstrata.record.history import History, read_history, round_rows
from fedstrata.record.scores import overall
from fedstrata.results import export as exporting
from fedstrata.results import predict as prediction
from fedstrata.results.result import Result as OpenedResult
from fedstrata.results.result import open_result
from fedstrata.results.trained import trained_texts

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure


def _listed(texts: Any) -> list[str | Document]:
    """Returns texts and documents as a list.

    Raises:
        ConfigurationError: They are something else, of which a frame or a mapping would give its names.
    """
    if isinstance(texts, Document):
        return [texts]
    if isinstance(texts, str):
        message = "must be a list of texts or documents, not one str: give a text as [text]"
        raise refused("texts", f"{message}, a file or folder as pathlib.Path", "wrong_type")
    if isinstance(texts, Mapping) or is_table(texts) or not isinstance(texts, Iterable):
        message = f"must be a list of texts or documents, not {type(texts).__name__}"
        hint = "; of a frame give one column: frame['note']" if is_table(texts) else ""
        raise refused("texts", f"{message}{hint}", "wrong_type")
    given = list(texts)
    for number, each in enumerate(given, start=1):
        if not isinstance(each.text if isinstance(each, Document) else each, str):
            message = f"number {number} must be text or a document with text, not {type(each).__name__}"
            raise refused("texts", message, "wrong_type")
    return given


class Metrics(dict[str, float]):
    """Scores by their names."""

    def __missing__(self, name: str) -> float:
        there = ", ".join(overall(self)) or "none: the run has not finished"
        raise KeyError(
            f"there is no score {name!r}{did_you_mean(name, self, before='; ')}; there are {there}"
        )


class Result:
    """A run directory, opened as it is used: its model is loaded when it is first asked for.

    Args:
        folder: The directory of a run.
        client: Whose model it is, where every client has its own.
        settings: What of the settings a use may choose anew, by dotted path: `device`, `threads`,
            `task.decoding`, `training.eval_batch_size` and `training.precision`.

    Attributes:
        folder: As given.
        client: As given.

    Raises:
        ConfigurationError: The directory holds no run, or the run has no such client.
    """

    def __init__(
        self, folder: str | Path, *, client: str | None = None, settings: Mapping[str, Any] | None = None
    ) -> None:
        self.folder, self.client = Path(folder), client
        self._place = self.folder.absolute()  # which stays where it is when the working folder changes
        self._overrides = [f"{path}={as_yaml(value)}" for path, value in (settings or {}).items()]
        self._history: History = read_history(self.folder)
        clients = (self._history.start or {}).get("clients", {})
        if client is not None and clients and client not in clients:
            raise refused("client", f"must be one of {', '.join(clients)}, not {client!r}", "unknown_name")

    @property
    def summary(self) -> Mapping[str, Any]:
        """What `summary.json` holds."""
        return self._history.summary or {}

    @property
    def state(self) -> str:
        """How the run has ended: `finished`, `failed`, `interrupted` or `unfinished`."""
        return self._history.state

    @property
    def metrics(self) -> Metrics:
        """The scores of the model on the test split: of all clients' documents, or of this client's."""
        metrics = self.summary.get("metrics", {"global": {}, "clients": {}, "mean_client": {}})
        own = metrics["global"] if self.client is None else metrics["clients"].get(self.client)
        return Metrics(own or metrics["mean_client"] or {})

    @property
    def floors(self) -> Mapping[str, float]:
        """What the score that the run is judged by must beat, by name; see `summary["floor"]` for which."""
        floors: Mapping[str, float] = self.summary.get("floors") or {}
        return floors

    @property
    def history(self) -> pd.DataFrame:
        """A row a round.

        `loss` is that of training; `global`, `mean`, `low` and `high` are validation scores by the run's
        metric, of all documents and over clients, `trained` the mean of clients' models before they were
        merged, and `headline` the one that the round is judged by; `bytes` had travelled by then; `seconds`
        it took, and `simulated` ones on emulated devices. What was not measured is missing.
        """
        import pandas as pd

        metric = str((self._history.start or {}).get("metric", ""))
        rows = round_rows(self._history.rounds, metric)
        return pd.DataFrame(rows).set_index("round") if rows else pd.DataFrame()

    @property
    def clients(self) -> pd.DataFrame:
        """A row a client: its documents by split, and its scores on its own test documents."""
        import pandas as pd

        documents = (self._history.start or {}).get("clients", {})
        scores = (self.summary.get("metrics") or {}).get("clients") or {}
        rows = {name: {**parts, **overall(scores.get(name) or {})} for name, parts in documents.items()}
        return pd.DataFrame.from_dict(rows, orient="index")

    @property
    def model(self) -> Any:
        """The model with what was learnt: transformers' own, or PEFT's around it; in evaluation mode."""
        return self._opened.model.module

    @property
    def tokenizer(self) -> Any:
        """The model's tokenizer."""
        return self._opened.model.tokenizer

    @property
    def task(self) -> Any:
        """The task, which knows its types or labels."""
        return self._opened.task

    @with_argument_names
    def annotate(self, texts: Document | Sequence[str | Document]) -> list[Document]:
        """Returns documents with what the model finds in them as their annotations.

        Args:
            texts: Texts or documents, in a list; a task that reads mentions without finding them takes those
                of documents.

        Warns:
            TrainedOnWarning: The run was trained on some of them.
        """
        given = _listed(texts)
        documents = [
            each if isinstance(each, Document) else Document(str(number), each)
            for number, each in enumerate(given)
        ]
        if (what := self.task.beyond_texts[0]) and any(isinstance(each, str) for each in given):
            message = f"must be documents with {what} for task {self.task.name}, not texts"
            raise refused("texts", message, "wrong_type")
        found = prediction.annotated(self._opened, documents)
        warn_of_trained(trained_texts(self._opened).count(documents), len(documents))
        return found

    @with_argument_names
    def predict(
        self,
        texts: Document | Path | Sequence[str | Document],
        *,
        out: str | Path | None = None,
        input_format: str = prediction.TEXT,
        format: str | None = None,
    ) -> pd.DataFrame:
        """Returns what the model finds: a row a mention or relation, else a row a document.

        Args:
            texts: Texts or documents, in a list; or the path (`pathlib.Path`) of a file or folder. A single
                `str` is refused, since it could be either.
            out: For a path, the folder to write predictions to; `predictions`, numbered if taken, when none.
            input_format: For a path, the format of its files, as `fedstrata predict --input-format`.
            format: For a path, the format to write, as `fedstrata predict --format`.

        Returns:
            `document`, and what was found: `start`, `end` (characters from 0), `label` and `text` of
            mentions, and `relation` with `tail_start` to `tail_text` of relations; or `labels`, `text_pair`
            and what else a task says of a whole text. For a path the scores against the annotations in the
            files, if there are any.

        Raises:
            ConfigurationError: The run is not finished, or the format does not hold what the task reads.

        Warns:
            TrainedOnWarning: The run was trained on some of them.
        """
        if isinstance(texts, Path):
            return scores_frame(self._predict_files(texts, out, input_format, format))
        idle = {"out": out, "format": format, "input_format": None if input_format == prediction.TEXT else 1}
        message = "is for a path (pathlib.Path), and has no meaning with texts in memory"
        refuse(
            [Problem(name, message, code="no_effect") for name, value in idle.items() if value is not None]
        )
        return annotations_frame(self.annotate(texts), self.task)

    def _predict_files(
        self, path: Path, out: str | Path | None, input_format: str, format: str | None
    ) -> Mapping[str, float]:
        folder = Path(out) if out is not None else free_folder(Path(), "predictions")
        prediction.check_input(self.task, input_format)
        output = prediction.check_output(self.task, format)
        inputs = prediction.open_inputs(path, input_format, output, self._opened.settings.data)
        outcome = prediction.predict_files(self._opened, inputs, folder, output, lambda count: None)
        warn_of_trained(outcome.trained, outcome.documents)
        return outcome.scores or {}

    @with_argument_names
    def export(
        self,
        out: str | Path,
        *,
        licence: str | None = None,
        language: str | None = None,
        site_names: bool = False,
        adapter: bool = False,
    ) -> Path:
        """Writes the model as a Hugging Face folder with a model card; see `fedstrata export`.

        Args:
            out: The folder; must not exist yet or be empty.
            licence: The model's licence, as the Hugging Face hub names it.
            language: The code of the texts' language.
            site_names: Whether clients keep their names; they are numbered otherwise.
            adapter: Whether a LoRA stays an adapter; it is merged into the model otherwise.

        Returns:
            The folder.

        Raises:
            ConfigurationError: The folder is not empty, or the run left no adapter to keep.
        """
        opened = open_result(self._place, self._overrides, client=self.client, dequantized=not adapter)
        exporting.export(
            opened,
            Path(out),
            licence=licence,
            language=language,
            with_names=site_names,
            keep_adapter=adapter,
        )
        return Path(out)

    def report(self, out: str | Path | None = None) -> Path:
        """Writes the report, one HTML file that needs no network, and returns where it is.

        Args:
            out: The file; `report.html` in the run directory when none.
        """
        from fedstrata.record.report import write_report  # noqa: PLC0415 - matplotlib, heavy

        file = Path(out) if out is not None else self.folder / "report.html"
        write_report([self._place], self._place / "report.html" if out is None else file)
        return file

    def plot(self) -> Figure:
        """Returns the validation score by round, of the shared model and of the clients' own range."""
        from fedstrata.record.report.run import score_figure  # noqa: PLC0415 - matplotlib, heavy

        return score_figure(self._history)

    def _repr_html_(self) -> str:
        """What a notebook shows: how the run ended, its scores, and its last rounds."""
        summary = self.summary
        head = (
            f"{summary.get('method')} on {summary.get('task')}, {summary.get('rounds')} rounds: {self.state}"
        )
        parts = [f"<p><b>{escape(head)}</b><br><code>{escape(str(self.folder))}</code></p>"]
        if summary and self.metrics:
            parts.append(scores_frame(overall(self.metrics)).to_html(float_format="{:.4f}".format))
        told = [f"floor: {floor}"] if (floor := floor_text(summary)) else []
        parts += [f"<p>{escape(line)}</p>" for line in [*told, *cautions(summary)]]
        if len(history := self.history):
            parts.append(history.tail(5).dropna(axis=1, how="all").to_html(float_format="{:.4g}".format))
        return "\n".join(parts)

    def __repr__(self) -> str:
        return f"Result({str(self.folder)!r}, {self.state})"

    @cached_property
    @with_argument_names
    def _opened(self) -> OpenedResult:
        return open_result(self._place, self._overrides, client=self.client)


@with_argument_names
def load(
    folder: str | Path, *, client: str | None = None, settings: Mapping[str, Any] | None = None
) -> Result:
    """Opens a run directory.

    Args:
        folder: The directory; of a run that is not finished scores and model are not there yet.
        client: Whose model to open, where every client has its own.
        settings: As for `Result`.

    Raises:
        ConfigurationError: The directory holds no run.
    """
    return Result(folder, client=client, settings=settings)
