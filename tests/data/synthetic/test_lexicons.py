from __future__ import annotations

import re
from itertools import chain

import pytest

from fedstrata.data.synthetic.facts import FACTS
from fedstrata.data.synthetic.lexicons import AUDIENCES, Condition, Speciality, icd9_titles, lexicon
from fedstrata.data.synthetic.template import Annotation, Choice, Scope, Slot, Template, parse

LEXICON = lexicon()
ICD9 = re.compile(r"(\d{3}|V\d{2})(\.\d{1,2})?")


def slots_of(template: Template) -> set[str]:
    """Returns the names of all slots of a template."""
    names: set[str] = set()
    for part in template:
        match part:
            case Slot(name):
                names.add(name)
            case Choice(options):
                names.update(*(slots_of(option) for option in options))
            case Scope(parts) | Annotation(_, parts):
                names |= slots_of(parts)
    return names


def every_condition() -> list[Condition]:
    own = chain.from_iterable(speciality.conditions for speciality in LEXICON.specialities)
    return [*own, *LEXICON.comorbidities, *LEXICON.child_comorbidities]


def test_slots_are_found_at_every_depth() -> None:
    assert slots_of(parse("{a} ({b}|[<test:{c} {D}>])")) == {"a", "b", "c", "d"}


@pytest.mark.parametrize("speciality", LEXICON.specialities, ids=lambda speciality: speciality.name)
def test_a_speciality_is_rich_and_each_name_and_wording_in_it_means_one_thing(speciality: Speciality) -> None:
    assert len(speciality.conditions) >= 20
    wordings = [text.lower() for condition in speciality.conditions for text in condition.surfaces]
    assert len(wordings) == len(set(wordings)), "a wording means one condition"
    assert set(speciality.labs) <= set(LEXICON.labs)
    assert set(speciality.drugs) | set(speciality.dual_labs) <= set(LEXICON.drugs)
    assert speciality.dual_labs, "a substance that is a test here and a drug there"
    for audience in AUDIENCES:
        rules = speciality.rules[audience]
        named = {
            slot for templates in rules.values() for template in templates for slot in slots_of(template)
        }
        for condition in speciality.conditions:
            texts = (*condition.surfaces, *condition.symptoms, *condition.studies, *condition.treatments)
            named.update(*(slots_of(parse(text)) for text in texts))
        assert named <= set(rules) | set(FACTS)
        assert not set(rules) & set(FACTS)


def test_codes_look_like_icd9_and_a_name_has_one_code() -> None:
    codes: dict[str, str] = {}
    for condition in every_condition():
        assert ICD9.fullmatch(condition.code), condition
        assert codes.setdefault(condition.name, condition.code) == condition.code
        assert set(condition.drugs) <= set(LEXICON.drugs)
    assert set(icd9_titles()) == set(codes.values())


def test_every_route_is_a_rule_in_both_its_forms() -> None:
    rules = LEXICON.specialities[0].rules[AUDIENCES[0]]
    assert {drug.route for drug in LEXICON.drugs.values()} <= set(rules)
    assert {f"{drug.route} before" for drug in LEXICON.drugs.values()} <= set(rules)


def test_every_section_and_every_rule_a_section_names_exists() -> None:
    rules = LEXICON.specialities[0].rules[AUDIENCES[0]]
    for section in LEXICON.sections.values():
        assert {section[key] for key in ("list", "prose", "first", "aside") if key in section} <= set(rules)
    for kind in LEXICON.kinds.values():
        for outline in kind.values() if isinstance(kind, dict) else [kind]:
            assert {name for name, _ in outline} <= set(LEXICON.sections)


def test_grammars_leave_out_what_does_not_fit_the_patient() -> None:
    oncology = next(item for item in LEXICON.specialities if item.name == "oncology")
    women, men = oncology.rules["female", False], oncology.rules["male", False]
    assert "prostatic" not in repr(women["organ"])
    assert "prostatic" in repr(men["organ"])
    assert "ovarian" not in repr(men["organ"])
    assert "beers" not in repr(oncology.rules["male", True]["social sentence"])
