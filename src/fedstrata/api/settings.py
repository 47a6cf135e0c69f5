"""The sections of a configuration as typed objects: `fs.settings.TrainingSettings(epochs=2)`."""

from fedstrata.core.settings.adapter import BottleneckSettings, LoraSettings, PrefixSettings
from fedstrata.core.settings.data import (
    ColumnSettings,
    CorpusSettings,
    DatasetSettings,
    DataSettings,
    LabelSettings,
    SplitSettings,
    SyntheticSettings,
)
from fedstrata.core.settings.devices import DeviceSettings
from fedstrata.core.settings.federation import FederationSettings
from fedstrata.core.settings.formats import ConllSettings, RelationTableSettings
from fedstrata.core.settings.model import ModelSettings, TrainedTokenizer
from fedstrata.core.settings.partition import PartitionSettings
from fedstrata.core.settings.privacy import PrivacySettings
from fedstrata.core.settings.report import ReportSettings
from fedstrata.core.settings.run import RunSettings
from fedstrata.core.settings.training import TrainingSettings

__all__ = [
    "BottleneckSettings",
    "ColumnSettings",
    "ConllSettings",
    "CorpusSettings",
    "DataSettings",
    "DatasetSettings",
    "DeviceSettings",
    "FederationSettings",
    "LabelSettings",
    "LoraSettings",
    "ModelSettings",
    "PartitionSettings",
    "PrefixSettings",
    "PrivacySettings",
    "RelationTableSettings",
    "ReportSettings",
    "RunSettings",
    "SplitSettings",
    "SyntheticSettings",
    "TrainedTokenizer",
    "TrainingSettings",
]
