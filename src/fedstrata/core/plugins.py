"""What a configuration may name: ours, an installed package's (entry points), or `package.module:Class`.

A reference is imported only where whoever runs this process has written it, or has installed it: what another
machine says is held against that first (`engine.remote.shared_settings`).
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property, reduce
from importlib import import_module, invalidate_caches
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from pydantic import BaseModel

from fedstrata.core.errors import ConfigurationError, SettingError, did_you_mean, refused

Plugin = TypeVar("Plugin")

_REFERENCE = re.compile(r"[^\W\d][\w.]*:[^\W\d][\w.<>]*")
MAIN = "__main__"


def is_reference(name: str) -> bool:
    """Whether a name is of the form `package.module:Class`."""
    return _REFERENCE.fullmatch(name) is not None


def reference_of(plugin: Any) -> str:
    """Returns the reference by which a class or a function would be imported."""
    return f"{plugin.__module__}:{plugin.__qualname__}"


class Plugins(Mapping[str, Plugin]):
    """All of a kind, by name; as a mapping those of ours and of installed packages that can be imported.

    Args:
        group: The group of entry points, `fedstrata.methods` for example.
        own: Those of fedstrata.
        kind: What one is, in words that follow "is no".
        is_one: Whether an object is one.

    Attributes:
        group: As given.
        own: As given; what is documented and listed by name goes by these alone.
        searches_here: Whether references are also searched for in the working folder (`search_here`).
    """

    searches_here: ClassVar[bool] = True

    def __init__(
        self, group: str, own: Mapping[str, Plugin], *, kind: str, is_one: Callable[[Any], bool]
    ) -> None:
        self.group, self.own, self._kind, self._is_one = group, own, kind, is_one
        self._here: dict[str, Plugin] = {}  # given as objects, which this process alone has
        self._loaded: dict[str, Plugin] = {}

    @cached_property
    def installed(self) -> Mapping[str, EntryPoint]:
        """The entry points of installed packages; a name of ours stays ours."""
        found = {point.name: point for point in entry_points(group=self.group)}
        return {name: point for name, point in found.items() if name not in self.own}

    def __iter__(self) -> Iterator[str]:
        yield from self.own
        yield from (name for name in self.installed if self.why_not(name) is None)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __getitem__(self, name: str) -> Plugin:
        try:
            return self.find(name, "")
        except ConfigurationError:
            raise KeyError(name) from None

    def is_own(self, name: object) -> bool:
        """Whether a name is one of ours."""
        return isinstance(name, str) and name in self.own

    def find(self, name: object, setting: str) -> Plugin:
        """Returns what a name stands for; a reference is imported.

        Args:
            name: A name of ours, of an entry point, or a reference.
            setting: The setting that it is the value of, for messages.

        Raises:
            ConfigurationError: It stands for nothing, or for something else; or it cannot be imported.
        """
        if isinstance(name, str):
            if name in self.own:
                return self.own[name]
            if name in self._here:
                return self._here[name]
            if name in self.installed or is_reference(name):
                if (wrong := self._wrong(name)) is not None:
                    raise refused(setting, str(wrong), wrong.code)
                return self._loaded[name]
        allowed = ", ".join([*self.own, *self.installed])
        hint = did_you_mean(name, [*self.own, *self.installed], before="; ") if isinstance(name, str) else ""
        given = "null" if name is None else repr(name)
        choice = f"one of {allowed}, or " if allowed else ""
        message = f"must be {choice}package.module:Class, not {given}{hint}"
        raise refused(setting, message, "unknown_name")

    def make(self, section: Mapping[str, Any], setting: str) -> Any:
        """Returns the object that a section describes, of a class by its `name`.

        Raises:
            ConfigurationError: See `find`.
            pydantic.ValidationError: A value does not fit.
        """
        kind: Any = self.find(section.get("name"), f"{setting}.name")
        return kind.model_validate(self.values_of(section))

    def why_not(self, name: str) -> str | None:
        """Returns why an entry point or a reference cannot be used; none if it can."""
        wrong = self._wrong(name)
        return None if wrong is None else str(wrong)

    def _wrong(self, name: str) -> SettingError | None:
        if name in self._loaded:
            return None
        reference = self.installed[name].value if name in self.installed else name
        try:
            found = _imported(reference)
        except Exception as error:  # whatever a stranger's module raises
            return SettingError(f"{name!r} cannot be imported: {_reason(error, reference)}", "not_importable")
        if not self._is_one(found):
            return SettingError(f"{name!r} is no {self._kind}", "wrong_type")
        self._loaded[name] = found
        return None

    def origin(self, name: str) -> str:
        """Returns where something comes from, in words."""
        if name in self.own:
            return "fedstrata"
        if (point := self.installed.get(name)) is not None:
            package = point.dist
            return f"{package.name} {package.version}" if package is not None else point.value
        return name.partition(":")[0]

    def name_of(self, plugin: Any) -> str:
        """Returns the name of a class or function that was given as an object.

        What no name can be imported by is kept for this process, under the reference that it would have.
        """
        for name, own in self.own.items():
            if own is plugin:
                return name
        reference = reference_of(plugin)
        for name, point in self.installed.items():
            if point.value == reference:
                return name
        if _is_importable(plugin):
            return reference
        if "<" in reference:  # a function may make several, where a cell that is run again makes one anew
            alike = [name for name in self._here if name.partition("#")[0] == reference]
            if known := next((name for name in alike if self._here[name] is plugin), None):
                return known
            reference += f"#{len(alike) + 1}" if alike else ""
        self._here[reference] = plugin
        return reference

    def section_of(self, settings: BaseModel) -> dict[str, Any]:
        """Returns the section of a configuration that describes an object of one of these classes."""
        return {"name": self.name_of(type(settings)), **settings.model_dump(exclude={"name"})}

    def values_of(self, section: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the values of a section by which its object is made: only our own know their name."""
        own = self.is_own(section.get("name"))
        return {key: value for key, value in section.items() if own or key != "name"}

    def why_only_here(self, name: object) -> str:
        """Returns why no other process can import something, and the way out; empty if one can."""
        if not isinstance(name, str) or (name not in self._here and not name.startswith(f"{MAIN}:")):
            return ""
        where = "a notebook or a script" if name.startswith(f"{MAIN}:") else "a function"
        way = "put it into a module of its own, a .py file, and import it from there"
        return f"{name} is defined in {where}, where no other process can import it; {way}"


