"""What a site lets a federation do with its documents: `policy.yaml`, which is the site's own."""

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from fedstrata.core.settings.base import Count, Positive, Settings
from fedstrata.core.settings.privacy import Epsilon

Fingerprint = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
Names = Annotated[list[str], Field(min_length=1)]


class SitePolicy(Settings):
    """The bounds of a site; what has no default here and is not set is not bounded."""

    methods: Names | None = Field(default=None, description="Allowed methods.")
    handlers: Names | None = Field(
        default=None,
        description="Allowed handlers of these methods, for example `train`.",
    )
    models: Annotated[list[Fingerprint], Field(min_length=1)] | None = Field(
        default=None,
        description="Allowed models, by the hash of embedding and blocks that a refusal reports.",
    )
    model_names: Names | None = Field(
        default=None,
        description="Allowed values of `model.name`, `model.tokenizer` and `model.weights` besides `mini` "
        "and the models of installed packages.",
    )
    rounds: Count | None = Field(
        default=None,
        description="Maximum number of rounds; if not set, the number that the server announces when the "
        "site joins.",
    )
    scorings: Count = Field(
        default=2,
        description="Maximum number of evaluations of this site's documents per round, including the test.",
    )
    epochs: Count | None = Field(
        default=None, description="Maximum number of local epochs per round (training.epochs)."
    )
    steps: Count | None = Field(
        default=None, description="Maximum number of private training steps per round (privacy.steps)."
    )
    megabytes_up: Positive | None = Field(
        default=None,
        description="Maximum upload of a run, counted in the egress log. No task starts beyond it.",
    )
    hours: Positive | None = Field(
        default=None,
        description="Maximum time since the first task of a run at this site. No task starts after it.",
    )
    scores: bool = Field(
        default=True, description="Allow counts from evaluating held-out documents to leave the site."
    )
    floors: bool = Field(
        default=True,
        description="Allow the counts of baselines, which are computed from training documents, to leave "
        "the site (federation.floors).",
    )
    secure_aggregation: bool = Field(default=False, description="Require privacy.secure_aggregation.")
    mechanisms: Annotated[list[Literal["local", "central", "joint"]], Field(min_length=1)] | None = Field(
        default=None, description="Require one of these mechanisms of differential privacy."
    )
    units: Annotated[list[Literal["patient", "document", "window"]], Field(min_length=1)] | None = Field(
        default=None, description="Allowed privacy units."
    )
    epsilon: Epsilon | None = Field(
        default=None,
        description="Maximum epsilon that a run may spend at this site, including the retries that its "
        "noise is calibrated for.",
    )
    delta: Annotated[float, Field(gt=0.0, lt=1.0)] | None = Field(default=None, description="Maximum delta.")
