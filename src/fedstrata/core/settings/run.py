"""The settings of a whole run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator

from fedstrata.core.settings.adapter import AdapterSettings
from fedstrata.core.settings.base import Count, Settings
from fedstrata.core.settings.data import DataSettings
from fedstrata.core.settings.devices import DeviceSettings
from fedstrata.core.settings.federation import FederationSettings
from fedstrata.core.settings.model import ModelSettings
from fedstrata.core.settings.partition import PartitionSettings
from fedstrata.core.settings.task import (
    ClassifySettings,
    ClozeSettings,
    ExtractSettings,
    LmSettings,
    NerSettings,
    RelationSettings,
    SummarizeSettings,
)
from fedstrata.core.settings.training import TrainingSettings

USUAL_METHOD = "layer_skipping"
"""The method of a run that names none."""


class RunSettings(Settings):
    """A whole run."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")] = "run"
    seed: int = 0
    device: Annotated[str, Field(pattern=r"^(auto|cpu|cuda(:\d+)?)$")] = "auto"
    threads: Count | None = Field(default=None, description="CPU threads; torch's choice when null.")
    data: DataSettings = DataSettings()
    partition: PartitionSettings = PartitionSettings()
    model: ModelSettings = ModelSettings()
    adapter: AdapterSettings | None = Field(
        default=None,
        discriminator="kind",
        description="Small modules that train in place of the model: {kind: lora}, bottleneck or prefix. "
        "What the method works with if null.",
    )
    task: (
        NerSettings
        | ClassifySettings
        | LmSettings
        | ExtractSettings
        | RelationSettings
        | ClozeSettings
        | SummarizeSettings
    ) = Field(default=NerSettings(), discriminator="name")
    method: dict[str, Any] = Field(default_factory=lambda: {"name": USUAL_METHOD})
    training: TrainingSettings = TrainingSettings()
    federation: FederationSettings = FederationSettings()
    devices: DeviceSettings | None = Field(
        default=None, description="Emulated devices and networks; none when null."
    )
    report_to: list[Literal["tensorboard", "mlflow", "wandb"]] = Field(
        default_factory=list, description="Experiment trackers; each is an extra of its name."
    )

    @field_validator("task", mode="before")
    @classmethod
    def _task_is_ner_unless_named(cls, value: Any) -> Any:
        return {"name": "ner", **value} if isinstance(value, Mapping) else value