def search_here(allowed: bool) -> None:
    """Sets whether references are also searched for in the working folder, after all other places.

    Args:
        allowed: Whether they are. If not, no import of this process finds anything in that folder.
    """
    Plugins.searches_here = allowed
    if not allowed:
        sys.path[:] = [place for place in sys.path if place and Path(place).resolve() != Path.cwd().resolve()]


def _imported(reference: str) -> Any:
    """Imports what a reference names; modules of the working folder are found too, after all others."""
    module, _, path = reference.partition(":")
    if Plugins.searches_here and (folder := str(Path.cwd())) not in sys.path:
        sys.path.append(folder)
    invalidate_caches()  # a module may have been written since its folder was last read
    return reduce(getattr, path.split("."), import_module(module))


def _is_importable(plugin: Any) -> bool:
    """Whether another process that imports the reference of an object gets the same one."""
    if plugin.__module__ == MAIN:
        return False
    try:
        return _imported(reference_of(plugin)) is plugin
    except Exception:
        return False


def _reason(error: Exception, reference: str) -> str:
    module = reference.partition(":")[0]
    if isinstance(error, ModuleNotFoundError) and error.name and f"{module}.".startswith(f"{error.name}."):
        return f"there is no module {error.name!r} in {sys.prefix} or in {Path.cwd()}"
    return f"{type(error).__name__}: {error}"
