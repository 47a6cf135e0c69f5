"""The settings of a whole run."""

from typing import Annotated, Any, Literal

from pydantic import Field

from fedstrata.core.settings.adapter import AdapterSettings
from fedstrata.core.settings.base import Count, Settings
from fedstrata.core.settings.data import DataSettings
from fedstrata.core.settings.devices import DeviceSettings
from fedstrata.core.settings.federation import FederationSettings
from fedstrata.core.settings.model import ModelSettings
from fedstrata.core.settings.partition import PartitionSettings
from fedstrata.core.settings.privacy import PrivacySettings
from fedstrata.core.settings.report import ReportSettings
from fedstrata.core.settings.training import TrainingSettings

USUAL_METHOD = "layer_skipping"
"""The method of a run that names none."""
USUAL_TASK = "ner"
"""The task where none is named."""


class RunSettings(Settings):
    """A whole run."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")] = Field(
        default="run", description="What the run, and its directory, is called."
    )
    seed: int = Field(default=0, description="The number that everything random comes from.")
    device: Annotated[str, Field(pattern=r"^(auto|cpu|cuda(:\d+)?)$")] = Field(
        default="auto", description="cpu, cuda or cuda:1; auto: a GPU if there is one."
    )
    threads: Count | None = Field(
        default=None,
        description="CPU threads of a client, on which sums depend to the last bit. When null, 1 in a "
        "simulation; for a server, and where a model is used, torch's choice.",
    )
    workers: Count | Literal["auto", "ray"] = Field(
        default="auto",
        description="Processes of this machine at which clients compute at once; no number depends on it. "
        "auto: as many as cores, memory and the clients of a round allow, 1 for a short run. ray: those of a "
        "Ray cluster, of which each has `threads` of its CPUs.",
    )
    data: DataSettings = DataSettings()
    partition: PartitionSettings = PartitionSettings()
    model: ModelSettings = ModelSettings()
    adapter: AdapterSettings | None = Field(
        default=None,
        discriminator="kind",
        description="Small modules that train in place of the model: {kind: lora}, bottleneck or prefix. "
        "What the method works with if null.",
    )
    task: dict[str, Any] = Field(default_factory=lambda: {"name": USUAL_TASK})
    method: dict[str, Any] = Field(default_factory=lambda: {"name": USUAL_METHOD})
    training: TrainingSettings = TrainingSettings()
    federation: FederationSettings = FederationSettings()
    privacy: PrivacySettings = PrivacySettings()
    devices: DeviceSettings | None = Field(
        default=None, description="Emulated devices and networks; none when null."
    )
    report: ReportSettings = ReportSettings()
    report_to: list[Literal["tensorboard", "mlflow", "wandb"]] = Field(
        default_factory=list, description="Experiment trackers; each is an extra of its name."
    )
