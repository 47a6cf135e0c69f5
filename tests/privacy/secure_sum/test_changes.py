"""From changes to their sum: rounded, masked, summed and unmasked, one tensor of a site at a time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch
from secure_federation import SHAPES, SITES, Federation
from torch import Tensor

from fedstrata.privacy.randomness import SecureRandomness
from fedstrata.privacy.secure_sum.messages import MaskedInput
from fedstrata.privacy.secure_sum.quantization import dequantize_, quantize_, rounding_error

BOUNDS = {"w": 4.0, "b": 1e-3, "empty": 1.0}


def test_the_sum_of_changes_is_within_the_declared_error(tmp_path: Path) -> None:
    sites = SITES[:4]
    generator = torch.Generator().manual_seed(0)
    changes = {
        site: {
            name: BOUNDS[name] * (2 * torch.rand(shape, generator=generator) - 1)
            for name, shape in SHAPES.items()
        }
        for site in sites
    }
    expected = {name: sum(changes[site][name].double() for site in sites[1:]) for name in SHAPES}
    federation = Federation(sites, tmp_path / "sum")
    sharers = federation.delivery(federation.shares(federation.keys()))
    federation.present = list(sites[1:])
    for site in federation.present:
        rounded: list[str] = []

        def elements(own: dict[str, Tensor], rounded: list[str] = rounded) -> Iterator[tuple[str, Tensor]]:
            for name, change in own.items():
                rounded.append(name)
                yield name, quantize_(change, BOUNDS[name], SecureRandomness())[0]

        sent = {}
        places = {name: change.data_ptr() for name, change in changes[site].items()}
        for name, masked in federation.clients[site].mask(sharers, elements(changes[site])):
            assert rounded[-1] == name, "no tensor is rounded before its turn"
            assert masked.data_ptr() == places[name], "no copy is made"
            sent[name] = masked
        federation.server.add(MaskedInput(sum=federation.name, site=site), sent)
    unmasking = federation.server.close(tmp_path / "sum")
    federation.consistency(unmasking)
    total = federation.unmask(unmasking)
    for name, exact in expected.items():
        error = rounding_error(BOUNDS[name], 3)
        found = dequantize_(total[name], BOUNDS[name]).double()
        assert bool(((found - exact).abs() <= error.largest + 2.0**-24 * 3 * BOUNDS[name]).all())
