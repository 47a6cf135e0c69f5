"""The clinical lexicons: conditions with codes and what goes with them, drugs, tests, the grammar's rules."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from importlib.resources import files
from typing import Any, NamedTuple

from ruamel.yaml import YAML

from fedstrata.data.synthetic.template import Template, parse, without

Rules = Mapping[str, tuple[Template, ...]]
Words = Mapping[str, Sequence[str]]

AUDIENCES = tuple((sex, child) for sex in ("male", "female") for child in (False, True))
"""Patients that need grammars of their own: (sex, whether a child)."""


class Condition(NamedTuple):
    """A diagnosis and what belongs to it.

    Attributes:
        name: Its full name.
        code: Its ICD-9-CM code.
        surfaces: Ways to write it (templates), the full name first.
        sex: The only sex that has it; empty for both.
        symptoms: Complaints it causes.
        labs: Laboratory tests it is followed by.
        studies: Other tests.
        treatments: Procedures and therapies, without drugs.
        drugs: Names in the drug table.
    """

    name: str
    code: str
    surfaces: tuple[str, ...]
    sex: str = ""
    symptoms: tuple[str, ...] = ()
    labs: tuple[str, ...] = ()
    studies: tuple[str, ...] = ()
    treatments: tuple[str, ...] = ()
    drugs: tuple[str, ...] = ()


class Drug(NamedTuple):
    """A drug and how it is given.

    Attributes:
        names: Its generic name, then trade names.
        strengths: For example `40 mg`.
        forms: For example `tablet`.
        route: A route, a rule of the general words.
        frequencies: Written out; sites shorten them.
        dosages: Amounts taken at a time, for example `2 tablets`.
    """

    names: tuple[str, ...]
    strengths: tuple[str, ...]
    forms: tuple[str, ...]
    route: str
    frequencies: tuple[str, ...]
    dosages: tuple[str, ...]


class Lab(NamedTuple):
    """A laboratory test.

    Attributes:
        names: Its name, then variants.
        unit: Of its values; may be empty.
        reference: Lower and upper end of the normal range.
        stray: Lower and upper end of what is ever drawn.
        decimals: Digits after the point.
        is_drug: Whether the same word is also a drug.
    """

    names: tuple[str, ...]
    unit: str
    reference: Sequence[float]
    stray: Sequence[float]
    decimals: int
    is_drug: bool = False


@dataclass(frozen=True)
class Speciality:
    """What one speciality writes about.

    Attributes:
        name: For example `cardiology`.
        ages: Youngest and oldest patient, in years.
        sex: The only sex it treats; empty for both.
        conditions: Its diagnoses.
        labs: Names in the laboratory table.
        dual_labs: Those of them that name a drug too.
        rules: For each of `AUDIENCES`, its own rules and the general ones.
    """

    name: str
    ages: tuple[int, int]
    sex: str
    conditions: tuple[Condition, ...]
    labs: tuple[str, ...]
    dual_labs: tuple[str, ...]
    rules: Mapping[tuple[str, bool], Rules]

    @cached_property
    def drugs(self) -> tuple[str, ...]:
        """Names of all drugs its conditions need, in order of mention."""
        return tuple(dict.fromkeys(name for condition in self.conditions for name in condition.drugs))


@dataclass(frozen=True, slots=True)
class Lexicon:
    """Everything that is loaded once."""

    specialities: tuple[Speciality, ...]
    comorbidities: tuple[Condition, ...]
    child_comorbidities: tuple[Condition, ...]
    drugs: Mapping[str, Drug]
    labs: Mapping[str, Lab]
    vitals: Mapping[str, Mapping[str, Any]]
    syllables: Mapping[str, tuple[str, ...]]
    shorthand: Mapping[str, tuple[str, ...]]
    clips: Mapping[str, tuple[str, ...]]
    british: Mapping[str, str]
    annotated_rules: frozenset[str]
    sections: Mapping[str, Mapping[str, Any]]
    kinds: Mapping[str, Any]
    styles: Mapping[str, Any]


def icd9_titles() -> dict[str, str]:
    """Returns the title of every ICD-9-CM code that notes carry, sorted by code."""
    loaded = lexicon()
    conditions = [item for speciality in loaded.specialities for item in speciality.conditions]
    titles: dict[str, str] = {}
    for condition in [*conditions, *loaded.comorbidities, *loaded.child_comorbidities]:
        titles.setdefault(condition.code, condition.name)
    return dict(sorted(titles.items()))


@lru_cache(maxsize=1)
def lexicon() -> Lexicon:
    """Returns the lexicons, read from this package's YAML files on first use."""
    words, notes = _load("shared/words.yaml"), _load("shared/notes.yaml")
    tests = _load("shared/tests.yaml")
    grammar = {**_load("shared/grammar.yaml"), **_load("shared/asides.yaml")}
    labs = {name: Lab((name, *_items(entry.pop("also"))), **entry) for name, entry in tests["labs"].items()}
    general = {**{name: _items(text) for name, text in words["rules"].items()}, **grammar}
    unsuitable = {patients: _items(text) for patients, text in words["unsuitable"].items()}
    folder = files(__package__) / "lexicon"
    names = sorted(entry.name for entry in folder.iterdir() if entry.name.endswith(".yaml"))
    drugs = _load("shared/drugs.yaml")
    return Lexicon(
        specialities=tuple(
            _speciality(_load(f"lexicon/{name}"), general, unsuitable, labs) for name in names
        ),
        comorbidities=_conditions(words["comorbidities"], labs),
        child_comorbidities=_conditions(words["child comorbidities"], labs),
        drugs=_drugs(drugs),
        labs=labs,
        vitals={
            name: {**entry, "names": (name, *_items(entry["also"]))}
            for name, entry in tests["vitals"].items()
        },
        syllables={place: _items(text) for place, text in drugs["syllables"].items()},
        shorthand={wording: _items(text) for wording, text in words["shorthand"].items()},
        clips={word: _items(text) for word, text in words["clips"].items()},
        british=words["british"],
        annotated_rules=frozenset(grammar),
        sections=notes["sections"],
        kinds=notes["kinds"],
        styles=_load("shared/styles.yaml"),
    )


