"""`fedstrata synth`: writes the synthetic clinical corpus to disk."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from fedstrata.cli.options import Debug
from fedstrata.record.words import plural


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
    notes_per_patient: Annotated[
        int | None,
        typer.Option(
            help="The most notes of a patient; how many each has is drawn from 1 to this. One, now and then "
            "two, when not given. Formats without a place for patients get a file patients.csv.",
            min=1,
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
    from fedstrata.api.corpora import made_notes  # noqa: PLC0415 - heavy
    from fedstrata.data.patients import patients_of  # noqa: PLC0415

    several = notes_per_patient is not None
    documents, made = made_notes(sites, notes, imbalance, notes_per_patient, seed, admissions, out, format)
    if admissions is None:
        spans = sum(len(document.spans) for document in documents)
        whose = f" and {plural(len(patients_of(made)), 'patient')}" if several else ""
        what = f"of {sites} sites{whose} with {spans} annotated spans in {out} ({format})"
    else:
        stated = {note.text: set(note.labels) for note in made}
        shared = sum(len(stated[document.text].intersection(document.labels)) for document in documents)
        codes = sum(len(document.labels) for document in documents)
        what = f"in {out}, one for each admission of {admissions}; they state {shared} of its {codes} codes"
    typer.echo(f"{len(documents)} notes {what}")
