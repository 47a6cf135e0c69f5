"""The tokenizer of a run whose model's vocabulary is cut to public text (`model.vocabulary`)."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fedstrata.core.errors import ConfigurationError, DataError, Problem
from fedstrata.core.settings.data import DataSettings, listed
from fedstrata.core.settings.run import RunSettings
from fedstrata.core.task import Task
from fedstrata.data.public_texts import find_public_texts, read_public_texts
from fedstrata.models.load import read_tokenizer
from fedstrata.models.vocabulary import cut_tokenizer, require_bpe

_SETTING = "model.vocabulary"


def cut_to_public_texts(settings: RunSettings, task: Task) -> Any:
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
        raise ConfigurationError([Problem(_SETTING, str(error))]) from None
    return cut_tokenizer(read_tokenizer(settings.model), with_added)


def vocabulary_problems(settings: RunSettings) -> Iterator[Problem]:
    """Yields why a vocabulary cannot be cut to what the settings name, without reading the texts.

    The list of kept tokens is part of the model, which all sites have. So texts that are the run's own data
    are refused, unless `data.allow_in_vocabulary` of the site's own configuration says otherwise.
    """
    allowed = settings.data.allow_in_vocabulary
    if settings.model.vocabulary is None:
        if allowed:
            yield Problem("data.allow_in_vocabulary", "has no effect without model.vocabulary")
        return
    require_bpe(read_tokenizer(settings.model))
    try:
        found = find_public_texts(Path(settings.model.vocabulary).expanduser())
    except DataError as error:
        yield Problem(_SETTING, str(error))
        return
    own = [path for path in found if _is_data(path, settings.data)]
    if own and not allowed:
        yield Problem(
            _SETTING,
            f"names {own[0].name!r} and {len(own) - 1} other files of this run's own data; the list of kept "
            "tokens is sent to all sites: name public text, or set data.allow_in_vocabulary",
        )
    if not own and allowed:
        yield Problem(
            "data.allow_in_vocabulary", "has no effect: model.vocabulary names none of this run's data"
        )
    if allowed and settings.privacy.mechanism != "none":
        mechanism = settings.privacy.mechanism
        yield Problem(
            "data.allow_in_vocabulary",
            f"the kept tokens tell of the documents that privacy.mechanism {mechanism!r} is to protect",
        )


def _is_data(path: Path, data: DataSettings) -> bool:
    """Whether a file is one of a run's data, or lies in a folder of them, also by another name of it."""
    places = [place for corpus in (data, *data.external.values()) for place in _places(corpus)]
    real = path.resolve()
    return any(real.is_relative_to(place) or _same(real, place) for place in places)


def _places(corpus: Any) -> Iterator[Path]:
    given = [corpus.path] if corpus.path else []
    given += [place for _, place in listed(corpus.files)] if corpus.files else []
    for place in given:
        yield Path(place).expanduser().resolve()


def _same(path: Path, place: Path) -> bool:
    """Whether two names are of one file, or one is in a folder (a hard link)."""
    files = [place] if place.is_file() else place.rglob("*") if place.is_dir() else []
    mark = path.stat()
    return any(
        (each.st_dev, each.st_ino) == (mark.st_dev, mark.st_ino) for each in (file.stat() for file in files)
    )
