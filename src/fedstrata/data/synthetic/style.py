"""House style: how one site writes. Sites differ in it, and a model that saw one site only knows one."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

from fedstrata.core.seeding import Seed
from fedstrata.data.synthetic.draw import Draw
from fedstrata.data.synthetic.lexicons import lexicon

BRANDS = 40
"""How many trade names are invented for a site, at most."""
MAIN_SPECIALITIES = (0.5, 0.2, 0.1)
"""Shares of a site's three main specialities."""
RULE_SHAPE = 0.9
"""Shape of the gamma distribution of a site's liking for an alternative; if smaller, sites differ more."""


@dataclass(frozen=True)
class HouseStyle:
    """The habits of one site.

    Attributes:
        seed: Where its preferences between alternatives come from.
        casing: `sentence`, `lower` or `upper`.
        heading: Format of a heading.
        heading_case: `upper`, `title` or `lower`.
        marker: What a list item begins with; `, ` and `; ` run the items on in one line.
        listing: How often a section that may be a list is one.
        abbreviation: How often a condition or a wording is cut short.
        date: Format of dates.
        age: Format of ages in years.
        infant_age: Format of ages in months.
        width: Column at which lines break; 0 for never.
        slips: Typing errors per piece of text.
        clips: Words always clipped, and their clipped forms.
        shorthand: The short form of each wording.
        brands: Trade names of the local formulary, invented.
        specialities: Running sums of the speciality mix.
        kinds: Running sums of the mix of kinds of note.
        replacements: Spelling changes; none where spelling is American.
    """

    seed: Seed
    casing: str
    heading: str
    heading_case: str
    marker: str
    listing: float
    abbreviation: float
    date: str
    age: str
    infant_age: str
    width: int
    slips: float
    clips: Mapping[str, str]
    shorthand: Mapping[str, str]
    brands: Sequence[str]
    specialities: Sequence[float]
    kinds: Sequence[float]
    replacements: Mapping[str, str]
    _weights: dict[str, list[float]] = field(default_factory=dict)
    _rewritten: dict[str, str] = field(default_factory=dict)

    def weights(self, rule: str, count: int) -> Sequence[float]:
        """Returns running sums of the site's liking for each of a rule's alternatives."""
        key = f"{rule} {count}"
        if key not in self._weights:
            draw = Draw(self.seed.child("rule", rule))
            liking = (0.05 + draw.gammavariate(RULE_SHAPE, 1.0) for _ in range(count))
            self._weights[key] = list(accumulate(liking))
        return self._weights[key]

    def favourite(self, name: str, count: int) -> int:
        """Returns which of `count` ways to write something the site likes best."""
        return self.seed.child("favourite", name).integer() % count

    def rewrite(self, text: str) -> str:
        """Returns text in the site's spelling, clipping and casing."""
        if text not in self._rewritten:
            words = re.split(r"(?<=[A-Za-z])(?=[^A-Za-z-])|(?<=[^A-Za-z-])(?=[A-Za-z])", text)
            clipped = "".join(self.clips.get(word.lower(), word) for word in words)
            for american, british in self.replacements.items():
                clipped = clipped.replace(american, british)
            cased = {"lower": clipped.lower(), "upper": clipped.upper()}
            self._rewritten[text] = cased.get(self.casing, clipped)
        return self._rewritten[text]

    def title(self, text: str) -> str:
        """Returns a section heading in the site's format."""
        cased = {"upper": text.upper(), "lower": text.lower()}.get(self.heading_case, text)
        return self.heading.format(cased)


def house_style(seed: Seed, site: int) -> HouseStyle:
    """Draws the style of a site.

    Categories are dealt out in turn from an order that the seed shuffles, so that neighbouring sites differ.

    Args:
        seed: The seed of the corpus.
        site: Its number, from 1.
    """
    own, words = seed.child("site", site, "style"), lexicon()
    draw = Draw(own)
    dealt: dict[str, Any] = {
        name.replace(" ", "_"): Draw(seed.child("deal", name)).shuffled(options)[site % len(options)]
        for name, options in words.styles["dealt"].items()
    }
    age, infant_age = draw.pick(words.styles["ages"])
    clipping = draw.uniform(0.0, 0.75)
    return HouseStyle(
        **dealt,
        seed=own,
        age=age,
        infant_age=infant_age,
        slips=draw.uniform(0.0, 0.006),
        replacements=words.british if draw.chance(0.4) else {},
        clips={word: draw.pick(forms) for word, forms in words.clips.items() if draw.chance(clipping)},
        shorthand={wording: draw.pick(forms) for wording, forms in words.shorthand.items()},
        brands=tuple(dict.fromkeys(invented_brand(draw) for _ in range(BRANDS))),
        specialities=_speciality_mix(seed, site, len(words.specialities), draw),
        kinds=list(accumulate(0.15 + draw.gammavariate(1.0, 1.0) for _ in words.kinds)),
    )


def invented_brand(draw: Draw) -> str:
    """Returns a trade name that no drug has, built as trade names are."""
    syllables = lexicon().syllables
    middle = "".join(draw.pick(syllables["middle"]) for _ in range(draw.between(0, 1)))
    return draw.pick(syllables["first"]) + middle + draw.pick(syllables["stem"])


def _speciality_mix(seed: Seed, site: int, count: int, draw: Draw) -> list[float]:
    """Returns running sums of a mix: a main, a second, a third speciality, and some of everything else."""
    order = Draw(seed.child("deal", "speciality")).shuffled(range(count))
    # Normalised, gamma variates follow a Dirichlet distribution.
    weights = [draw.gammavariate(0.5, 1.0) for _ in range(count)]
    rest = (1 - sum(MAIN_SPECIALITIES)) / sum(weights)
    weights = [weight * rest for weight in weights]
    start = (site * len(MAIN_SPECIALITIES)) % count
    for offset, share in enumerate(MAIN_SPECIALITIES):
        weights[order[(start + offset) % count]] += share
    return list(accumulate(weights))
