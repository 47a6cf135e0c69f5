"""Makes an NVFlare startup kit ready: what jobs may start, that it is started again, what stays private."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from fedstrata.core.errors import refused
from fedstrata.core.files import write_atomically

_ALLOWED = {
    "server": "fedstrata.nvflare.controller.ServeController",
    "client": "fedstrata.nvflare.executor.JoinExecutor",
}
_LAUNCHERS = {
    "server": "fedstrata.nvflare.launchers.ServerLauncher",
    "client": "fedstrata.nvflare.launchers.ClientLauncher",
}
STORED = ("jobs", "snapshots")
"""The folders, in a server's kit, of what NVFlare keeps, by default where everybody may look."""


def prepare_kit(kit: Path) -> Path:
    """Writes `local/resources.json` of the kit of a server or of a client; what it says besides stays.

    Args:
        kit: The kit.

    Returns:
        The file.

    Raises:
        ConfigurationError: It is no such kit.
    """
    role = next((role for role in _ALLOWED if (kit / "startup" / f"fed_{role}.json").is_file()), None)
    places = [kit / "local" / name for name in ("resources.json", "resources.json.default")]
    found = next((place for place in places if place.is_file()), None)
    if role is None or found is None:
        message = f"{kit} is no startup kit of an NVFlare server or client"
        raise refused("", message, "wrong_kit")
    resources: dict[str, Any] = json.loads(found.read_bytes())
    allowed = resources.setdefault("class_allow_list", [])
    allowed += {_ALLOWED[role], _LAUNCHERS[role]}.difference(allowed)
    resources["allow_log_streaming"] = False
    for component in resources["components"]:
        if component["id"] == "process_launcher":
            component["path"] = _LAUNCHERS[role]
        if component["id"] == "job_manager":
            component["args"]["uri_root"] = _private(kit, STORED[0])
    if "snapshot_persistor" in resources:
        storage = resources["snapshot_persistor"]["args"]["storage"]
        storage["args"]["root_dir"] = _private(kit, STORED[1])
    write_atomically(places[0], [json.dumps(resources, indent=2).encode()])
    return places[0]


def _private(kit: Path, name: str) -> str:
    """Returns a folder of a kit that nobody else may look into."""
    folder = kit.absolute() / name
    folder.mkdir(mode=0o700, exist_ok=True)
    folder.chmod(0o700)
    return str(folder)
