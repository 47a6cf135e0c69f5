"""The corpus: how many notes each site has, whose notes they are, and the documents they become."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import count, islice
from typing import NamedTuple

from fedstrata.core.documents import Document
from fedstrata.core.errors import Problem, refuse
from fedstrata.core.seeding import Seed
from fedstrata.data.synthetic.case import draw_case, draw_patient
from fedstrata.data.synthetic.draw import Draw
from fedstrata.data.synthetic.notes import write_note
from fedstrata.data.synthetic.style import HouseStyle, house_style

READMISSION = 0.25
"""How often the second note of a pair is about the same patient, a year later."""
SIZE_SPREAD = 0.6
"""Standard deviation of the logarithm of site sizes."""
NUMBERS_PER_SITE = 1_000_000
"""Patient and admission numbers of site `s` begin at `s` times this."""
YEARS_OF_PATIENT = 2
"""Over so many years the notes of a patient go, however many they are."""


class Visit(NamedTuple):
    """Whose a note is.

    Attributes:
        owner: The index of the first note of the patient, of whom there is no other at the site.
        years: Since that note.
    """

    owner: int
    years: int


def generate(
    *,
    seed: int,
    sites: int,
    notes: int,
    imbalance: float | None = None,
    notes_per_patient: int | None = None,
) -> list[Document]:
    """Generates the corpus.

    Note `i` of site `s` depends on `(seed, s, i)`, and on `notes_per_patient` if that is given, and on
    nothing else: at every site, a larger corpus begins with the notes of a smaller one.

    Args:
        seed: Another seed gives other notes.
        sites: How many sites.
        notes: How many notes all sites have together.
        imbalance: How unequal sites are in size: site s has one note, and of the rest a share
            proportional to 1 / s^imbalance (Zipf's law); 0 makes sites equal. When none, sizes differ a
            little, at random, and each site has at least half of an equal share.
        notes_per_patient: The most notes of a patient; how many each has is drawn evenly from 1 to this, and
            they follow each other (the last patient of a site may have fewer than were drawn). When none,
            every second note may be a readmission of the patient before.

    Returns:
        The documents, site by site. `labels` are ICD-9-CM codes, the main diagnosis first. `metadata` holds
        `speciality`, `kind`, `patient` and `admission` (numbers, unique over the corpus) and `evidence`, a
        JSON object from each code to the `[start, end]` offsets of the mentions that state it.

    Raises:
        ConfigurationError: `sites` is below 1, `notes` below `sites`, `imbalance` below 0 or not finite, or
            `notes_per_patient` below 1.
    """
    problems = []
    if sites < 1:
        problems.append(Problem("sites", f"{sites} sites; at least 1 is needed", code="out_of_range"))
    if notes < max(sites, 1):
        problems.append(
            Problem(
                "notes",
                f"{notes} notes; at least one for each of the {sites} sites is needed",
                code="out_of_range",
            )
        )
    if imbalance is not None and not 0 <= imbalance < math.inf:
        problems.append(
            Problem("imbalance", f"{imbalance:g}; it must be 0 or more, and finite", code="out_of_range")
        )
    if notes_per_patient is not None and notes_per_patient < 1:
        problems.append(
            Problem("notes_per_patient", f"{notes_per_patient}; it must be 1 or more", code="out_of_range")
        )
    refuse(problems)
    root = Seed(seed).child("synthetic")
    documents = []
    for site, size in enumerate(_site_sizes(root, sites, notes, imbalance), start=1):
        style = house_style(root, site)
        own = root.child("site", site)
        visits = _readmissions(own) if notes_per_patient is None else _several(own, notes_per_patient)
        documents += [
            _document(root, site, index, style, visit) for index, visit in enumerate(islice(visits, size))
        ]
    return documents


def _readmissions(site: Seed) -> Iterator[Visit]:
    """Yields whose the notes of a site are, without end: every second note may be a readmission."""
    for first in count(step=2):
        yield Visit(first, 0)
        readmitted = Draw(site.child("readmission", first + 1)).chance(READMISSION)
        yield Visit(first, 1) if readmitted else Visit(first + 1, 0)


def _several(site: Seed, most: int) -> Iterator[Visit]:
    """Yields whose the notes of a site are, without end: each patient has 1 to so many of them."""
    owner = 0
    while True:
        notes = Draw(site.child("notes of patient", owner)).between(1, most)
        for number in range(notes):
            yield Visit(owner, number * YEARS_OF_PATIENT // notes)
        owner += notes


def _site_sizes(root: Seed, sites: int, notes: int, imbalance: float | None) -> list[int]:
    """Splits the notes by Zipf's law, or half an equal share each and the rest by log-normal shares."""
    numbers = range(1, sites + 1)
    if imbalance is not None:
        return _apportion(notes, [site**-imbalance for site in numbers], least=1)
    shares = [
        math.exp(SIZE_SPREAD * Draw(root.child("site", site, "size")).normalvariate(0.0, 1.0))
        for site in numbers
    ]
    return _apportion(notes, shares, least=max(1, notes // (2 * sites)))


def _apportion(notes: int, shares: Sequence[float], *, least: int) -> list[int]:
    """Gives each site the least, and divides the rest by the shares and largest remainders."""
    rest = notes - least * len(shares)
    ideal = [rest * share / sum(shares) for share in shares]
    sizes = [least + int(part) for part in ideal]
    by_remainder = sorted(range(len(shares)), key=lambda index: int(ideal[index]) - ideal[index])
    for index in by_remainder[: notes - sum(sizes)]:
        sizes[index] += 1
    return sizes


def _document(root: Seed, site: int, index: int, style: HouseStyle, visit: Visit) -> Document:
    owner, number = visit.owner, site * NUMBERS_PER_SITE
    patient = draw_patient(root.child("site", site, "patient", owner), number + owner + 1, style)
    seed = root.child("site", site, "note", index)
    case = draw_case(seed.child("case"), patient, years=visit.years)
    note = write_note(case, style, seed)
    return replace(
        note,
        id=f"site-{site}-{index + 1:04d}",
        site=f"site-{site}",
        metadata={
            "speciality": patient.speciality.name,
            "kind": note.metadata["kind"],
            "patient": str(patient.number),
            "admission": str(number + index + 1),
            "evidence": note.metadata["evidence"],
        },
    )
