"""The patient behind a note: who it is, what they have, what they do not have."""

from collections.abc import Sequence
from typing import NamedTuple

from fedstrata.core.seeding import Seed
from fedstrata.data.synthetic.draw import Draw
from fedstrata.data.synthetic.lexicons import Condition, Speciality, lexicon
from fedstrata.data.synthetic.style import HouseStyle

CHILD_AGE = 17
YEARS = (2001, 2013)
"""Notes are of these years: ICD-9-CM codes were in use until 2015."""


class Patient(NamedTuple):
    """What stays the same from one note to the next.

    Attributes:
        number: Unique over all sites.
        speciality: The speciality that follows the patient.
        sex: `male` or `female`.
        age: In years, at the first note.
        months: Months beyond `age`.
        year: Of the first note.
        chronic: Comorbidities, coded when mentioned.
    """

    number: int
    speciality: Speciality
    sex: str
    age: int
    months: int
    year: int
    chronic: tuple[Condition, ...]

    @property
    def is_child(self) -> bool:
        """Whether the words for children apply."""
        return self.age < CHILD_AGE


class Case(NamedTuple):
    """What one note is about.

    Attributes:
        patient: The patient.
        age: In years, at this note.
        year: Of the note.
        month: Of the note.
        day: First day of the stay.
        principal: The main diagnosis.
        present: All diagnoses the patient has, the main one first.
        absent: Diagnoses that the patient does not have, for negated, familial and uncertain mentions.
    """

    patient: Patient
    age: int
    year: int
    month: int
    day: int
    principal: Condition
    present: tuple[Condition, ...]
    absent: tuple[Condition, ...]


def draw_patient(seed: Seed, number: int, style: HouseStyle) -> Patient:
    """Draws a patient of a site.

    Args:
        seed: The patient's own seed.
        number: The patient's number.
        style: The site's style, which holds its speciality mix.
    """
    draw, words = Draw(seed), lexicon()
    speciality = words.specialities[draw.index(style.specialities)]
    sex = speciality.sex or draw.pick(("male", "female"))
    age = draw.between(*speciality.ages)
    pool = words.child_comorbidities if age < CHILD_AGE else words.comorbidities
    chronic = draw.shuffled(pool)[: draw.between(0, 1 if age < CHILD_AGE else 3)]
    return Patient(number, speciality, sex, age, draw.between(0, 11), draw.between(*YEARS), tuple(chronic))


def draw_case(seed: Seed, patient: Patient, years: int) -> Case:
    """Draws the illness of one note.

    Args:
        seed: The note's own seed.
        patient: Whose note it is.
        years: How long after the patient's first note it was written.
    """
    draw = Draw(seed)
    possible = [item for item in patient.speciality.conditions if item.sex in ("", patient.sex)]
    shuffled = draw.shuffled(possible)
    principal, others = shuffled[0], shuffled[1:]
    present: list[Condition] = []
    # Without those that repeat or contradict one that came before (type 1 and type 2 diabetes).
    for condition in [principal, *others[: draw.between(0, 2)], *patient.chronic]:
        if not _clashes(condition, present, whole_category=True):
            present.append(condition)
    absent = tuple(item for item in others if not _clashes(item, present, whole_category=False))
    return Case(
        patient,
        age=patient.age + years,
        year=patient.year + years,
        month=draw.between(1, 12),
        day=draw.between(1, 20),
        principal=principal,
        present=tuple(present),
        absent=absent,
    )


def _clashes(condition: Condition, others: Sequence[Condition], *, whole_category: bool) -> bool:
    """Whether a condition shares a wording with others, or its code (or only the part before the point)."""
    length = 3 if whole_category else None
    return any(
        condition.code[:length] == other.code[:length]
        or not {name.lower() for name in condition.surfaces}.isdisjoint(
            name.lower() for name in other.surfaces
        )
        for other in others
    )
