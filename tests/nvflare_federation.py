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
from remote_run import CLIENTS
from support import REPOSITORY, TINY, Finished, finished

from fedstrata.cli.main import app
from fedstrata.core.settings.source import read_source
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
        self._supervisors: list[subprocess.Popen[str]] = []
        path = os.pathsep.join([str(REPOSITORY / "src"), os.environ.get("PYTHONPATH", "")])
        self.environment = {
            **os.environ,
            "HOME": str(folder),  # where NVFlare's commands write
            "MPLCONFIGDIR": str(Path.home() / ".cache" / "matplotlib"),
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
        for supervisor in self._supervisors:
            supervisor.kill()
            supervisor.wait()
        for process in self._started.values():
            with suppress(psutil.NoSuchProcess):
                for child in psutil.Process(process.pid).children(recursive=True):
                    child.kill()
            process.kill()
            process.wait()

    def run(self, folder: Path, *overrides: str) -> Finished:
        """Runs a tiny federation from its first round to its summary; raises where it does not get there.

        Args:
            folder: Of the run, and of what clients keep; with secure aggregation their identities lie there.
            overrides: The settings, of which the sites say what is theirs.
        """
        app(self._prepared(folder, *overrides), prog_name="fedstrata", standalone_mode=False)
        return ended(folder)

    def begin(self, folder: Path, *overrides: str, options: Sequence[str] = ()) -> subprocess.Popen[str]:
        """Begins as `run` does, with a supervisor that is a process of its own, and returns that."""
        process = subprocess.Popen(
            [sys.executable, "-m", "fedstrata", *self._prepared(folder, *overrides), *options],
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._supervisors.append(process)
        return process

    def _prepared(self, folder: Path, *overrides: str) -> list[str]:
        """Returns the arguments of a server whose sites are prepared for what it serves."""
        folder.mkdir(parents=True, exist_ok=True)
        values = read_source(None, [*TINY, *overrides]).values
        own = {name: values.pop(name) for name in ("data", "partition") if name in values}
        (folder / "site.yaml").write_text(json.dumps(own))  # which is YAML too
        (folder / "run.yaml").write_text(json.dumps({**values, "data": own["data"]}))
        for client in self.clients:
            home = folder / f"home of {client}"
            files = {"identity": home / "identity.pem", "lock": home / "federation.lock"}
            given = {name: str(path) for name, path in files.items() if path.exists()}
            self.site(client, configuration=str(folder / "site.yaml"), home=str(home), **given)
        serve = ["serve", str(folder / "run.yaml"), "--out", str(folder / "run")]
        return [
            *serve,
            "--on",
            "nvflare",
            "--admin",
            str(self.kit(ADMIN)),
            "--clients",
            ",".join(self.clients),
        ]

    def site(self, client: str, **settings: Any) -> None:
        """Writes what a site says of itself in its kit."""
        (self.kit(client) / "local" / "fedstrata.yaml").write_text(json.dumps(settings))


def ended(folder: Path) -> Finished:
    """Returns what a run left that has come to its end."""
    return finished(folder / "run", json.loads((folder / "run" / "summary.json").read_text()))


@contextmanager
def nvflare_federation(folder: Path, clients: Sequence[str] = CLIENTS) -> Iterator[NVFlareFederation]:
    """Gives a federation that is up, and ends it."""
    federation = NVFlareFederation(folder, clients)
    try:
        federation.start()
        yield federation
    finally:
        federation.stop()
