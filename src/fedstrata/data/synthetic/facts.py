"""What fills the slots that depend on the patient, the house style or what was named just before."""

import re
from collections.abc import Mapping, Sequence

from fedstrata.data.synthetic.lexicons import Condition, Drug, Lab, lexicon
from fedstrata.data.synthetic.scene import Fact, Scene
from fedstrata.data.synthetic.style import invented_brand
from fedstrata.data.synthetic.template import Template, parse

MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
REPORTED = re.compile(
    r"CT|MR|PET|ray|film|gram|scan|scopy|sound|Doppler|duplex|graphy|angio|biopsy|EEG|enema|swallow"
)
FAVOURITE = 0.6
"""How often a site writes a name the way it likes best."""
PREFIXED = 0.17
"""How often a condition or a laboratory test is written with a word before it."""

DUAL = 0.12
"""How often a study or an operation is one of those that are done for both reasons."""


# ---- people and dates --------------------------------------------------------------------------------
def _age(scene: Scene) -> str:
    patient = scene.case.patient
    if scene.case.age == 0:
        return scene.style.infant_age.format(max(1, patient.months))
    return scene.style.age.format(scene.case.age)


def _age_number(scene: Scene) -> str:
    if scene.case.patient.is_child:
        return str(max(1, scene.case.age - 1))
    return str(scene.draw.between(10, max(11, scene.case.age - 1)))


def _person(scene: Scene) -> str:
    male = scene.case.patient.sex == "male"
    if scene.case.patient.is_child:
        return scene.draw.pick(("boy", "male", "boy") if male else ("girl", "female", "girl"))
    return scene.draw.pick(("man", "male", "gentleman") if male else ("woman", "female", "lady"))


def _patient(scene: Scene) -> Template:
    if scene.case.patient.is_child or scene.draw.chance(0.5):
        return parse("the %patient%")
    return parse("Mr. {surname}" if scene.case.patient.sex == "male" else "Ms. {surname}")


def _pronoun(male: str, female: str) -> Fact:
    return lambda scene: male if scene.case.patient.sex == "male" else female


def _date(scene: Scene) -> str:
    case, draw = scene.case, scene.draw
    month = MONTHS[case.month - 1]
    day = case.day + draw.between(0, 8)
    return scene.style.date.format(y=case.year, m=case.month, d=day, b=month)


def _year(scene: Scene) -> str:
    youngest = max(scene.case.year - scene.case.age + 1, scene.case.year - 20)
    return str(scene.draw.between(min(youngest, scene.case.year), scene.case.year))


# ---- conditions --------------------------------------------------------------------------------------
def _surface(scene: Scene, names: Sequence[str], prefix: str = "") -> Template:
    """Chooses a wording: short ones as often as the site abbreviates, else mostly the site's favourite.

    Before it may stand the words of a rule (`prefix`), so that the vocabulary stays open.
    """
    if prefix and scene.draw.chance(PREFIXED):
        return (*parse("{" + prefix + "} "), *parse(scene.draw.pick([names[0], names[-1]])))
    if scene.draw.chance(FAVOURITE):
        short = scene.draw.chance(scene.style.abbreviation)
        fitting = [name for name in names if name.isupper() == short] or list(names)
        return parse(fitting[scene.style.favourite(names[0], len(fitting))])
    return parse(scene.draw.pick(names))


def _code(scene: Scene, condition: Condition) -> Template:
    scene.coded = condition
    return _surface(scene, condition.surfaces, "qualifier")


def _present(scene: Scene) -> Template:
    """The patient's next diagnosis; where all are named in this section, a finding."""
    if not scene.unmentioned:
        return parse("{own finding}")
    return _code(scene, scene.unmentioned.pop(0))


def _known(scene: Scene) -> Template:
    """A condition from before this illness; where all are named, a finding."""
    earlier = [item for item in scene.unmentioned if item is not scene.case.principal]
    if not earlier:
        return parse("{own finding}")
    chosen = scene.draw.pick(earlier)
    scene.unmentioned.remove(chosen)
    return _code(scene, chosen)


def _absent(scene: Scene) -> Template:
    fresh = [item for item in scene.case.absent if item.code not in scene.ruled_out] or scene.case.absent
    chosen = scene.draw.pick(fresh)
    scene.ruled_out.add(chosen.code)
    return _surface(scene, chosen.surfaces, "qualifier")


