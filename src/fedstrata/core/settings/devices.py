"""Emulated devices: what a client computes, sends and draws power with, for a simulated clock.

Profiles are NVIDIA Jetson modules, the end devices of DropPEFT (section 6.1, Table 2) and of the literature
it follows. A mode is one of a module's power modes (`nvpmodel`), by the name that the module itself gives it;
its peak is that of float32 arithmetic on the CUDA cores, 2 x cores x clock (one fused multiply-add a core
and cycle). The TOPS that Table 2 gives for the two Xaviers are those of int8 inference, which say little of
training.

A device may count the operations of a larger model than the one that trains (`as_model`), so that computing
has the share of its time that it has with that.
"""

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from pydantic import Field, ValidationInfo, field_validator

from fedstrata.core.errors import SettingError, SettingErrors
from fedstrata.core.settings.base import Fraction, Positive, Settings

DRAWN = "drawn"
"""Stands for a mode that is drawn for each device and round."""
ONLY_MODE = "default"
"""The mode of a profile that the user defines."""


class Mode(Settings):
    """One way a device can work; of a device of your own the only one."""

    teraflops: Positive = Field(description="Peak float32 performance in 10^12 operations per second.")
    watts: Positive = Field(description="Power during computation, in watts.")


def _jetson() -> dict[str, dict[str, Mode]]:
    """Returns the power modes of each module, in their order in the file."""
    table = tomllib.loads((files("fedstrata.core.settings") / "jetson.toml").read_text(encoding="utf-8"))
    return {
        profile: {
            name: Mode(teraflops=2.0 * mode["cores"] * mode["megahertz"] * 1e-6, watts=mode["watts"])
            for name, mode in modes.items()
        }
        for profile, modes in table.items()
    }


PROFILES: Mapping[str, Mapping[str, Mode]] = _jetson()
"""The modes of Jetson TX2, Xavier NX and AGX Xavier; see `jetson.toml` for where they are from."""


SHAPES: Mapping[str, Mapping[str, Any]] = tomllib.loads(
    (files("fedstrata.core.settings") / "shapes.toml").read_text(encoding="utf-8")
)
"""The configurations of models that devices may be emulated with, by name."""


@dataclass(frozen=True, slots=True)
class Device:
    """The device of one client in one round.

    Attributes:
        profile: Which kind of device it is.
        mode: How it works in this round.
        teraflops: Peak of float32 arithmetic in this mode, 10^12 operations a second.
        watts: Power while it computes.
        utilisation: Share of the peak that training reaches.
        megabits_per_second: Bandwidth of this round, in each direction.
    """

    profile: str
    mode: str
    teraflops: float
    watts: float
    utilisation: float
    megabits_per_second: float

    def compute_seconds(self, flops: float) -> float:
        """Returns how long so many floating-point operations take."""
        return flops / (self.teraflops * 1e12 * self.utilisation)

    def transfer_seconds(self, size: float) -> float:
        """Returns how long so many bytes take, in one direction or first in one and then in the other."""
        return 8.0 * size / (self.megabits_per_second * 1e6)

    def joules(self, flops: float) -> float:
        """Returns the energy of so many floating-point operations; what the radio draws is not in it."""
        return self.watts * self.compute_seconds(flops)


class BandwidthSettings(Settings):
    """Bandwidth that is drawn uniformly for each device and round."""

    low: Positive = 1.0
    high: Positive = 100.0

    def _misfits(self) -> Iterator[SettingError]:
        if self.low > self.high:
            yield SettingError(
                f"low must be at most high ({self.high:g} megabits a second), not {self.low:g}", "conflict"
            )


