"""What a site lets a federation do with its documents: `policy.yaml`, which is the site's own."""

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from fedstrata.core.settings.base import Count, Positive, Settings
from fedstrata.core.settings.privacy import Epsilon

Fingerprint = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
Names = Annotated[list[str], Field(min_length=1)]


class SitePolicy(Settings):
    """The bounds of a site; what has no default here and is not set is not bounded."""

    methods: Names | None = Field(default=None, description="Methods that may run.")
    handlers: Names | None = Field(
        default=None,
        description="Handlers of these methods that a server may ask for, `train` for example.",
    )
    models: Annotated[list[Fingerprint], Field(min_length=1)] | None = Field(
        default=None,
        description="Models that may be trained, by the hash of embedding and blocks, which a refusal names.",
    )
    model_names: Names | None = Field(
        default=None,
        description="Models that a server may name, beside `mini` and those of installed packages: folders, "
        "hub ids and references, of `model.name`, `model.tokenizer` and `model.weights`.",
    )
    rounds: Count | None = Field(
        default=None,
        description="Most rounds of a run; those that the server named at the join when not set.",
    )
    scorings: Count = Field(
        default=2, description="Most scorings of this site's documents in a round, that of the test included."
    )
    epochs: Count | None = Field(
        default=None, description="Most passes over the training documents in a round (training.epochs)."
    )
    steps: Count | None = Field(
        default=None, description="Most steps in a round of private training (privacy.steps)."
    )
    megabytes_up: Positive | None = Field(
        default=None, description="Most that leaves the site in a run, by its ledger; no task begins beyond."
    )
    hours: Positive | None = Field(
        default=None, description="After so long since a run's first task here no task of it begins."
    )
    scores: bool = Field(
        default=True, description="Whether what is counted of held-out documents may leave the site."
    )
    floors: bool = Field(
        default=True,
        description="Whether what floors count to, which are made of training documents, may leave the site "
        "(federation.floors).",
    )
    secure_aggregation: bool = Field(
        default=False, description="Whether a run must have privacy.secure_aggregation."
    )
    mechanisms: Annotated[list[Literal["local", "central", "joint"]], Field(min_length=1)] | None = Field(
        default=None, description="Mechanisms of differential privacy of which a run must have one."
    )
    units: Annotated[list[Literal["patient", "document", "window"]], Field(min_length=1)] | None = Field(
        default=None, description="What may be protected as a whole."
    )
    epsilon: Epsilon | None = Field(
        default=None, description="Most that a run may spend here, all turns that its noise allows taken."
    )
    delta: Annotated[float, Field(gt=0.0, lt=1.0)] | None = Field(
        default=None, description="Most delta of that epsilon."
    )
