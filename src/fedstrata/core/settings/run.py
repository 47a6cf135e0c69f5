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
        default="run", description="Name of the run and of its directory."
    )
    seed: int = Field(default=0, description="Random seed.")
    device: Annotated[str, Field(pattern=r"^(auto|cpu|cuda(:\d+)?)$")] = Field(
        default="auto", description="cpu, cuda or cuda:N. `auto` uses a GPU if there is one."
    )
    threads: Count | None = Field(
        default=None,
        description="CPU threads per client; the last bits of sums depend on it. If null, 1 in a "
        "simulation, and torch's default on a server and for predictions.",
    )
    workers: Count | Literal["auto", "ray"] = Field(
        default="auto",
        description="Worker processes that train clients in parallel; results do not depend on it. `auto` "
        "uses as many as cores, memory and the clients of a round allow, and 1 for a short run. `ray` "
        "uses the workers of a Ray cluster, each with `threads` CPUs.",
    )
    data: DataSettings = DataSettings()
    partition: PartitionSettings = PartitionSettings()
    model: ModelSettings = ModelSettings()
    adapter: AdapterSettings | None = Field(
        default=None,
        discriminator="kind",
        description="Adapter that trains instead of the full model: {kind: lora}, bottleneck or prefix. "
        "The method's default if null.",
    )
    task: dict[str, Any] = Field(default_factory=lambda: {"name": USUAL_TASK})
    method: dict[str, Any] = Field(default_factory=lambda: {"name": USUAL_METHOD})
    training: TrainingSettings = TrainingSettings()
    federation: FederationSettings = FederationSettings()
    privacy: PrivacySettings = PrivacySettings()
    devices: DeviceSettings | None = Field(
        default=None, description="Emulated devices and networks; null emulates none."
    )
    report: ReportSettings = ReportSettings()
    report_to: list[Literal["tensorboard", "mlflow", "wandb"]] = Field(
        default_factory=list, description="Experiment trackers; each needs the extra of its name."
    )
