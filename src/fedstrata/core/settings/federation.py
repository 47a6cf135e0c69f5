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
        default=0.0, description="Share of the clients that is corrupt, rounded up; who is drawn by the seed."
    )
    clients: Annotated[list[str], Field(min_length=1)] | None = Field(
        default=None, description="The corrupt clients by name, in place of `share`."
    )
    kind: Literal["shuffled_labels", "shuffled_tokens", "label_flips", "gaussian", "sign_flip", "scale"] = (
        Field(
            default="shuffled_labels",
            description="Of the training examples: targets or tokens in another order, or each class for "
            "another. Of the change: noise in its place, its negative, or a multiple.",
        )
    )
    strength: Positive | None = Field(
        default=None,
        description="What the change is multiplied with (`gaussian`: how large the noise is, in units of the "
        "change); 1 if null, with `scale` 10.",
    )
    portion: Fraction = Field(
        default=1.0,
        description="Share of a corrupt client's training examples that is corrupt (kinds of the training "
        "examples); which ones is drawn by the seed.",
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
        description="Documents in a draw, never more than there are; as many as there are if null.",
    )
    resamples: Annotated[int, Field(ge=2)] = Field(default=2_000, description="Draws.")
    level: Annotated[float, Field(gt=0.0, lt=1.0)] = Field(
        default=0.95, description="Share of the draws' scores that an interval holds."
    )


class FederationSettings(Settings):
    """The rounds, and what happens when clients are lost to one."""

    rounds: Annotated[int, Field(ge=0)] = Field(
        default=10, description="0 scores the model as it is, without any training (zero-shot)."
    )
    sample: Fraction = Field(default=1.0, description="Share of the clients that takes part in a round.")
    min_clients: Count | None = Field(
        default=None,
        description="Clients of a round that must deliver; the run stops when failures leave fewer. "
        "When null, every one that does not drop out must.",
    )
    dropout: Part = Field(
        default=0.0,
        description="Chance of each sampled client to be lost to a round once it has the plan (simulated: it "
        "does not train). A round left with fewer than `min_clients`, or none, changes nothing.",
    )
    evaluate_every: Count = Field(
        default=1,
        description="Rounds between scorings of the validation split; the test split is scored at the end.",
    )
    score_clients: bool = Field(
        default=False,
        description="Also score each client's model as its local training leaves it, on all clients' "
        "documents: of the validation split when that is scored, in the last round of the test split too.",
    )
    score_everywhere: bool | Literal["auto"] = Field(
        default="auto",
        description="Where every client has a model of its own: at the end score each on the documents of "
        "all clients too, as the global scores. auto does so with 20 clients or fewer.",
    )
    metric: str | None = Field(
        default=None, description="The score a run is judged by, for example `f1/drug`; the task's if null."
    )
    floors: bool = Field(
        default=True,
        description="Beside the test score what takes no training: the task's floors, made of each client's "
        "own documents, and the model as it was at first, for which the test split is scored once more.",
    )
    bootstrap: BootstrapSettings | None = Field(
        default=None, description="Intervals around the test scores; {} for Fed-MedLoRA's draws."
    )
    corrupt: CorruptSettings = CorruptSettings()


def share_of(share: float, count: int) -> int:
    """Returns how many a share of several is, rounded up.

    >>> share_of(0.1, 30), share_of(0.1, 31), share_of(0.0, 5)
    (3, 4, 0)
    """
    return math.ceil(share * count - 1e-9)  # 0.1 * 30 is a little more than 3
