"""One note while it is being written: expands the grammar and remembers which diagnoses were mentioned."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from fedstrata.core.documents import MENTION_TYPES
from fedstrata.data.synthetic.builder import NoteBuilder
from fedstrata.data.synthetic.case import Case
from fedstrata.data.synthetic.draw import Draw
from fedstrata.data.synthetic.lexicons import Condition, Drug, Lab, lexicon
from fedstrata.data.synthetic.style import HouseStyle
from fedstrata.data.synthetic.template import Annotation, Choice, Scope, Shorthand, Slot, Template

Fact = Callable[["Scene"], "str | Template"]
"""What fills a slot that no rule fills: plain text, or a template to be written in turn."""

RETRIES = 3
"""Draws after which a sentence may repeat the pattern of an earlier one."""


@dataclass(slots=True)
class Scene:
    """The state of a note in the making.

    Attributes:
        case: The patient and the illness.
        style: The house style.
        draw: Where every choice of words comes from.
        builder: The text so far.
        facts: Slots that no rule fills, by name.
        evidence: The offsets of the spans that state each code.
        drug: The drug last named, which strength, route and frequency refer to.
        coming_drug: A drug chosen but not yet written, because its route comes first.
        lab: The laboratory test last named, which value and reference range refer to.
        value: The value drawn for `lab`.
        vital: The vital sign last named.
        coded: The condition named last, until its span ends.
        unmentioned: Present conditions not yet named in this section.
        ruled_out: Codes of the absent conditions named so far.
    """

    case: Case
    style: HouseStyle
    draw: Draw
    builder: NoteBuilder
    facts: Mapping[str, Fact]
    evidence: dict[str, list[tuple[int, int]]] = field(default_factory=dict)
    drug: Drug | None = None
    coming_drug: str = ""
    lab: Lab | None = None
    value: float = 0.0
    vital: str = ""
    coded: Condition | None = None
    unmentioned: list[Condition] = field(default_factory=list)
    ruled_out: set[str] = field(default_factory=set)
    _last: dict[str, int] = field(default_factory=dict)
    _used: dict[str, set[int]] = field(default_factory=dict)

    def rule(self, name: str) -> None:
        """Writes one alternative of a rule, as a scope of its own.

        Args:
            name: The rule. Alternatives of annotated rules are weighed by the site's liking, and used
                ones are avoided.
        """
        patient = self.case.patient
        alternatives = patient.speciality.rules[patient.sex, patient.is_child][name]
        if name not in lexicon().annotated_rules:
            chosen = self.draw.between(0, len(alternatives) - 1)
            if chosen == self._last.get(name):
                chosen = self.draw.between(0, len(alternatives) - 1)
            self._last[name] = chosen
            self.write(alternatives[chosen])
            return
        weights = self.style.weights(name, len(alternatives))
        used = self._used.setdefault(name, set())
        chosen = self.draw.index(weights)
        for _ in range(RETRIES):
            if chosen not in used:
                break
            chosen = self.draw.index(weights)
        used.add(chosen)
        self.write((Scope(alternatives[chosen]),))

    def write(self, template: Template) -> None:
        """Writes a template."""
        for part in template:
            match part:
                case str():
                    self.builder.text(part)
                case Slot(name) if name in self.facts:
                    filled = self.facts[name](self)
                    self.write((filled,) if isinstance(filled, str) else filled)
                case Slot(name):
                    self.rule(name)
                case Annotation(label, parts):
                    start = self.builder.begin()
                    self.write(parts)
                    written = self.builder.end(start, label)
                    if label in MENTION_TYPES:
                        if self.coded is not None and written:
                            self.evidence.setdefault(self.coded.code, []).append((start, len(self.builder)))
                        self.coded = None
                case Choice(options):
                    self.write(self.draw.pick(options))
                case Scope(parts):
                    self.builder.push()
                    self.write(parts)
                    self.builder.pop()
                case Shorthand(wording):
                    self.builder.text(self.shorten(wording))

    def shorten(self, wording: str) -> str:
        """Returns a wording, or the site's shorthand for it as often as the site uses shorthand."""
        short = self.style.shorthand.get(wording)
        return short if short is not None and self.draw.chance(self.style.abbreviation) else wording
