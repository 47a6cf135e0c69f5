"""What a configuration cannot hold, given as objects: documents, tables and loaded models.

They become files in the run directory, so that a run is gone on with and copied to workers like any other:
nothing else of fedstrata knows of objects. The folder can be read by its owner alone, and documents are
removed when the run ends, unless they are to be kept.
"""

from __future__ import annotations

import filecmp
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch.nn import Module

from fedstrata.api.arguments import kinds_in
from fedstrata.api.options import section_of
from fedstrata.core.documents import Document
from fedstrata.core.errors import ConfigurationError, Problem, refused
from fedstrata.core.files import private_folder, write_atomically
from fedstrata.core.settings.data import ColumnSettings, DataSettings
from fedstrata.core.settings.source import Source, assign, validate
from fedstrata.data.readers.datasets import is_table, read_table
from fedstrata.data.readers.folders import split_named
from fedstrata.data.writers import jsonl
from fedstrata.engine.run_folder import INPUTS
from fedstrata.models.given import MODELS, keep_model
from fedstrata.results.document_pairs import format_of

ORIGIN = "the argument data"
DOCUMENTS = "documents.jsonl"
"""The file of documents that were given as objects."""


def with_data(source: Source, data: Any, columns: Mapping[str, Any] | None, folder: Path) -> None:
    """Lays the argument `data` over a configuration.

    Args:
        source: The configuration.
        data: A path, a section, documents, documents by site, or tables (`documents_of`).
        columns: What the columns of tables hold, as the section `data.columns`.
        folder: Where documents that are objects are kept.

    Raises:
        ConfigurationError: The data are none of these, or columns are named that nothing has.
        DataError: A table's row does not hold what its column should; or the path's format cannot be told.
    """
    if isinstance(data, str | Path):
        _set_path(source, Path(data).expanduser())
    elif isinstance(data, DataSettings) or (isinstance(data, Mapping) and not _is_by_name(data)):
        assign(source, "data", section_of("data", data), ORIGIN)
    else:
        if columns is not None and not _has_table(data):
            message = "has no meaning with documents: it says what the columns of tables hold"
            raise refused("columns", message, "no_effect")
        documents = documents_of(data, _checked(columns))
        path = _write_documents(folder, documents)
        for name in ("format", "path", "files", "synthetic", "columns"):
            _forget(source, name)
        assign(source, "data.format", "jsonl", ORIGIN)
        assign(source, "data.path", str(path.absolute()), ORIGIN)
        return
    if columns is not None:
        assign(source, "data.columns", section_of("columns", columns), "the argument columns")


@contextmanager
def kept_for(folder: Path, begun: str, *, keep: bool = False, resumes: bool = True) -> Iterator[None]:
    """Removes documents that were given as objects when what they are for has ended, or does not begin.

    Args:
        folder: Where they are kept.
        begun: The file that is there once what they are for has begun.
        keep: Whether they stay when it has ended.
        resumes: Whether what is stopped goes on with them, and is not given them again. They stay then, and
            the error says where.
    """
    existed, documents = folder.exists(), folder / INPUTS / DOCUMENTS
    try:
        yield
    except BaseException as error:
        if not (folder / begun).exists():
            shutil.rmtree(folder / INPUTS, ignore_errors=True)
            if not existed and folder.is_dir() and not any(folder.iterdir()):
                folder.rmdir()
        elif not resumes:
            _remove_documents(folder)
        elif documents.exists():
            error.add_note(
                f"the documents that the run was given are kept in {documents.absolute()}, which its owner "
                "alone can read, so that it can go on; they are removed when it ends"
            )
        raise
    if not keep:
        _remove_documents(folder)


def with_documents_again(source: Source, data: Any, columns: Mapping[str, Any] | None, folder: Path) -> None:
    """Gives a run that goes on the documents that were removed when it ended.

    Args:
        source: The run's configuration.
        data: The documents, as they were given; none if they are not given again.
        columns: As for `with_data`.
        folder: The run directory.

    Raises:
        ConfigurationError: They are needed and not given, or given and not needed.
    """
    path = Path(str((source.values.get("data") or {}).get("path")))
    removed = path == folder.absolute() / INPUTS / DOCUMENTS and not path.exists()
    if data is None and removed:
        message = "was removed when the run ended: give the same documents again"
        raise refused("data", message, "missing")
    if data is not None and not removed:
        raise refused("data", f"is kept in {folder}, and is not given again", "exists")
    if data is not None:
        _write_documents(folder, documents_of(data, _checked(columns)))


