"""Federated methods: one method, one card. Adding one of ours is its file, its test and one line here.

Others are plugged in (`core.plugins`): entry points `fedstrata.methods`, or `package.module:Class`.
"""

from fedstrata.core.method import Method
from fedstrata.core.plugins import Plugins
from fedstrata.methods.centralized import Centralized
from fedstrata.methods.droppeft import DropPEFT
from fedstrata.methods.fedadaopt import FedAdaOPT
from fedstrata.methods.fedadapter import FedAdapter
from fedstrata.methods.fedavg import FedAvg
from fedstrata.methods.fedlora import FedLoRA
from fedstrata.methods.fedmedlora import FedMedLoRA
from fedstrata.methods.fedmedlora_plus import FedMedLoRAPlus
from fedstrata.methods.fedpeptao import FedPepTAO
from fedstrata.methods.fedper import FedPer
from fedstrata.methods.fedprox import FedProx
from fedstrata.methods.fedsa_lora import FedSALoRA
from fedstrata.methods.fedtlu import FedTLU
from fedstrata.methods.ffa_lora import FFALoRA
from fedstrata.methods.fl_llama import FLLLaMA
from fedstrata.methods.flora import FLoRA
from fedstrata.methods.hetlora import HetLoRA
from fedstrata.methods.layer_skipping import LayerSkipping
from fedstrata.methods.local_only import LocalOnly

__all__ = [
    "METHODS",
    "Centralized",
    "DropPEFT",
    "FFALoRA",
    "FLLLaMA",
    "FLoRA",
    "FedAdaOPT",
    "FedAdapter",
    "FedAvg",
    "FedLoRA",
    "FedMedLoRA",
    "FedMedLoRAPlus",
    "FedPepTAO",
    "FedPer",
    "FedProx",
    "FedSALoRA",
    "FedTLU",
    "HetLoRA",
    "LayerSkipping",
    "LocalOnly",
]

_OWN: dict[str, type[Method]] = {
    "layer_skipping": LayerSkipping,
    "fedavg": FedAvg,
    "fedprox": FedProx,
    "fedper": FedPer,
    "fedtlu": FedTLU,
    "fedlora": FedLoRA,
    "fedadapter": FedAdapter,
    "droppeft": DropPEFT,
    "fedmedlora": FedMedLoRA,
    "fedmedlora_plus": FedMedLoRAPlus,
    "fedsa_lora": FedSALoRA,
    "ffa_lora": FFALoRA,
    "flora": FLoRA,
    "fl_llama": FLLLaMA,
    "hetlora": HetLoRA,
    "fedadaopt": FedAdaOPT,
    "fedpeptao": FedPepTAO,
    "local_only": LocalOnly,
    "centralized": Centralized,
}
METHODS = Plugins[type[Method]](
    "fedstrata.methods",
    _OWN,
    kind="method: no class that derives from fedstrata.Method",
    is_one=lambda found: isinstance(found, type) and issubclass(found, Method),
)
"""Every method by its name in a configuration."""
