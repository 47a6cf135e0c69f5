"""What sites know of each other's ledgers: the heads that came, signed, with the keys of each secure sum.

A ledger whose tail was cut off is whole by itself. Each site's keys for a sum say what the last line of its
ledger was, and every other site gets them in the roster; so whoever cuts a ledger is found by what the others
have kept.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from pydantic import ValidationError

from fedstrata.core.errors import printable, refused
from fedstrata.privacy.federation_lock import Lock
from fedstrata.privacy.identity import is_signed
from fedstrata.privacy.ledger_verification import NOTHING
from fedstrata.privacy.secure_sum.messages import KeyBundle
from fedstrata.privacy.secure_sum.transcript import signed_keys
from fedstrata.record.log import RecordLog, read_events

WITNESSED = "witnessed.jsonl"
"""A file in a client's folder: the keys of the others in each sum, as they were signed."""


def witness(folder: Path, bundles: Iterable[KeyBundle]) -> None:
    """Keeps what others have signed.

    Args:
        folder: Of the client that keeps it.
        bundles: Their keys for a sum, whose signatures were checked.

    Raises:
        ConfigurationError: Another process writes to the file.
    """
    log = RecordLog(folder / WITNESSED)
    try:
        for bundle in bundles:
            log.append("witnessed", {"keys": bundle.model_dump(mode="json")})
    finally:
        log.close()


def heads_witnessed(path: Path, client: str, run: str | None, lock: Lock) -> dict[str, str]:
    """Returns the heads of a client's ledger that a site has kept.

    Args:
        path: What the site has kept.
        client: Whose ledger it is about.
        run: The id of its run; none of a simulation, whose identities are of one run alone.
        lock: The identities that whoever asks knows.

    Returns:
        By head the sum that it came with, in words.

    Raises:
        ConfigurationError: The file cannot be read or holds nothing of the client in the run, the lock does
            not have the client, the client has not signed what stands there or has signed after its first
            sum that it has no ledger, or no head of it is known.
    """
    if client not in lock:
        raise refused("--lock", f"does not name client {printable(client)!r}", "unknown_name")
    if not path.is_file():
        raise refused("--witnessed", f"there is no file {path}", "not_found")
    found: dict[str, str] = {}
    bundles = 0
    for number, event in enumerate(read_events(path), start=1):
        try:
            bundle = KeyBundle.model_validate(event.get("keys"))
        except ValidationError:
            message = f"{path}: entry {number} is not what a site signs with its keys for a sum"
            raise refused("--witnessed", message, "damaged") from None
        if bundle.site != client:
            continue
        if not is_signed(lock[client], bytes.fromhex(bundle.signature), signed_keys(bundle)):
            message = f"{path}: entry {number} was not signed by the identity of {client!r} in the lock"
            raise refused("--witnessed", message, "not_signed")
        if run not in {None, bundle.sum.run}:
            continue  # one identity serves many runs, each with a ledger of its own
        if bundle.ledger_head != NOTHING:
            found.setdefault(bundle.ledger_head, str(bundle.sum))
        elif bundles:
            message = (
                f"{path}: entry {number}: {client!r} has signed that it has no ledger, after its first sum"
            )
            raise refused("--witnessed", message, "conflict")
        bundles += 1
    if not bundles:
        signed = f"nothing that {printable(client)!r} has signed" + (
            f" in run {printable(run)}" if run else ""
        )
        message = f"{path} holds {signed}; take that of another site of the same run"
        raise refused("--witnessed", message, "not_found")
    if not found:
        message = (
            f"{path} holds no head of the ledger of {client!r}: it was in one sum, before its first line"
        )
        raise refused("--witnessed", message, "no_head")
    return found
