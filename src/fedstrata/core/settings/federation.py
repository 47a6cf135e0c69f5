"""The settings of a federation: its rounds, the clients it loses, and those that are corrupt."""

import math
from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from fedstrata.core.errors import SettingError
from fedstrata.core.settings.base import Count, Fraction, Part, Positive, Settings

DATA_CORRUPTIONS = ("shuffled_labels", "shuffled_tokens", "label_flips")
"""What can be wrong with the training examples of a corrupt client."""
FEW_CLIENTS = 20
"""Up to so many are each shown, and models of their own scored everywhere, unless told otherwise."""
UPDATE_CORRUPTIONS = ("gaussian", "sign_flip", "scale")
"""What a corrupt client can do to its change."""


class CorruptSettings(Settings):
    """Clients whose training is corrupt in every round, as noise or as an attack (simulated)."""

    share: Part = Field(
        default=0.0, description="Fraction of the clients that are corrupt, rounded up; drawn with the seed."
    )
    clients: Annotated[list[str], Field(min_length=1)] | None = Field(
        default=None, description="Names of the corrupt clients, instead of `share`."
    )
    kind: Literal["shuffled_labels", "shuffled_tokens", "label_flips", "gaussian", "sign_flip", "scale"] = (
        Field(
            default="shuffled_labels",
            description="`shuffled_labels` and `shuffled_tokens` permute the targets or tokens of training "
            "examples; `label_flips` replaces each class by another one. `gaussian`, `sign_flip` and `scale` "
            "replace the update by noise, negate it or multiply it.",
        )
    )
    strength: Positive | None = Field(
        default=None,
        description="Factor that the update is multiplied with (`gaussian`: the noise in units of the "
        "update); if null, 10 with `scale` and 1 otherwise.",
    )
    portion: Fraction = Field(
        default=1.0,
        description="Fraction of a corrupt client's training examples that are corrupted (kinds that "
        "corrupt training examples); drawn with the seed.",
    )

    def _misfits(self) -> Iterator[SettingError]:
        if self.share and self.clients is not None:
            yield SettingError("share and clients both name the corrupt clients: set one of them", "conflict")
        if self.portion < 1 and not self.names_clients:
            yield SettingError(
                f"portion={self.portion:g} has no meaning without corrupt clients (share or clients)",
                "no_effect",
            )
        if self.portion < 1 and self.kind in UPDATE_CORRUPTIONS:
            of_data = ", ".join(DATA_CORRUPTIONS)
            yield SettingError(
                f"portion={self.portion:g} has no meaning with kind {self.kind!r}; it is for {of_data}",
                "no_effect",
            )
        if self.strength is not None and self.kind in DATA_CORRUPTIONS:
            of_updates = ", ".join(UPDATE_CORRUPTIONS)
            yield SettingError(
                f"strength={self.strength:g} has no meaning with kind {self.kind!r}; it is for {of_updates}",
                "no_effect",
            )

    @property
    def names_clients(self) -> bool:
        """Whether any client is to be corrupt."""
        return self.share > 0 or self.clients is not None

    @property
    def strength_used(self) -> float | None:
        """The strength with what null stands for; none where the kind has no strength."""
        if self.kind in DATA_CORRUPTIONS:
            return None
        return self.strength or (10.0 if self.kind == "scale" else 1.0)


class BootstrapSettings(Settings):
    """Intervals around the test scores: documents are drawn with replacement and scored again and again."""

    instances: Count | None = Field(
        default=None,
        description="Documents per bootstrap sample; all documents if null.",
    )
    resamples: Annotated[int, Field(ge=2)] = Field(default=2_000, description="Number of bootstrap samples.")
    level: Annotated[float, Field(gt=0.0, lt=1.0)] = Field(
        default=0.95, description="Confidence level of the intervals."
    )


class FederationSettings(Settings):
    """The rounds, and what happens when clients are lost to one."""

    rounds: Annotated[int, Field(ge=0)] = Field(
        default=10, description="Number of rounds. 0 evaluates the model without training (zero-shot)."
    )
    sample: Fraction = Field(
        default=1.0, description="Fraction of the clients that are sampled in each round."
    )
    min_clients: Count | None = Field(
        default=None,
        description="Minimum number of clients that must return an update in a round; with fewer, the run "
        "stops. If null, every sampled client that does not drop out must.",
    )
    dropout: Part = Field(
        default=0.0,
        description="Probability that a sampled client drops out of a round (simulated: it does not "
        "train). A round with fewer than `min_clients` updates, or none, leaves the model unchanged.",
    )
    evaluate_every: Count = Field(
        default=1,
        description="Rounds between evaluations on the validation split. The test split is evaluated at "
        "the end.",
    )
    score_clients: bool = Field(
        default=False,
        description="Also evaluate each client's model after local training, on the documents of all "
        "clients: on the validation split whenever it is evaluated, and on the test split in the last "
        "round.",
    )
    score_everywhere: bool | Literal["auto"] = Field(
        default="auto",
        description="With personal models: evaluate each at the end on the documents of all clients too, "
        "as for the global scores. `auto` does so with up to 20 clients.",
    )
    metric: str | None = Field(
        default=None,
        description="Metric that selects the best model, for example `f1/drug`; the task's main metric if "
        "null.",
    )
    floors: bool = Field(
        default=True,
        description="Report trivial baselines next to the test score: those of the task, computed from "
        "each client's own documents, and the untrained model, which is evaluated once on the test split.",
    )
    bootstrap: BootstrapSettings | None = Field(
        default=None,
        description="Bootstrap confidence intervals of the test scores; {} uses the defaults, those of "
        "Fed-MedLoRA.",
    )
    corrupt: CorruptSettings = CorruptSettings()


def share_of(share: float, count: int) -> int:
    """Returns how many a share of several is, rounded up.

    >>> share_of(0.1, 30), share_of(0.1, 31), share_of(0.0, 5)
    (3, 4, 0)
    """
    return math.ceil(share * count - 1e-9)  # 0.1 * 30 is a little more than 3
