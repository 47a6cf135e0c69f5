"""`fedstrata synth`: writes the synthetic clinical corpus to disk."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from fedstrata.cli.options import Debug
from fedstrata.core.errors import ConfigurationError, Problem

if TYPE_CHECKING:
    from fedstrata.core.documents import Document


def synth(
    out: Annotated[Path, typer.Option(help="The folder to write; must not exist yet or be empty.")],
    sites: Annotated[int, typer.Option(help="Number of sites (hospitals).", min=1)] = 4,
    notes: Annotated[int, typer.Option(help="Notes in all, over all sites.", min=1)] = 200,
    imbalance: Annotated[
        float | None,
        typer.Option(
            help="How unequal sites are in size: the exponent of Zipf's law, 0 for equal. Sizes differ a "
            "little when not given.",
            min=0.0,
            max=10.0,
            show_default=False,
        ),
    ] = None,
    format: Annotated[
        Literal["i2b2", "brat", "conll", "jsonl", "mimic"], typer.Option(help="The format.")
    ] = "brat",
    admissions: Annotated[
        Path | None,
        typer.Option(
            help="A folder of MIMIC-III tables: one note is filed under each admission of DIAGNOSES_ICD, "
            "with the codes that stand there (format mimic)."
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="The same seed gives the same notes.")] = 0,
    debug: Debug = False,
) -> None:
    """Write synthetic clinical notes with their annotations.

    Example: fedstrata synth --sites 4 --notes 200 --format brat --out notes
    """
    if admissions is not None and format != "mimic":
        message = f"is for the format mimic, not {format!r}"
        raise ConfigurationError([Problem("--admissions", message)])
    from fedstrata.data.synthetic import generate  # noqa: PLC0415 - reads its lexicons
    from fedstrata.data.writers import write  # noqa: PLC0415

    def make() -> Sequence[Document]:
        return generate(seed=seed, sites=sites, notes=notes, imbalance=imbalance)

    if admissions is not None:
        documents, fit = _under_admissions(admissions, make)
        write(documents, out, format)
        typer.echo(f"{len(documents)} notes in {out}, one for each admission of {admissions}; {fit}")
        return
    documents = make()
    write(documents, out, format)
    spans = sum(len(document.spans) for document in documents)
    typer.echo(f"{len(documents)} notes of {sites} sites with {spans} annotated spans in {out} ({format})")


def _under_admissions(
    tables: Path, generate: Callable[[], Sequence[Document]]
) -> tuple[Sequence[Document], str]:
    """Returns the notes filed under the admissions of other tables, and in words how well they fit."""
    from fedstrata.data.readers.mimic import read_codes  # noqa: PLC0415
    from fedstrata.data.synthetic.admissions import under_admissions  # noqa: PLC0415

    found = read_codes(tables)  # before the notes are made, which takes longer
    notes = generate()
    documents = under_admissions(notes, found)
    stated = {note.text: set(note.labels) for note in notes}
    shared = sum(len(stated[document.text].intersection(document.labels)) for document in documents)
    codes = sum(len(document.labels) for document in documents)
    return documents, f"they state {shared} of its {codes} codes"
