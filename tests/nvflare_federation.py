"""A federation of NVFlare's on loopback, of real processes: provisioned, started, killed, started again."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
from support import REPOSITORY

from fedstrata.nvflare.kit import prepare_kit

SERVER, ADMIN = "localhost", "lead@hub.org"
_PROJECT = "federation"
_BUILDERS = (
    ("workspace.WorkspaceBuilder", {"template_file": ["master_template.yml"]}),
    ("static_file.StaticFileBuilder", {"config_folder": "config", "scheme": "grpc"}),
    ("cert.CertBuilder", {}),
    ("signature.SignatureBuilder", {}),
)


class NVFlareFederation:
    """A server, its clients and an administrator.

    Args:
        folder: Where all of it lies.
        clients: The names of the clients.
    """

    def __init__(self, folder: Path, clients: Sequence[str]) -> None:
        self._folder, self.clients = folder, tuple(clients)
        self._kits = folder / "provisioned" / _PROJECT / "prod_00"
        self._started: dict[str, subprocess.Popen[bytes]] = {}
        path = os.pathsep.join([str(REPOSITORY / "src"), os.environ.get("PYTHONPATH", "")])
        self.environment = {
            **os.environ,
            "HOME": str(folder),  # where NVFlare's commands write
            "PYTHONPATH": path,
            "OMP_NUM_THREADS": "1",
            "TOKENIZERS_PARALLELISM": "false",
        }
        self._provision()

    def kit(self, name: str) -> Path:
        """Returns somebody's startup kit."""
        return self._kits / name

    def _provision(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as found:
            port = found.getsockname()[1]
        people = [
            {"name": SERVER, "type": "server", "org": "hub", "fed_learn_port": port},
            *({"name": name, "type": "client", "org": "site"} for name in self.clients),
            {"name": ADMIN, "type": "admin", "org": "hub", "role": "project_admin"},
        ]
        builders = [{"path": f"nvflare.lighter.impl.{name}", "args": more} for name, more in _BUILDERS]
        project = {"api_version": 3, "name": _PROJECT, "participants": people, "builders": builders}
        self._folder.mkdir(parents=True, exist_ok=True)
        file = self._folder / "project.yml"
        file.write_text(json.dumps(project))  # which is YAML too
        command = ["-m", "nvflare.cli", "provision", "-p", str(file), "-w", str(self._folder / "provisioned")]
        subprocess.run([sys.executable, *command], env=self.environment, check=True, capture_output=True)
        for name in (SERVER, *self.clients):
            prepare_kit(self.kit(name))

    def start(self, *names: str) -> None:
        """Starts the processes of some, or of all, as `sub_start.sh` of their kits does."""
        for name in names or (SERVER, *self.clients):
            kit, side = self.kit(name), "server" if name == SERVER else "client"
            said = ["secure_train=true", "config_folder=config", "org=hub" if name == SERVER else "org=site"]
            said += [] if name == SERVER else [f"uid={name}"]
            module = f"nvflare.private.fed.app.{side}.{side}_train"
            command = ["-u", "-m", module, "-m", str(kit), "-s", f"fed_{side}.json", "--set", *said]
            with (kit / "out.txt").open("ab") as out:
                self._started[name] = subprocess.Popen(
                    [sys.executable, *command],
                    cwd=kit,
                    env=self.environment,
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=subprocess.STDOUT,
                )

    def jobs(self, name: str) -> list[psutil.Process]:
        """Returns the processes of jobs at somebody's."""
        children = psutil.Process(self._started[name].pid).children(recursive=True)
        return [child for child in children if "-n" in child.cmdline()]

    def kill_job(self, name: str) -> None:
        """Kills the process of the job at somebody's, as a lack of memory would."""
        (process,) = self.jobs(name)
        process.kill()

    def kill(self, name: str) -> None:
        """Kills somebody's NVFlare, and not its jobs."""
        self._started[name].kill()
        self._started[name].wait()

    def stop(self) -> None:
        """Ends all processes."""
        for process in self._started.values():
            with suppress(psutil.NoSuchProcess):
                for child in psutil.Process(process.pid).children(recursive=True):
                    child.kill()
            process.kill()
            process.wait()

    def site(self, client: str, **settings: Any) -> None:
        """Writes what a site says of itself in its kit."""
        (self.kit(client) / "local" / "fedstrata.yaml").write_text(json.dumps(settings))

    def serve(self, out: Path, *arguments: str) -> subprocess.Popen[str]:
        """Starts `fedstrata serve --on nvflare`."""
        command = [sys.executable, "-m", "fedstrata", "serve", *arguments, "--on", "nvflare"]
        command += ["--admin", str(self.kit(ADMIN)), "--clients", ",".join(self.clients), "--out", str(out)]
        return subprocess.Popen(
            command, env=self.environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )


@contextmanager
def nvflare_federation(folder: Path, clients: Sequence[str]) -> Iterator[NVFlareFederation]:
    """Gives a federation that is up, and ends it."""
    federation = NVFlareFederation(folder, clients)
    try:
        federation.start()
        yield federation
    finally:
        federation.stop()
