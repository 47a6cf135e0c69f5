"""Adapters: small modules that train in place of the model they are added to, through PEFT."""

from fedstrata.adapters.peft_config import section_of

__all__ = ["section_of"]