class DeviceSettings(Settings):
    """Devices and networks that clients are emulated on; a simulated clock and energy come of it."""

    custom: dict[str, Mode] = Field(
        default_factory=dict,
        description="Custom devices: {phone: {teraflops: 0.8, watts: 5}}, with the peak in float32.",
    )
    profiles: str | dict[str, Positive] = Field(
        default={"tx2": 1.0, "nx": 1.0, "agx": 1.0},
        description="Device of all clients, or a mapping from devices to the fractions of the clients "
        "that use them: `tx2`, `nx`, `agx` and those of `custom`. Devices are assigned once.",
    )
    mode: str | dict[str, str] = Field(
        default=DRAWN,
        description="Power mode of the device, or modes by device. `drawn` draws one of a device's modes "
        "for each client and round.",
    )
    utilisation: Fraction = Field(
        default=0.3, description="Fraction of the peak performance that training reaches."
    )
    bandwidth: Positive | BandwidthSettings = Field(
        default=BandwidthSettings(),
        description="Bandwidth in megabits per second in each direction: a number, or {low: 1, high: "
        "100}, drawn uniformly for each client and round.",
    )

    as_model: str | dict[str, Any] | None = Field(
        default=None,
        description="Model whose operations the emulated devices count, instead of the trained model: "
        f"{', '.join(f'`{name}`' for name in SHAPES)}, or a transformers config with its `model_type`.",
    )

    @field_validator("as_model")
    @classmethod
    def _known_shape(cls, value: str | dict[str, Any] | None) -> Any:
        if isinstance(value, str) and value not in SHAPES:
            raise SettingError(
                f"must be one of {', '.join(SHAPES)}, or a configuration, not {value!r}", "unknown_name"
            )
        if isinstance(value, dict) and "model_type" not in value:
            raise SettingError("a configuration must say its model_type", "missing")
        return value

    @property
    def shape(self) -> dict[str, Any] | None:
        """The configuration of the model that is counted; none where it is the run's own."""
        return dict(SHAPES[self.as_model]) if isinstance(self.as_model, str) else self.as_model

    @field_validator("custom")
    @classmethod
    def _new_names(cls, value: dict[str, Mode]) -> dict[str, Mode]:
        if taken := sorted(value.keys() & PROFILES.keys()):
            raise SettingError(
                f"{', '.join(taken)} is a device that there is already; choose another name", "duplicate"
            )
        return value

    @field_validator("profiles")
    @classmethod
    def _known_profiles(cls, value: str | dict[str, float], info: ValidationInfo) -> Any:
        if not value:
            raise SettingError(
                "must name a device, or devices with the shares of the clients that have them", "missing"
            )
        if "custom" not in info.data:  # wrong itself, and said so
            return value
        known = [*PROFILES, *info.data["custom"]]
        unknown = [name for name in ([value] if isinstance(value, str) else value) if name not in known]
        if unknown:
            raise SettingError(
                f"each must be one of {', '.join(known)}, or be defined in devices.custom; there is no "
                f"{' and no '.join(map(repr, unknown))}",
                "unknown_name",
            )
        return value

    @field_validator("mode")
    @classmethod
    def _known_modes(cls, value: str | dict[str, str], info: ValidationInfo) -> Any:
        profiles = info.data.get("profiles", {})  # empty where they are wrong themselves, and said to be
        used = {name for name in ([profiles] if isinstance(profiles, str) else profiles) if name in PROFILES}
        if isinstance(value, dict):
            problems = [_no_mode(name, mode) for name, mode in value.items() if name in used]
            idle = [repr(name) for name in value if profiles and name not in used]
            what = f"devices.profiles has {', '.join(sorted(used)) or 'none'} of those that have modes"
            problems += [SettingError(f"{what}, not {' and not '.join(idle)}", "no_effect")] if idle else []
        elif used or value == DRAWN:
            problems = [_no_mode(name, value) for name in sorted(used)]
        else:
            known = any(value in modes for modes in PROFILES.values())
            problems = [] if known else [SettingError(f"{value!r} is no mode of any device", "unknown_name")]
        if problems := [problem for problem in problems if problem]:
            raise SettingErrors(problems)
        return value

    @property
    def shares(self) -> dict[str, float]:
        """The weight of each profile among the clients."""
        return {self.profiles: 1.0} if isinstance(self.profiles, str) else dict(self.profiles)

    def modes_of(self, profile: str) -> dict[str, Mode]:
        """Returns the modes that a device may work in: all of them, or the one that was asked for."""
        if profile in self.custom:
            return {ONLY_MODE: self.custom[profile]}
        wanted = self.mode if isinstance(self.mode, str) else self.mode.get(profile, DRAWN)
        modes = PROFILES[profile]
        return dict(modes) if wanted == DRAWN else {wanted: modes[wanted]}

    @property
    def bandwidths(self) -> tuple[float, float]:
        """The lowest and the highest bandwidth, megabits a second; equal where it is fixed."""
        if isinstance(self.bandwidth, BandwidthSettings):
            return self.bandwidth.low, self.bandwidth.high
        return self.bandwidth, self.bandwidth


def _no_mode(profile: str, mode: str) -> SettingError | None:
    """Says that a device has no such mode; nothing if it has."""
    if mode in {*PROFILES[profile], DRAWN}:
        return None
    message = f"{mode!r} is no mode of {profile}, which has {', '.join(PROFILES[profile])} or {DRAWN}"
    return SettingError(message, "unknown_name")
