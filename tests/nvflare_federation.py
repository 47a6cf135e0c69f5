"""A federation of NVFlare's on loopback, of real processes: started, killed, started again."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
from nvflare_kits import SERVER, NVFlareKits
from remote_run import CLIENTS
from support import REPOSITORY, TINY, Finished, finished

from fedstrata.cli.main import app
from fedstrata.core.settings.source import read_source


class NVFlareFederation(NVFlareKits):
    """A server, its clients and an administrator."""

    def __init__(self, folder: Path, clients: Sequence[str]) -> None:
        super().__init__(folder, clients)
        self._started: dict[str, subprocess.Popen[bytes]] = {}
        self._supervisors: list[subprocess.Popen[str]] = []
        path = os.pathsep.join([str(REPOSITORY / "src"), os.environ.get("PYTHONPATH", "")])
        self.environment = {**os.environ, **self.environment, "PYTHONPATH": path}

    def start(self, *names: str) -> None:
        """Starts the processes of some, or of all."""
        for name in names or (SERVER, *self.clients):
            with (self.kit(name) / "out.txt").open("ab") as out:
                self._started[name] = subprocess.Popen(
                    [sys.executable, *self.command(name)],
                    cwd=self.kit(name),
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
        """Runs a tiny federation from its first round to its summary; raises where it does not get there."""
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
        if values.get("privacy", {}).get("noise") == "seeded":  # which no site takes from a server alone
            own["privacy"] = {"noise": "seeded"}
        (folder / "site.yaml").write_text(json.dumps(own))  # which is YAML too
        (folder / "run.yaml").write_text(json.dumps({**values, "data": own["data"]}))
        for client in self.clients:
            home = folder / f"home of {client}"
            files = {"identity": home / "identity.pem", "lock": home / "federation.lock"}
            given = {name: str(path) for name, path in files.items() if path.exists()}
            self.site(client, configuration=str(folder / "site.yaml"), home=str(home), **given)
        return self.serve(folder / "run.yaml", folder / "run")


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
