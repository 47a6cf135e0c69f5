"""What a masked sum with joint noise says of itself, and that each site checks it by its own settings."""

import math
from collections.abc import Iterator
from itertools import chain

from torch import Tensor

from fedstrata.core.errors import ConfigurationError
from fedstrata.core.model import Model
from fedstrata.privacy.joint import JointNoise
from fedstrata.privacy.joint_gradients import JointGradients
from fedstrata.privacy.mechanism import Privacy
from fedstrata.privacy.secure_sum.mean import WEIGHT
from fedstrata.privacy.secure_sum.messages import MeanTerms, NoiseTerms, Roster
from fedstrata.privacy.secure_sum.quantization import largest_value, weight_element
from fedstrata.privacy.secure_sum.refusals import TooFewSites, WrongSum

_CLOSE = 1e-9
"""Up to which figures are the same: they are worked out on machines that may round differently."""


def noise_terms(privacy: Privacy) -> NoiseTerms | None:
    """Returns what is agreed of joint noise; none where there is none."""
    if (noise := privacy.joint) is None:
        return None
    assert privacy.settings.expected_batch is not None  # noqa: S101 - checked together
    return NoiseTerms(
        clip=noise.rounding.clip,
        scale=noise.rounding.scale,
        sigma=noise.sigma,
        colluders=noise.sharing.colluders,
        numbers=noise.rounding.numbers,
        expected_batch=privacy.settings.expected_batch,
    )


def bound_of(noise: NoiseTerms) -> float:
    """Returns the bound with which `secure_sum.quantization` turns a sum into one of mean gradients."""
    return largest_value(32) / (noise.scale * noise.expected_batch)


def require_own_terms(terms: MeanTerms, privacy: Privacy) -> None:
    """Checks at a site that a sum is of the kind, and has the noise, that its own settings say.

    Raises:
        WrongSum: It has not.
    """
    own, said = noise_terms(privacy), terms.noise
    if (own is None) != (said is None):
        of_it, here = (("with" if each else "without") + " joint noise" for each in (said, own))
        told = f"{terms.sum} was begun {of_it}, and this site's settings are {here}"
        raise WrongSum(f"{told}; nothing was sent", code="conflict")
    if own is None or said is None:
        return
    mine, theirs = own.model_dump(), said.model_dump()
    if wrong := [name for name in mine if not math.isclose(mine[name], theirs[name], rel_tol=_CLOSE)]:
        told = ", ".join(f"{name} {theirs[name]:g} (here {mine[name]:g})" for name in wrong)
        raise WrongSum(
            f"{terms.sum} was begun with other joint noise: {told}; nothing was sent", code="not_agreed"
        )


def require_carriers(roster: Roster, noise: JointNoise) -> None:
    """Checks at a site that the sites of a roster, colluders left out, carry the noise.

    Raises:
        TooFewSites: They are too few for the colluders that are allowed for.
    """
    try:
        noise.among(len(roster.sites))
    except ConfigurationError:
        raise TooFewSites(
            f"{len(roster.sites)} sites answered, too few for joint noise that allows for "
            f"{noise.sharing.colluders} colluders (privacy.colluders); nothing was sent"
        ) from None


def joint_elements(
    own: JointGradients, model: Model, terms: MeanTerms, roster: Roster
) -> Iterator[tuple[str, Tensor]]:
    """Yields the elements of a site's input: its noised sums, then its weight, which is everybody's.

    Args:
        own: What the site's turn has left.
        model: The site's.
        terms: The sum's.
        roster: Who is in it: how large a share is follows from that and the site's own settings.
    """
    names = [each.name for each in terms.tensors]
    return chain(own.elements(model, names, len(roster.sites)), [(WEIGHT, weight_element(1))])