def _ailment(scene: Scene) -> Template:
    if scene.draw.chance(0.17):
        return parse("{aching}")
    if scene.draw.chance(0.4):
        return parse(scene.draw.pick(scene.draw.pick(scene.case.present[:2]).symptoms or ("{own symptom}",)))
    return parse("{own symptom}")


def _topic_problem(scene: Scene) -> Template:
    conditions = scene.case.patient.speciality.conditions
    chosen = scene.case.principal if scene.draw.chance(0.3) else scene.draw.pick(conditions)
    return _surface(scene, chosen.surfaces, "qualifier")


def _size(scene: Scene) -> str:
    """How large a finding is; part of the mention."""
    unit = scene.draw.pick(("mm", "cm"))
    size = scene.draw.between(2, 38) if unit == "mm" else scene.draw.between(11, 92) / 10
    return f"{size} {unit}"


# ---- tests and procedures ----------------------------------------------------------------------------
def _choose_lab(scene: Scene, names: Sequence[str]) -> Lab:
    scene.lab = lexicon().labs[scene.draw.pick(names)]
    low, high = scene.lab.reference
    least, most = scene.lab.stray
    below, above = least < low, most > high
    if scene.draw.chance(0.35):
        scene.value = scene.draw.uniform(low, high)
    elif above and (not below or scene.draw.chance(0.6)):
        scene.value = scene.draw.uniform(high, high + (most - high) * scene.draw.uniform(0.05, 1.0))
    else:
        scene.value = scene.draw.uniform(least, low)
    return scene.lab


def _lab(scene: Scene) -> Template:
    own = scene.case.principal.labs
    names = own if own and scene.draw.chance(0.4) else scene.case.patient.speciality.labs
    return _surface(scene, _choose_lab(scene, names).names, "specimen")


def _low_lab(scene: Scene) -> str:
    """A test for a substance that can be given, found low."""
    lab = _choose_lab(scene, scene.case.patient.speciality.dual_labs)
    scene.value = scene.draw.uniform(min(lab.stray[0], lab.reference[0]), lab.reference[0])
    return lab.names[0]


def _chosen_lab(scene: Scene) -> Lab:
    if scene.lab is None:
        raise ValueError("the grammar gives a value before it names the test")
    return scene.lab


def _value(scene: Scene) -> str:
    return f"{scene.value:.{_chosen_lab(scene).decimals}f}"


def _reference(scene: Scene) -> str:
    lab = _chosen_lab(scene)
    low, high = (f"{end:.{lab.decimals}f}" for end in lab.reference)
    return f"{low}-{high}"


def _flag(scene: Scene) -> str:
    low, high = _chosen_lab(scene).reference
    return "(H)" if scene.value > high else "(L)" if scene.value < low else "(N)"


def _procedure(scene: Scene, own: Sequence[str], rule: str) -> Template:
    """One for the main diagnosis, one that is a test here and a treatment there, or any of a rule."""
    if scene.draw.chance(DUAL):
        return parse("{dual procedure}")
    return parse(scene.draw.pick(own) if own and scene.draw.chance(0.3) else "{" + rule + "}")


def _study(scene: Scene) -> Template:
    return _procedure(scene, scene.case.principal.studies, "imaging")


def _report(scene: Scene) -> Template:
    """A study whose report describes findings, as a culture or a hormone level does not."""
    own = [name for name in scene.case.principal.studies if REPORTED.search(name)]
    return _procedure(scene, own, "imaging")


def _vital(scene: Scene) -> Template:
    scene.vital = scene.draw.pick(tuple(lexicon().vitals))
    return _surface(scene, lexicon().vitals[scene.vital]["names"])


def _vital_value(scene: Scene) -> str:
    entry, draw = lexicon().vitals[scene.vital], scene.draw
    child, age = scene.case.patient.is_child, scene.case.age
    if entry["form"] == "pressure":
        systolic, diastolic = ((68, 118), (36, 76)) if child else ((84, 192), (46, 108))
        value = f"{draw.between(*systolic)}/{draw.between(*diastolic)}"
    elif child and entry["form"] == "mass":
        value = str(round((4 + 2.6 * age) * draw.uniform(0.8, 1.4)))
    elif entry["form"] == "degree":
        value = f"{draw.uniform(96.4, 103.8):.1f}"
    else:
        value = str(draw.between(entry["low"], entry["high"]))
    unit = entry["unit"]
    if not unit or draw.chance(0.6):
        return value
    return f"{value}{unit}" if len(unit) == 1 else f"{value} {unit}"


