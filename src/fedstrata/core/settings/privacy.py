"""What may be learnt of a patient from what a client sends: `privacy`."""

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from fedstrata.core.errors import SettingError
from fedstrata.core.settings.base import Count, NotNegative, Positive, Settings, idle_settings

LEAST_SITES, MOST_SITES = 3, 64
"""Of one masked sum: with two, each could subtract its own; more than 64 would overflow the ring."""
MOST_EPSILON = 1000.0
"""Above it nothing is bounded that anyone could notice, and the accountant has no figures."""
MOST_STEPS = 10**5
"""Of a client in a round: beyond what any takes, and within what the accountant can compose."""
MOST_KNOWN_SITES = 1024
"""That a site's federation lock may name; those of one sum are fewer."""


Epsilon = Annotated[float, Field(gt=0.0, le=MOST_EPSILON)]


class BudgetSettings(Settings):
    """What a site lets be spent of each unit over all runs; the site's own, and no server's."""

    path: Annotated[str, Field(min_length=1)] = Field(
        description="Budget file of the site, created by its first run. The key of its pseudonyms is "
        "stored next to it, with the suffix .key (fedstrata keys new FILE.key --pseudonyms)."
    )
    epsilon: Epsilon = Field(description="Total epsilon of each privacy unit over all runs, by composition.")
    delta: Annotated[float, Field(gt=0.0, lt=1.0)] = Field(
        description="Delta of that epsilon; the same in all runs of the file."
    )
    disjoint_sites: bool = Field(
        default=False,
        description="State that no patient is at two sites, so that a site's spending is the patient's "
        "total. Otherwise equal patient names at sites that share the file are counted as one patient.",
    )

    def _misfits(self) -> Iterator[SettingError]:
        if self.path.endswith(".key"):
            yield SettingError(
                f"path must not end in .key, where the key of its pseudonyms lies, unlike {self.path!r}",
                "wrong_form",
            )