def _load(name: str) -> dict[str, Any]:
    text = (files(__package__) / name).read_text(encoding="utf-8")
    return dict(YAML(typ="safe").load(text))


def _items(text: str) -> tuple[str, ...]:
    """Splits a list written on one line."""
    return tuple(item.strip() for item in text.split(";"))


def _drugs(table: Mapping[str, Any]) -> dict[str, Drug]:
    brands = {name: _items(text) for name, text in table["brands"].items()}
    drugs: dict[str, Drug] = {}
    for group in table["groups"]:
        how = (_items(group["form"]), group["route"], _items(group["often"]), _items(group["dosage"]))
        for name, strengths in group["drugs"].items():
            drugs[name] = Drug((name, *brands.get(name, ())), _items(strengths), *how)
    return drugs


def _conditions(table: Mapping[str, Mapping[str, str]], labs: Mapping[str, Lab]) -> tuple[Condition, ...]:
    conditions = []
    for name, entry in table.items():
        lists = ("symptoms", "tests", "treatments", "drugs")
        listed = {key: _items(entry[key]) for key in lists if key in entry}
        tests = listed.pop("tests", ())
        listed["labs"] = tuple(test for test in tests if test in labs)
        listed["studies"] = tuple(test for test in tests if test not in labs)
        surfaces = (name, *_items(entry["also"]))
        conditions.append(Condition(name, entry["code"], surfaces, entry.get("sex", ""), **listed))
    return tuple(conditions)


def _speciality(
    entry: Mapping[str, Any], general: Words, unsuitable: Words, labs: Mapping[str, Lab]
) -> Speciality:
    low, high = (int(age) for age in entry["ages"].split("-"))
    sources = {**general, **{name: _items(text) for name, text in entry["rules"].items()}}
    names = _items(entry["labs"])
    return Speciality(
        name=entry["name"],
        ages=(low, high),
        sex=entry.get("sex", ""),
        conditions=_conditions(entry["conditions"], labs),
        labs=names,
        dual_labs=tuple(name for name in names if labs[name].is_drug),
        rules={
            (sex, child): _rules(sources, (*unsuitable[sex], *(unsuitable["child"] if child else ())))
            for sex, child in AUDIENCES
        },
    )


def _rules(sources: Words, words: Sequence[str]) -> Rules:
    """Parses all rules, without the alternatives that hold an unsuitable word."""
    rules: dict[str, tuple[Template, ...]] = {}
    for name, alternatives in sources.items():
        fitting = [kept for kept in (without(str(source), words) for source in alternatives) if kept]
        rules[name] = tuple(parse(source) for source in fitting or [str(source) for source in alternatives])
    return rules
