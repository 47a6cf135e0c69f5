"""Documents: reading annotated text, and making synthetic notes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from fedstrata.api.arguments import with_argument_names
from fedstrata.core.documents import Document
from fedstrata.core.errors import ConfigurationError, Problem, refuse, refused
from fedstrata.core.settings.data import FORMATS as NAMES
from fedstrata.core.settings.data import CorpusSettings
from fedstrata.core.settings.reader import READERS, Reader
from fedstrata.core.settings.source import Source, validate
from fedstrata.core.settings.yaml import shortened
from fedstrata.data.readers import FORMATS, format_of, formats_of
from fedstrata.data.readers import read as read_format
from fedstrata.data.readers.mimic import read_codes
from fedstrata.data.synthetic import generate
from fedstrata.data.synthetic.admissions import under_admissions
from fedstrata.data.writers import write
from fedstrata.results.document_pairs import format_of as detected

READ_SETTINGS = frozenset(
    {
        "columns",
        "conll",
        "conllu",
        "dataset",
        "mimic",
        "reader",
        "relation_table",
        "text",
        "unannotated",
    }
)
"""Settings of the section `data` that say how files are read; others say what a run takes of them."""


def read(path: str | Path, format: str | Reader | None = None, **settings: Any) -> list[Document]:
    """Reads the documents of a file or folder; sub-folders are sites.

    Args:
        path: The file or folder; with the format `datasets` also an id of the hub.
        format: A format of `data.format`, a reader of one's own, or the reference of one; brat, i2b2 and
            jsonl are known by the files' names when none.
        **settings: Settings of the section `data` that say how files are read, by name: `columns`, `conll`,
            `conllu`, `dataset`, `mimic`, `reader`, `relation_table`, `text`, `unannotated`; none with a
            reader object, which has its own. What a run keeps of documents (`types`, `labels`, ...) are
            settings of the run.

    Returns:
        The documents, sorted by path.

    Raises:
        ConfigurationError: There is no such format, or a setting does not fit or has no effect.
        DataError: The path does not exist, or a file does not follow the format.
    """
    place = Path(path).expanduser()
    refuse([*_without_effect(settings, own_reader=isinstance(format, Reader))])
    if isinstance(format, Reader):
        name = READERS.name_of(type(format))
        return read_format(place, name, formats={**FORMATS, name: format_of(format)})
    form: Any = format or detected(place, "format")
    if not isinstance(form, str):
        message = f"must be a name or an object of a reader, not {shortened(form)}"
        raise refused("format", message, "wrong_type")
    if form not in (*NAMES, *READERS.installed) and ":" not in form:
        raise refused("format", f"{form!r} is none of {', '.join(NAMES)}", "unknown_name")
    corpus, problems = validate(CorpusSettings, Source({"format": form, "path": str(path), **settings}))
    if corpus is None:
        raise ConfigurationError(problems)
    return read_format(
        place if form != "datasets" else Path(path),
        form,
        unannotated=corpus.unannotated,
        formats=formats_of(corpus),
        dataset=corpus.dataset,
        columns=corpus.columns,
    )


def _without_effect(settings: Mapping[str, Any], *, own_reader: bool) -> Iterator[Problem]:
    """Yields the settings of a corpus that reading does not use."""
    for name in settings:
        if own_reader:
            yield Problem(
                name, "has no effect with a reader object, whose settings are its own", code="no_effect"
            )
        elif name in CorpusSettings.model_fields and name not in READ_SETTINGS:
            yield Problem(
                name, f"has no effect in read; it is a setting of a run, data.{name}", code="no_effect"
            )


@with_argument_names
def synth(
    *,
    sites: int = 4,
    notes: int = 200,
    imbalance: float | None = None,
    notes_per_patient: int | None = None,
    seed: int = 0,
    admissions: str | Path | None = None,
    out: str | Path | None = None,
    format: str = "brat",
) -> dict[str, list[Document]]:
    """Makes synthetic clinical notes with their annotations.

    Args:
        sites: Number of sites (hospitals).
        notes: Notes in all, over all sites.
        imbalance: Exponent of Zipf's law of site sizes; sizes differ a little when none.
        notes_per_patient: The most notes of a patient; one, now and then two, when none.
        seed: The same seed gives the same notes.
        admissions: A folder of MIMIC-III tables under whose admissions the notes are filed (format mimic).
        out: A folder to write them to as well; nothing is written when none.
        format: The format of what is written: brat, i2b2, conll, jsonl or mimic.

    Returns:
        The notes by site, as `data=` of `run` takes them.

    Raises:
        ConfigurationError: A number is out of bounds, options do not go together, or the folder is not empty.
    """
    place, filed = (None if path is None else Path(path) for path in (out, admissions))
    documents, _ = made_notes(sites, notes, imbalance, notes_per_patient, seed, filed, place, format)
    by_site: dict[str, list[Document]] = {}
    for document in documents:
        by_site.setdefault(document.site, []).append(document)
    return by_site


def made_notes(
    sites: int,
    notes: int,
    imbalance: float | None,
    notes_per_patient: int | None,
    seed: int,
    admissions: Path | None,
    out: Path | None,
    format: str,
) -> tuple[list[Document], list[Document]]:
    """Does as `synth`; returns the notes, and how they were before they were filed under admissions."""
    least = {
        "--sites": (sites, 1),
        "--notes": (notes, max(1, sites)),
        "--notes-per-patient": (notes_per_patient, 1),
    }
    problems = [
        Problem(name, f"must be at least {fewest}, not {value}", code="out_of_range")
        for name, (value, fewest) in least.items()
        if value is not None and value < fewest
    ]
    if imbalance is not None and not 0.0 <= imbalance <= 10.0:
        problems.append(
            Problem("--imbalance", f"must be from 0 to 10, not {imbalance:g}", code="out_of_range")
        )
    if admissions is not None and format != "mimic":
        problems.append(Problem("--admissions", f"is for the format mimic, not {format!r}", code="no_effect"))
    if admissions is not None and notes_per_patient is not None:
        message = "has no meaning with --admissions, whose patients the notes are filed under"
        problems.append(Problem("--notes-per-patient", message, code="no_effect"))
    refuse(problems)
    found = None if admissions is None else read_codes(admissions)  # first: to make the notes takes longer
    made = generate(
        seed=seed, sites=sites, notes=notes, imbalance=imbalance, notes_per_patient=notes_per_patient
    )
    documents = made if found is None else under_admissions(made, found)
    if out is not None:
        write(documents, out, format, patients=notes_per_patient is not None)
    return documents, made
