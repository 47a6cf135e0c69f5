"""Adapters: small modules that train in place of the model they are added to, through PEFT."""
