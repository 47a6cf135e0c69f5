"""The settings of emulated devices, and what their modes stand for."""

from __future__ import annotations

import pytest

from fedstrata.core.settings.devices import PROFILES, Device, DeviceSettings
from fedstrata.core.settings.source import read_source
from fedstrata.engine.check import check_settings


def test_no_mode_draws_more_than_its_name_says() -> None:
    named = [(mode, own) for modes in PROFILES.values() for mode, own in modes.items() if "W" in mode]
    for name, mode in named:
        assert mode.watts == float(name.split("_")[1].removesuffix("W"))
    assert len(named) == 12


def test_what_a_device_takes() -> None:
    device = Device("phone", "default", 2.0, watts=5.0, utilisation=0.25, megabits_per_second=40.0)
    assert device.compute_seconds(1e12) == 2.0
    assert device.transfer_seconds(5_000_000) == 1.0
    assert device.joules(1e12) == 10.0


def test_modes_are_all_or_the_one_that_was_asked_for() -> None:
    phone = {"phone": {"teraflops": 0.8, "watts": 5}}
    settings = DeviceSettings.model_validate(
        {"profiles": {"tx2": 1, "nx": 1, "phone": 1}, "mode": {"nx": "MODE_10W_2CORE"}, "custom": phone}
    )
    assert len(settings.modes_of("tx2")) == 5
    assert list(settings.modes_of("nx")) == ["MODE_10W_2CORE"]
    assert settings.modes_of("phone")["default"].teraflops == 0.8
    assert DeviceSettings(profiles="agx", mode="MAXN").modes_of("agx") == {"MAXN": PROFILES["agx"]["MAXN"]}


@pytest.mark.parametrize(
    ("devices", "path", "code", "values"),
    [
        ("{profiles: jetson}", "profiles", "unknown_name", ["tx2, nx, agx", "'jetson'"]),
        ("{profiles: {}}", "profiles", "missing", []),
        ("{profiles: {nx: 0}}", "profiles.nx", "out_of_range", ["not 0"]),
        ("{mode: MAXN}", "mode", "unknown_name", ["'MAXN'", "nx", "MODE_15W_2CORE"]),
        ("{profiles: tx2, mode: {agx: MAXN}}", "mode", "no_effect", ["has tx2", "not 'agx'"]),
        ("{custom: {nx: {teraflops: 1, watts: 1}}}", "custom", "duplicate", ["nx"]),
        ("{custom: {phone: {teraflops: 1}}}", "custom.phone.watts", "missing", []),
        ("{bandwidth: {low: 9, high: 3}}", "bandwidth", "conflict", ["3", "not 9"]),
        ("{bandwidth: 0}", "bandwidth", "out_of_range", ["greater than 0"]),
        ("{utilisation: 1.5}", "utilisation", "out_of_range", ["not 1.5"]),
        ("{speed: 3}", "speed", "unknown_key", []),
    ],
)
def test_what_is_wrong_is_named(devices: str, path: str, code: str, values: list[str]) -> None:
    (problem,) = check_settings(read_source(None, [f"devices={devices}"])).problems
    assert (problem.path, problem.code, problem.origin) == (f"devices.{path}", code, "the command line")
    assert all(value in problem.message for value in values)


def test_problems_come_together() -> None:
    devices = "{profiles: {jetson: 1}, mode: FAST, bandwidth: {low: 9, high: 3}, utilisation: 0}"
    problems = check_settings(read_source(None, [f"devices={devices}", "training.epochs=0"])).problems
    assert sorted(problem.path for problem in problems) == [
        "devices.bandwidth", "devices.mode", "devices.profiles", "devices.utilisation", "training.epochs",
    ]  # fmt: skip