# ---- drugs -------------------------------------------------------------------------------------------
def _choose_drug(scene: Scene) -> str:
    draw, case = scene.draw, scene.case
    names = draw.pick(case.present).drugs if draw.chance(0.6) else case.patient.speciality.drugs
    scene.drug = lexicon().drugs[draw.pick(names)]
    if draw.chance(0.22):
        return invented_brand(draw) if draw.chance(0.4) else draw.pick(scene.style.brands)
    return draw.pick(scene.drug.names) if draw.chance(0.4) else scene.drug.names[0]


def _drug(scene: Scene) -> str:
    """One of the patient's drugs, under its own or a trade name, or a trade name only this site knows."""
    name, scene.coming_drug = scene.coming_drug or _choose_drug(scene), ""
    return name


def _dual_drug(scene: Scene) -> str:
    name = scene.draw.pick(scene.case.patient.speciality.dual_labs)
    scene.drug, scene.lab = lexicon().drugs[name], lexicon().labs[name]
    return name


def _same_substance(scene: Scene) -> str:
    name = _chosen_lab(scene).names[0]
    scene.drug = lexicon().drugs[name]
    return name


def _named_drug(scene: Scene) -> Drug:
    if scene.drug is None:
        raise ValueError("the grammar describes how a drug is given before it names the drug")
    return scene.drug


def _strength(scene: Scene) -> str:
    strength = scene.draw.pick(_named_drug(scene).strengths)
    return strength.replace(" ", "") if scene.style.favourite("strength", 3) == 0 else strength


def _route_before(scene: Scene) -> Template:
    """A route as an adjective: the drug that will follow is chosen first."""
    scene.coming_drug = _choose_drug(scene)
    return parse("{" + _named_drug(scene).route + " before}")


def _half(rule: str, *, present: bool) -> Fact:
    """One half of a rule's alternatives is for what the patient has, the other for what they do not have."""

    def fact(scene: Scene) -> Template:
        patient = scene.case.patient
        alternatives = patient.speciality.rules[patient.sex, patient.is_child][rule]
        return scene.draw.pick(alternatives[(scene.case.day + present) % 2 :: 2])

    return fact


FACTS: Mapping[str, Fact] = {
    "age": _age,
    "age number": _age_number,
    "person": _person,
    "patient": _patient,
    "he": _pronoun("he", "she"),
    "his": _pronoun("his", "her"),
    "him": _pronoun("him", "her"),
    "date": _date,
    "year": _year,
    "principal": lambda scene: _code(scene, scene.case.principal),
    "present": _present,
    "known": _known,
    "absent problem": _absent,
    "family problem": _absent,
    "possible problem": lambda scene: _absent(scene) if scene.draw.chance(0.6) else parse("{unseen finding}"),
    "ailment": _ailment,
    "own symptom": _half("symptom", present=True),
    "own sign": _half("sign", present=True),
    "own finding": _half("finding", present=True),
    "absent symptom": _half("symptom", present=False),
    "absent sign": _half("sign", present=False),
    "unseen finding": _half("finding", present=False),
    "size": _size,
    "lab": _lab,
    "lab name": _lab,
    "low lab": _low_lab,
    "same lab": lambda scene: _chosen_lab(scene).names[0],
    "value": _value,
    "value unit": lambda scene: f"{_value(scene)} {_chosen_lab(scene).unit}".strip(),
    "reference": _reference,
    "flag": _flag,
    "study": _study,
    "report": _report,
    "vital": _vital,
    "vital value": _vital_value,
    "drug": _drug,
    "dual drug": _dual_drug,
    "same substance": _same_substance,
    "strength": _strength,
    "form": lambda scene: scene.draw.pick(_named_drug(scene).forms),
    "dosage": lambda scene: scene.draw.pick(_named_drug(scene).dosages),
    "frequency": lambda scene: scene.shorten(scene.draw.pick(_named_drug(scene).frequencies)),
    "route": lambda scene: parse("{" + _named_drug(scene).route + "}"),
    "route before": _route_before,
    "topic problem": _topic_problem,
    "topic treatment": lambda scene: _procedure(scene, scene.case.principal.treatments, "operation"),
    "topic drug": _drug,
    "topic test": _study,
    "topic symptom": lambda scene: parse("{symptom}"),
}
"""Every slot that no rule fills."""