class PrivacySettings(Settings):
    """Differential privacy by patient, at each client or over all of them, or by client at the server."""

    mechanism: Literal["none", "local", "central", "joint"] = Field(
        default="none",
        description="`local`: each client clips the contribution of each privacy unit to a step and adds "
        "noise. `central`: a trusted server does so with each client's update. `joint`: like `local` with "
        "one step per round, but each client adds only a share of the noise; the sum of the shares is the "
        "full noise (needs secure_aggregation).",
    )
    unit: Literal["patient", "document", "window"] = Field(
        default="patient",
        description="Privacy unit. `window` protects a single training example; a note has several and a "
        "patient many, so the epsilon of a patient is larger.",
    )
    units: dict[str, Count] | None = Field(
        default=None,
        description="Number of privacy units that each client declares. The number is public; a client "
        "may have fewer.",
    )
    epsilon: Epsilon | None = Field(
        default=None, description="Target epsilon of the whole run. It determines the noise."
    )
    delta: Annotated[float, Field(gt=0.0, lt=1.0)] | None = Field(
        default=None,
        description="Target delta; must be below 1 / (the largest number of units that a client declares).",
    )
    sigma: NotNegative | None = Field(
        default=None,
        description="Noise multiplier: standard deviation of the noise in units of `clip`, instead of "
        "`epsilon`, which follows from it. 0 only clips.",
    )
    clip: Positive = Field(
        default=1.0,
        description="Maximum L2 norm of the gradient of a privacy unit (`central`: of a client's update).",
    )
    windows: Count = Field(
        default=4,
        description="Maximum number of examples of a privacy unit in one step, drawn anew for each step.",
    )
    expected_batch: Count | None = Field(
        default=None, description="Expected number of privacy units in a step (Poisson sampling)."
    )
    steps: Annotated[int, Field(ge=1, le=MOST_STEPS)] | None = Field(
        default=None, description="Steps of local training per round (mechanism `joint`: 1)."
    )
    spare_turns: Annotated[int, Field(ge=0, le=1000)] = Field(
        default=2,
        description="Client tasks (`central`: rounds) that may be interrupted and repeated. Each "
        "repetition spends as much as a complete one, and the noise is calibrated for them.",
    )
    scores: Literal["none", "summed"] = Field(
        default="none",
        description="What clients on separate machines report of their validation and test documents "
        "(mechanism `local` or `joint`, or secure_aggregation): nothing, or counts that are added up; "
        "with secure_aggregation only their sum. Epsilon does not cover these counts.",
    )
    noise: Literal["secure", "seeded"] = Field(
        default="secure",
        description="Source of the noise. `seeded` draws it from the run's seed, for experiments; it "
        "gives no protection.",
    )
    secure_aggregation: bool = Field(
        default=False,
        description="The server sees only the sum of a round's updates. Works with mechanisms `none` and "
        "`local`; mechanism `joint` needs it.",
    )
    colluders: Annotated[int, Field(ge=0, lt=MOST_SITES)] | None = Field(
        default=None,
        description="Number of clients per round that may reveal their share of the noise to the server "
        "(mechanism `joint`); the other clients add noise to compensate. If null, just below a third of "
        "the clients.",
    )
    range: Annotated[float, Field(gt=0.0, le=65536.0)] = Field(
        default=1.0,
        description="Clipping range of each number in the first sum (secure_aggregation, not with "
        "mechanism `joint`). Later rounds use 64 times the root mean square of the last change of a "
        "tensor, and at least this value.",
    )
    ring: Literal[32, 24] = Field(
        default=32,
        description="Bits per number in secure aggregation (not with mechanism `joint`). 24 bits send a "
        "quarter less and round 256 times more coarsely.",
    )
    weights: Literal["examples", "uniform"] = Field(
        default="examples",
        description="Weight of a client in a secure sum (not with mechanism `joint`): its number of "
        "training examples, or the same for all clients.",
    )
    survivors: Annotated[int, Field(ge=LEAST_SITES, le=MOST_SITES)] | None = Field(
        default=None,
        description="Minimum number of clients in a secure sum; every client enforces it. If null, more "
        "than two thirds of the clients that start, and at least 3.",
    )
    budget: BudgetSettings | Literal["unlimited"] | None = Field(
        default=None,
        description="Privacy budget of this site over all runs (mechanism `local` or `joint`). If null, "
        "`fedstrata join` keeps a budget in the site's home, as large as that of the first run, and a "
        "simulation has none. `unlimited` bounds each run only.",
    )

    @property
    def bounded_by(self) -> BudgetSettings | None:
        """The budget over all runs; none if there is none."""
        return self.budget if isinstance(self.budget, BudgetSettings) else None

    @property
    def boundable(self) -> bool:
        """Whether a budget over runs can count what a run spends (`_unbounded`)."""
        return self.by_unit and self.spends and self.noise == "secure" and self.unit != "window"

    @property
    def spends(self) -> bool:
        """Whether there is noise, so that there is an epsilon."""
        return self.mechanism != "none" and self.sigma != 0.0

    @property
    def by_unit(self) -> bool:
        """Whether units of clients' data are protected, each client seeing to it, and not clients."""
        return self.mechanism in {"local", "joint"}

    def declared(self, client: str, *, pooled: bool = False) -> int:
        """Returns how many units a client declares; pooled data has those of all sites."""
        units = self.units or {}
        return sum(units.values()) if pooled else units[client]

    def _misfits(self) -> Iterator[SettingError]:
        yield from self._idle()
        yield from self._missing()
        yield from self._beyond_declared()
        yield from self._unbounded()

    def _idle(self) -> Iterator[SettingError]:
        """Yields what has no effect with this mechanism."""
        both = ("epsilon", "delta", "sigma", "clip", "spare_turns", "noise")
        local = ("unit", "units", "windows", "expected_batch", "steps", "scores")
        owners = {name: ["local", "central", "joint"] for name in both}
        owners |= {name: ["local", "joint"] for name in local} | {"colluders": ["joint"]}
        if self.secure_aggregation:
            del owners["scores"]  # of a client that tells nothing else either
        for name, choices in idle_settings(self, self.mechanism, owners).items():
            yield SettingError(
                f"{name} has no meaning with mechanism {self.mechanism!r}; it is for {' or '.join(choices)}",
                "no_effect",
            )
        summed = {name: ["True"] for name in ("range", "ring", "weights", "survivors")}
        for name in idle_settings(self, str(self.secure_aggregation), summed):
            yield SettingError(f"{name} has no meaning without secure_aggregation: true", "no_effect")
        if self.secure_aggregation and self.mechanism == "central":
            yield SettingError(
                "secure_aggregation does not go with mechanism 'central', whose server clips single updates; "
                "use mechanism 'local' or 'joint', or leave one of the two out",
                "conflict",
            )
        masked = {
            "range": "clip bounds what is summed",
            "ring": "the noise needs all 32 bits",
            "weights": "every client counts for as much as any other",
        }
        if self.mechanism == "joint":
            for name in idle_settings(self, "joint", {key: ["none"] for key in masked}):
                yield SettingError(
                    f"{name} has no meaning with mechanism 'joint': {masked[name]}", "no_effect"
                )

    def _missing(self) -> Iterator[SettingError]:
        """Yields what a mechanism cannot do without."""
        if self.mechanism == "none":
            return
        steps = ("steps",) if self.mechanism == "local" else ()
        needed = ("delta", *(("units", "expected_batch", *steps) if self.by_unit else ()))
        if self.mechanism == "joint" and not self.secure_aggregation:
            yield SettingError(
                "mechanism 'joint' needs secure_aggregation: true; a share of the noise hides nothing alone",
                "conflict",
            )
        if self.mechanism == "joint" and self.steps not in {None, 1}:
            yield SettingError(
                f"mechanism 'joint' takes one step a round: steps must be 1 or left out, not {self.steps}",
                "out_of_range",
            )
        if missing := [name for name in needed if getattr(self, name) is None]:
            yield SettingError(f"mechanism {self.mechanism!r} needs {', '.join(missing)}", "missing")
        if (self.epsilon is None) == (self.sigma is None):
            yield SettingError(
                f"give epsilon, or sigma in its place, not {'none' if self.sigma is None else 'both'}",
                "missing" if self.sigma is None else "conflict",
            )

    def _unbounded(self) -> Iterator[SettingError]:
        """Yields why a budget cannot be kept, if it cannot."""
        if self.bounded_by is None:
            return
        if self.mechanism == "none":
            yield SettingError(
                "budget: nothing bounds what a run of mechanism 'none' spends; use 'local', or no budget",
                "unbounded",
            )
        elif self.mechanism == "central":
            yield SettingError(
                "budget: with mechanism 'central' a change leaves its site as it is; use 'local'", "unbounded"
            )
        if self.sigma == 0.0:
            yield SettingError(
                "budget: without noise (sigma 0) a run spends without bound; use epsilon, or no budget",
                "unbounded",
            )
        if self.noise == "seeded":
            yield SettingError(
                "budget: noise 'seeded' can be taken off again, and protects nobody; use 'secure'",
                "unbounded",
            )
        if self.unit == "window":
            yield SettingError(
                "budget: a window of one run is none of another's; use unit 'patient' or 'document'",
                "unbounded",
            )

    def _beyond_declared(self) -> Iterator[SettingError]:
        """Yields what does not go with the units that are declared."""
        most = max((self.units or {}).values(), default=0)
        if self.delta is not None and (
            fault := delta_fault(self.delta, most, "units that a client declares")
        ):
            yield SettingError(f"delta {fault}", "out_of_range")
        if (own := self.bounded_by) is not None and own.delta * most >= 1.0:
            yield SettingError(
                f"budget.delta must be below 1/{most}, as delta, not {own.delta:g}", "out_of_range"
            )
        for name, count in (self.units or {}).items():
            if self.expected_batch is not None and count < self.expected_batch:
                least = f"expected_batch ({self.expected_batch})"
                yield SettingError(f"units of {name!r} must be at least {least}, not {count}", "out_of_range")


def delta_fault(delta: float, count: int, of: str) -> str:
    """Says why delta is too large for so many of what is protected; empty if it is not."""
    return f"must be below 1/{count}, for the {count} {of}, not {delta:g}" if delta * count >= 1.0 else ""
