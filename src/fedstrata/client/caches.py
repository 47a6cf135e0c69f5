"""Where the clients of a run keep the output of their frozen blocks, and how much of the disk that may take.

With `training.cache: auto` states are stored wherever a later epoch or round can use them. Neither the
number of rounds nor the share of the clients sampled matters: a run can be given more rounds later and must
then come to the numbers of one that had them from the start. Filling costs about what an epoch without costs.
"""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedstrata.client.store import client_folder
from fedstrata.core.files import half_written, reserve, taking_turns
from fedstrata.core.settings.run import RunSettings
from fedstrata.models.prefix_cache import FILE, Identity, PrefixCache
from fedstrata.record.log import Listener

_FREE_SHARE = 0.9  # of the free disk that a new file may take
_LOCK = ".prefix.lock"


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
            folder,
            training,
            self._reserve,
            lambda facts: self.tell({"client": client, **facts}),
            self._whole,
        )

    def remove(self, client: str | None = None) -> None:
        """Deletes stored states: nothing needs them once a run is finished, and they may be large.

        Args:
            client: Whose, where others that compute here are processes of their own; everybody's if none.
        """
        if client is not None:
            (client_folder(self._run, client) / FILE).unlink(missing_ok=True)
            return
        (self._run / _LOCK).unlink(missing_ok=True)
        for path in list(self._run.glob(f"clients/*/{FILE}")):
            path.unlink()
            for folder in (path.parent, path.parent.parent):
                if not any(folder.iterdir()):
                    folder.rmdir()

    def _reserve(self, path: Path, needed: int) -> str | None:
        """Makes room for a client's new file; returns the reason if there is not so much.

        Processes that compute at once do so one after the other, and what each is writing counts in full.
        """
        with taking_turns(self._run / _LOCK):
            for old in (path, *half_written(path)):  # a process that was killed leaves the latter
                old.unlink(missing_ok=True)
            left, limit = self._budget()
            if needed > left:
                return f"{needed / 1e9:.3g} GB are needed, and {limit} leaves {max(0, left) / 1e9:.3g} GB"
            reserve(path, needed)
        return None

    def _budget(self) -> tuple[int, str]:
        """Returns how many bytes one more file may have, and what sets that limit."""
        taken = missing = 0
        for folder in self._run.glob("clients/*"):
            # In this order: a file that is complete meanwhile is then found under its name.
            found = [_size(path) for path in (*half_written(folder / FILE), folder / FILE)]
            taken += max(size for size, _ in found)
            missing += sum(size - written for size, written in found if written < size)
        gigabytes = self._settings.training.cache_gigabytes
        allowed = int(gigabytes * 1e9) - taken
        free = int(_FREE_SHARE * (shutil.disk_usage(self._run).free - missing))
        if allowed <= free:
            return allowed, f"training.cache_gigabytes ({gigabytes:g})"
        return free, f"{_FREE_SHARE:.0%} of the free disk"

    def tell(self, facts: Mapping[str, Any]) -> None:
        """Passes on what was stored of a client, and what was not once."""
        about = (facts["client"], str(facts["reason"]))
        if facts["used"] or about not in self._told:
            self._told.add(about)
            self._emit("cache", facts)


def _size(path: Path) -> tuple[int, int]:
    """Returns the bytes of a file, and how many of them are on the disk; none if it is not there any more."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return 0, 0
    return found.st_size, found.st_blocks * 512
