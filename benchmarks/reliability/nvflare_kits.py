"""Startup kits of a federation of NVFlare's on loopback, and what starts each of its processes."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedstrata.nvflare.kit import prepare_kit

SERVER, ADMIN = "localhost", "lead@hub.org"
_PROJECT = "federation"
_BUILDERS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("workspace.WorkspaceBuilder", {"template_file": ["master_template.yml"]}),
    ("static_file.StaticFileBuilder", {"config_folder": "config", "scheme": "grpc"}),
    ("cert.CertBuilder", {}),
    ("signature.SignatureBuilder", {}),
)


class NVFlareKits:
    """The kits of a server, its clients and an administrator, provisioned and ready for runs of fedstrata.

    Args:
        folder: Where all of it lies.
        clients: The names of the clients.

    Attributes:
        clients: The names of the clients.
        environment: What each of the processes needs of the environment.
    """

    def __init__(self, folder: Path, clients: Sequence[str]) -> None:
        self.clients = tuple(clients)
        self._kits = folder / "provisioned" / _PROJECT / "prod_00"
        self.environment = {
            "HOME": str(folder),  # where NVFlare's commands write
            "MPLCONFIGDIR": str(Path.home() / ".cache" / "matplotlib"),
            "OMP_NUM_THREADS": "1",
            "TOKENIZERS_PARALLELISM": "false",
        }
        self._provision(folder)

    def _provision(self, folder: Path) -> None:
        with socket.create_server(("127.0.0.1", 0)) as found:
            port = found.getsockname()[1]
        people = [
            {"name": SERVER, "type": "server", "org": "hub", "fed_learn_port": port},
            *({"name": name, "type": "client", "org": "site"} for name in self.clients),
            {"name": ADMIN, "type": "admin", "org": "hub", "role": "project_admin"},
        ]
        builders = [{"path": f"nvflare.lighter.impl.{name}", "args": more} for name, more in _BUILDERS]
        project = {"api_version": 3, "name": _PROJECT, "participants": people, "builders": builders}
        folder.mkdir(parents=True, exist_ok=True)
        file = folder / "project.yml"
        file.write_text(json.dumps(project))  # which is YAML too
        command = ["-m", "nvflare.cli", "provision", "-p", str(file), "-w", str(folder / "provisioned")]
        environment = {**os.environ, **self.environment}
        subprocess.run([sys.executable, *command], env=environment, check=True, capture_output=True)
        for name in (SERVER, *self.clients):
            prepare_kit(self.kit(name))

    def kit(self, name: str) -> Path:
        """Returns somebody's startup kit."""
        return self._kits / name

    def command(self, name: str) -> list[str]:
        """Returns the arguments of Python that start somebody, as `sub_start.sh` of the kit has them."""
        kit, side = self.kit(name), "server" if name == SERVER else "client"
        said = ["secure_train=true", "config_folder=config", "org=hub" if name == SERVER else "org=site"]
        said += [] if name == SERVER else [f"uid={name}"]
        module = f"nvflare.private.fed.app.{side}.{side}_train"
        return ["-u", "-m", module, "-m", str(kit), "-s", f"fed_{side}.json", "--set", *said]

    def serve(self, configuration: Path, run: Path) -> list[str]:
        """Returns the arguments of `fedstrata` that have a run served."""
        admin, clients = str(self.kit(ADMIN)), ",".join(self.clients)
        options = ["--out", str(run), "--on", "nvflare", "--admin", admin, "--clients", clients]
        return ["serve", str(configuration), *options]

    def site(self, client: str, **settings: Any) -> None:
        """Writes what a site says of itself in its kit."""
        (self.kit(client) / "local" / "fedstrata.yaml").write_text(json.dumps(settings))
