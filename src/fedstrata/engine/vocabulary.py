"""The tokenizer of a run whose model's vocabulary is cut to public text (`model.vocabulary`)."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from fedstrata.core.errors import DataError, Problem, refused
from fedstrata.core.settings.data import CorpusSettings, DataSettings, listed
from fedstrata.core.settings.run import RunSettings
from fedstrata.core.task import Task
from fedstrata.data.public_texts import find_public_texts, read_public_texts
from fedstrata.models.vocabulary import cut_tokenizer

_SETTING = "model.vocabulary"


def cut_to_public_texts(settings: RunSettings, task: Task, tokenizer: Any) -> Any:
    """Returns the model's tokenizer, cut to the public texts and to what the task adds to documents.

    Raises:
        ConfigurationError: The texts cannot be read, or the tokenizer cannot be cut.
    """
    assert settings.model.vocabulary is not None  # noqa: S101 - the caller has looked
    with_added = [*task.added_texts()]
    try:
        for path in find_public_texts(Path(settings.model.vocabulary).expanduser()):
            with_added += read_public_texts(path)
    except DataError as error:
        raise refused(_SETTING, str(error), error.code) from None
    return cut_tokenizer(tokenizer, with_added)


def vocabulary_problems(settings: RunSettings) -> Iterator[Problem]:
    """Yields why a vocabulary cannot be cut to what the settings name, without reading the texts.

    The list of kept tokens is part of the model, which all sites have. So texts that are the run's own data
    are refused, unless `data.allow_in_vocabulary` of the site's own configuration says otherwise.
    """
    allowed = settings.data.allow_in_vocabulary
    if settings.model.vocabulary is None:
        if allowed:
            yield Problem(
                "data.allow_in_vocabulary", "has no effect without model.vocabulary", code="no_effect"
            )
        return
    try:
        found = find_public_texts(Path(settings.model.vocabulary).expanduser())
    except DataError as error:
        yield Problem(_SETTING, str(error), code=error.code)
        return
    own = _own_data(found, settings.data)
    if own and not allowed:
        yield Problem(
            _SETTING,
            f"names {own[0].name!r} and {len(own) - 1} other files of this run's own data; the list of kept "
            "tokens is sent to all sites: name public text, or set data.allow_in_vocabulary",
            code="conflict",
        )
    if not own and allowed:
        message = "has no effect: model.vocabulary names none of this run's data"
        yield Problem("data.allow_in_vocabulary", message, code="no_effect")
    if allowed and settings.privacy.mechanism != "none":
        mechanism = settings.privacy.mechanism
        yield Problem(
            "data.allow_in_vocabulary",
            f"the kept tokens tell of the documents that privacy.mechanism {mechanism!r} is to protect",
            code="not_private",
        )


def _own_data(found: Sequence[Path], data: DataSettings) -> list[Path]:
    """Returns the files that are a run's data, or lie in a folder of them, also by another name (a link)."""
    places = [place for corpus in (data, *data.external.values()) for place in _places(corpus)]
    marks = {_mark(file) for place in places for file in (place, *place.rglob("*")) if file.is_file()}
    return [
        path
        for path in found
        if _mark(path) in marks or any(path.resolve().is_relative_to(place) for place in places)
    ]


def _mark(path: Path) -> tuple[int, int]:
    """Returns what all names of a file have in common: its device and number."""
    stat = path.stat()
    return stat.st_dev, stat.st_ino


def _places(corpus: CorpusSettings) -> Iterator[Path]:
    given = [corpus.path] if corpus.path else []
    given += [place for _, place in listed(corpus.files)] if corpus.files else []
    for place in given:
        yield Path(place).expanduser().resolve()