def with_model(source: Source, model: Any, tokenizer: Any, folder: Path) -> None:
    """Lays the arguments `model` and `tokenizer` over a configuration.

    Args:
        source: The configuration.
        model: A name, a section, a factory `(kind, labels) -> (module, tokenizer)`, or a loaded model.
        tokenizer: That of a loaded model.
        folder: Where a loaded model is kept.

    Raises:
        ConfigurationError: The model is none of these or cannot be kept, or the tokenizer has no model.
    """
    loaded = isinstance(model, Module)
    if loaded and tokenizer is None:
        message = (
            f"is needed with the loaded {type(model).__name__}: the fast tokenizer that it was made with"
        )
        raise refused("tokenizer", message, "missing")
    if tokenizer is not None and not loaded:
        message = "is for a model that is given as a loaded object; others have theirs (model.tokenizer)"
        raise refused("tokenizer", message, "no_effect")
    if model is None:
        return
    if loaded:
        section = _kept_model(model, tokenizer, folder / INPUTS / "model")
    elif callable(model) and not isinstance(model, type):
        section = {"name": MODELS.name_of(model)}
    else:
        section = section_of("model", model)
    assign(source, "model", section, "the argument model")


def _kept_model(model: Module, tokenizer: Any, place: Path) -> dict[str, Any]:
    """Keeps a loaded model; one that is the same and is there already is left as it is.

    Raises:
        ConfigurationError: There is another one, or it cannot be kept.
    """
    if not place.exists():
        private_folder(place.parent)
        return keep_model(model, tokenizer, place)
    with tempfile.TemporaryDirectory() as temporary:
        again = Path(temporary, "model")
        keep_model(model, tokenizer, again)
        compared = filecmp.dircmp(again, place)
        if compared.left_list != compared.right_list or compared.diff_files:
            message = f"{place} holds another model; name another folder (out)"
            raise refused("model", message, "exists")
    return {"name": str(place.absolute())}


def documents_of(data: Any, columns: ColumnSettings = ColumnSettings()) -> list[Document]:  # noqa: B008 - frozen
    """Returns the documents of objects.

    Args:
        data: Documents; a table (a `datasets.Dataset` or a pandas frame); or either of them by site, or
            tables by `train`, `validation` and `test`, as a `datasets.DatasetDict` has them.
        columns: What the columns of tables hold.

    Returns:
        The documents, whose ids are unique: where those of several sites are not, the site's name is put
        before them.

    Raises:
        ConfigurationError: They are none of these, or two documents of a site have one id.
        DataError: A table's row does not hold what its column should.
    """
    parts = dict(data) if isinstance(data, Mapping) else {"": data}
    found: list[Document] = []
    for name, (site, split) in _places(parts).items():
        found += _of_part(parts[name], columns, site, split)
    if not found:
        raise ConfigurationError(
            [Problem("data", f"holds no documents: {kinds_in(data)}", ORIGIN, code="not_enough_data")]
        )
    ids = [document.id for document in found]
    if len(set(ids)) < len(ids):
        found = [replace(each, id=f"{each.site}/{each.id}" if each.site else each.id) for each in found]
        seen: set[str] = set()
        for document in found:
            if document.id in seen:
                message = f"two documents have the id {document.id!r}; ids are unique within a site"
                raise ConfigurationError([Problem("data", message, ORIGIN, code="duplicate")])
            seen.add(document.id)
    return found


def _places(parts: Mapping[Any, Any]) -> dict[Any, tuple[str, str]]:
    """Returns the site and the part of the split that each name stands for, one of the two.

    Raises:
        ConfigurationError: A name stands for neither; or it may be a site or a part that is not known, whose
            documents would be trained on.
    """
    splits = {name: split_named(str(name)) for name in parts}
    if parts and all(splits.values()):
        return {name: ("", split) for name, split in splits.items()}
    if "train" in splits:
        unknown = next(repr(name) for name, split in splits.items() if not split)
        message = f"has 'train', a part of the split, beside {unknown}, which is none; leave one of them out"
        raise ConfigurationError([Problem("data", message, ORIGIN, code="conflict")])
    if nameless := [name for name in parts if not isinstance(name, str | int) or isinstance(name, bool)]:
        message = f"{nameless[0]!r} is no name of a site; give text or a whole number"
        raise ConfigurationError([Problem("data", message, ORIGIN, code="wrong_type")])
    return {name: (str(name), "") for name in parts}


