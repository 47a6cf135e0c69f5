"""Identities of simulated clients, each with a lock of its own: made once for a run, in its directory.

In a federation each site makes its identity and writes its lock itself, after comparing fingerprints. Here
there is nobody else, so that whoever reads the run directory can be every site: a simulation shows what the
protocol does and costs, and protects nobody.
"""

import hashlib
from collections.abc import Sequence
from pathlib import Path

from fedstrata.client.store import client_folder
from fedstrata.core.files import private_folder
from fedstrata.privacy.federation_lock import write_lock
from fedstrata.privacy.identity import Identity


def files_of(run: Path, client: str) -> tuple[Path, Path]:
    """Returns where a simulated client has its identity, and where its lock."""
    folder = client_folder(run, client)
    return folder / "identity.pem", folder / "federation.lock"


def simulated_identities(run: Path, clients: Sequence[str]) -> str:
    """Makes what is not there yet of the clients' identities and locks.

    Args:
        run: The run directory.
        clients: All clients that train.

    Returns:
        An id of the run that no other one has, which its sums are named by.
    """
    publics = {}
    for client in clients:
        path, _ = files_of(run, client)
        private_folder(path.parent)
        publics[client] = (Identity.read(path) if path.exists() else Identity.create(path)).public
    for client in clients:
        _, path = files_of(run, client)
        if not path.exists():
            write_lock(path, publics)
    return hashlib.sha256(b"".join(sorted(publics.values()))).hexdigest()[:16]
