"""Where the clients of a run keep the output of their frozen blocks, and how much of the disk that may take.

With `training.cache: auto` states are stored wherever a later epoch or round can use them. Neither the
number of rounds nor the share of the clients sampled matters: a run can be given more rounds later and must
then come to the numbers of one that had them from the start. Filling costs about what an epoch without costs.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedstrata.client.store import client_folder
from fedstrata.models.prefix_cache import FILE, Identity, PrefixCache

if TYPE_CHECKING:
    from fedstrata.core.settings.run import RunSettings
    from fedstrata.record.log import Listener

_FREE_SHARE = 0.9  # of the free disk that a new file may take
_PATTERN = f"clients/*/{FILE}"


class ClientCaches:
    """The stored states of all clients of a run.

    Args:
        run: The run directory.
        settings: The run's settings.
        emit: Told `cache` when a client's states were stored, and once for each reason why they were not.
    """

    def __init__(self, run: Path, settings: RunSettings, emit: Listener) -> None:
        self._run, self._settings, self._emit = run, settings, emit
        self._told: set[tuple[str, str]] = set()
        self._whole: set[Identity] = set()

    def of(self, client: str) -> PrefixCache | None:
        """Returns a client's cache; none if the settings turn it off."""
        training = self._settings.training
        if training.cache == "off":
            return None
        folder = client_folder(self._run, client)
        return PrefixCache(
            folder, training, self._budget, lambda facts: self._tell({"client": client, **facts}), self._whole
        )

    def remove(self) -> None:
        """Deletes all stored states: nothing needs them once a run is finished, and they may be large."""
        for path in list(self._run.glob(_PATTERN)):
            path.unlink()
            for folder in (path.parent, path.parent.parent):
                if not any(folder.iterdir()):
                    folder.rmdir()

    def _budget(self) -> tuple[int, str]:
        """Returns how many bytes one more file may have, and what sets that limit."""
        gigabytes = self._settings.training.cache_gigabytes
        taken = sum(path.stat().st_size for path in self._run.glob(_PATTERN))
        allowed = int(gigabytes * 1e9) - taken
        free = int(_FREE_SHARE * shutil.disk_usage(self._run).free)
        if allowed <= free:
            return allowed, f"training.cache_gigabytes ({gigabytes:g})"
        return free, f"{_FREE_SHARE:.0%} of the free disk"

    def _tell(self, facts: Mapping[str, Any]) -> None:
        """Passes on what was stored, and what was not once."""
        about = (facts["client"], str(facts["reason"]))
        if facts["used"] or about not in self._told:
            self._told.add(about)
            self._emit("cache", facts)