def _of_part(part: Any, columns: ColumnSettings, site: str, split: str) -> list[Document]:
    """Returns the documents of one site, or of all."""
    if is_table(part):
        documents = read_table(part, columns, name=site or split or "table", site=site, split=split)
    elif isinstance(part, Sequence) and part and all(isinstance(each, Document) for each in part):
        documents = list(part)
    else:
        message = (
            "must be a path, a section, documents (fedstrata.Document), a datasets.Dataset or a pandas "
            f"frame, or one of these by site, not {kinds_in(part)}{f' (for {site!r})' if site else ''}"
        )
        raise ConfigurationError([Problem("data", message, ORIGIN, code="wrong_type")])
    for number, document in enumerate(documents, start=1):
        if wrong := _unfit(document):
            message = f"document {number}{f' of {site!r}' if site else ''}: {wrong}"
            raise ConfigurationError([Problem("data", message, ORIGIN, code="wrong_type")])
    own = {document.site for document in documents} - {site, ""} if site else set()
    if own:
        message = f"documents given for the site {site!r} say that they are of {sorted(own)[0]!r}"
        raise ConfigurationError([Problem("data", message, ORIGIN, code="conflict")])
    return [_placed(document, site, split) for document in documents]


def _unfit(document: Document) -> str:
    """Says what of a document no file can hold, without quoting it; empty if one can."""
    for name in ("labels", "spans", "relations"):
        if not isinstance(value := getattr(document, name), list | tuple):
            return f"`{name}` must be a tuple, not {type(value).__name__}"
    pair = () if document.text_pair is None else (document.text_pair,)
    texts: dict[str, Iterable[Any]] = {
        "id": (document.id,),
        "text": (document.text,),
        "text_pair": pair,
        "site": (document.site,),
        "labels": document.labels,
        "metadata": (*document.metadata, *document.metadata.values()),
        "spans": (each.label for each in document.spans),
        "relations": (each.label for each in document.relations),
    }
    for name, values in texts.items():
        for value in values:
            if not isinstance(value, str):
                return f"`{name}` must hold text, not {type(value).__name__}"
            try:
                value.encode()
            except UnicodeEncodeError:
                return f"`{name}` holds half of a surrogate pair, which is no character"
    ends = (end for span in document.spans for end in (span.start, span.end))
    if other := next((type(end).__name__ for end in ends if not isinstance(end, int)), ""):
        return f"a span must begin and end at whole numbers of characters, not {other}"
    return ""


def _placed(document: Document, site: str, split: str) -> Document:
    metadata = {**({"split": split} if split else {}), **document.metadata}
    return replace(document, site=document.site or site, metadata=metadata)


def _is_by_name(data: Mapping[Any, Any]) -> bool:
    """Whether a mapping holds documents or tables by name, and no settings; one without anything does."""
    return (
        not data
        or not set(data) <= set(DataSettings.model_fields)
        or any(is_table(part) or _are_documents(part) for part in data.values())
    )


def _are_documents(part: Any) -> bool:
    return isinstance(part, list | tuple) and any(isinstance(each, Document) for each in part)


def _has_table(data: Any) -> bool:
    return any(map(is_table, data.values() if isinstance(data, Mapping) else [data]))


def _set_path(source: Source, path: Path) -> None:
    """Names other files; of the format that the configuration has, or of that of their names."""
    section = source.values.get("data")
    form = section.get("format", "synthetic") if isinstance(section, dict) else "synthetic"
    if form == "synthetic":
        assign(source, "data.format", format_of(path, "data={'format': ..., 'path': ...}"), ORIGIN)
        _forget(source, "synthetic")
    _forget(source, "files")
    assign(source, "data.path", str(path), ORIGIN)


def _forget(source: Source, name: str) -> None:
    """Takes out of the section `data` what belongs to other documents."""
    section = source.values.get("data")
    if isinstance(section, dict):
        section.pop(name, None)


def _checked(columns: Any) -> ColumnSettings:
    """Returns what the columns hold.

    Raises:
        ConfigurationError: With every column that is wrong.
    """
    source = Source({"columns": {} if columns is None else section_of("columns", columns)})
    source.origins["columns"] = "the argument columns"
    found, problems = validate(ColumnSettings, source, section="columns")
    if found is None:
        raise ConfigurationError(problems)
    return found


def _remove_documents(folder: Path) -> None:
    """Removes the documents that were given as objects."""
    (folder / INPUTS / DOCUMENTS).unlink(missing_ok=True)
    with suppress(OSError):  # a model is kept beside them, or nothing was
        (folder / INPUTS).rmdir()


def _write_documents(folder: Path, documents: Sequence[Document]) -> Path:
    """Writes documents to a file that its owner alone can read; the same ones are left as they are.

    Raises:
        ConfigurationError: There are others.
    """
    path = folder / INPUTS / DOCUMENTS
    content = b"".join(jsonl.line(document, document.id).encode() for document in documents)
    if path.exists():
        if path.read_bytes() != content:
            message = f"{path} holds other documents; name another folder (out)"
            raise ConfigurationError([Problem("data", message, ORIGIN, code="exists")])
        return path
    private_folder(path.parent)
    write_atomically(path, [content], mode=0o600)
    return path
