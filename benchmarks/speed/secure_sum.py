"""What does secure aggregation cost a site, its server, and a simulation of many clients?

    python benchmarks/speed/secure_sum.py

One mean as one masked sum, with real keys, shares, signatures and files. Last line: one JSON object.

- `overhead_over_plain_round`: seconds that one site computes for it, alone, over `--training` seconds: keys,
  shares, the plan's hash, quantising and masking, the signature, releasing shares, reading and writing all
  messages, and recording on the disk what it has begun and released. The median of the repeats;
  `site_seconds` has it with the least, `site_steps` the medians of its steps (`disk` is part of the others).
- `mask_gigabytes_per_second`: of key stream that is made and added to numbers, one core.
- `extra_payloads`: memory at the site's peak beyond its update, the plan and the model's own, in payloads.
- `bytes_over_float32`: all that the site sends, over the bytes of its update.
- `server_steps`: seconds of the server, of whose sites one is lost before its input and one after it.
- `error`: the largest difference of the mean from that in float64; `declared_error` is what it may be.
- `round_over_plain`, `client_seconds`: a `fedstrata run` of a tiny model with `--clients` clients, over the
  same without secure aggregation, and what is more by client and round; `client_steps` and
  `small_server_steps` tell where it goes: the steps of above with that many sites and as few numbers.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from summing_sites import (
    RANGE,
    Clock,
    Federation,
    drawn,
    heard,
    ordered,
    shapes_of,
    terms_of,
    weight_of,
)
from torch import Tensor

from fedstrata.client.secure_turns import read_said
from fedstrata.core.types import Update
from fedstrata.privacy.identity import Identity
from fedstrata.privacy.secure_sum.client import SumClient
from fedstrata.privacy.secure_sum.masks import Mask, MaskStream
from fedstrata.privacy.secure_sum.mean import mean_from
from fedstrata.privacy.secure_sum.messages import (
    ConsistencyProof,
    ConsistencySignature,
    DeliveredShares,
    KeyBundle,
    MaskedInput,
    ReleasedShares,
    Roster,
    SentShares,
    Survivors,
)
from fedstrata.privacy.secure_sum.server import SumServer
from fedstrata.privacy.secure_sum.transcript import Subject, signed_consistency
from fedstrata.privacy.secure_sum.unmasking import SumUnmasking
from fedstrata.wire import frame

TINY_NUMBERS = 12_000
TINY = (
    "data.synthetic.sites={clients}",
    "data.synthetic.notes={notes}",
    "partition={{by: iid, clients: {clients}}}",
    "method={{name: fedavg}}",
    "model={{init: random, tokenizer: {{train: words, vocabulary: 500}}, config: {{model_type: bert, "
    "hidden_size: 16, num_hidden_layers: 1, num_attention_heads: 2, intermediate_size: 16, "
    "max_position_embeddings: 64}}}}",
    "task={{name: classify, max_length: 32, stride: 16}}",
    "federation={{rounds: {rounds}, evaluate_every: {rounds}}}",
)


def resident(field: str) -> int:
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return int(next(line for line in lines if line.startswith(field)).split()[1]) * 1024


def sum_at_site(
    federation: Federation, update: Mapping[str, Tensor], base: Mapping[str, Tensor]
) -> list[frame.Frame]:
    """Has the first site go through a mean; returns what it sends. Only its own work is on the clock."""
    clock, (own, *others) = federation.clock, federation.sites
    # No input is added here: a server without tensors takes no memory.
    empty = Subject(federation.subject.agreed, federation.subject.model, federation.subject.plan, {})
    server = SumServer(federation.terms.sum, empty)
    with clock("keys"):
        sent = [federation.keys(own)]
    disk = clock.seconds["disk"]
    bundles = heard([*sent, *map(federation.keys, others)], KeyBundle)
    clock.seconds["disk"] = disk  # without that of the others
    order = ordered(server.roster(bundles))
    with clock("shares"):
        sent.append(federation.answer(own, order, Roster, SumClient.shares))
    shares = [federation.answer(site, order, Roster, SumClient.shares) for site in others]
    order = ordered(server.deliver(heard([sent[-1], *shares], SentShares))[own])
    with clock("delivery"):
        sent.append(federation.answer(own, order, DeliveredShares, SumClient.receive))
    order = ordered(server.sharers(federation.sites))
    with clock("input"):
        sent.append(federation.masked(own, order, update, base))
    order = ordered(Survivors(sum=federation.terms.sum, sites=tuple(federation.sites)))
    with clock("consistency"):
        sent.append(federation.answer(own, order, Survivors, SumClient.sign))
    (signed,) = heard([sent[-1]], ConsistencySignature)
    order = ordered(proof_like(signed, federation.identities))
    with clock("unmasking"):
        sent.append(federation.answer(own, order, ConsistencyProof, SumClient.unmask))
    return sent


def proof_like(own: ConsistencySignature, identities: Mapping[str, Identity]) -> ConsistencyProof:
    """Returns the proof that all sites have signed what one of them has."""
    said = signed_consistency(own.sum, own.transcript)
    signatures = tuple(
        own.model_copy(update={"site": site, "signature": each.sign(said).hex()})
        for site, each in sorted(identities.items())
    )
    return ConsistencyProof(sum=own.sum, signatures=signatures)


def measure_site(sites: int, numbers: int, repeats: int) -> dict[str, Any]:
    """Measures one site, in this process alone."""
    base, update = drawn(shapes_of(numbers), 0), drawn(shapes_of(numbers), 1)
    steps: list[dict[str, float]] = []
    extra, sent = 0, 0
    for attempt in range(repeats):
        for name, tensor in base.items():  # the masked one has taken its place
            torch.mul(tensor, 1.01, out=update[name])
        with tempfile.TemporaryDirectory() as folder:
            clock = Clock()
            federation = Federation(sites, terms_of(base, sites, attempt), Path(folder), clock)
            Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")
            before = resident("VmRSS")
            sent = sum(each.nbytes for each in sum_at_site(federation, update, base))
            extra = max(extra, resident("VmHWM") - before)
        steps.append(clock.seconds)
    return {"steps": steps, "extra": extra / (4 * numbers), "sent": sent / (4 * numbers)}


def measure_server(sites: int, numbers: int, repeats: int) -> dict[str, Any]:
    """Measures the server, and how far the mean is from the plain one."""
    found = [sum_at_server(sites, numbers) for _ in range(repeats)]
    return {"steps": [steps for steps, _, _ in found], "error": found[0][1], "declared": found[0][2]}


def sum_at_server(sites: int, numbers: int) -> tuple[dict[str, float], float, float]:
    """Makes a mean without the last site, which is lost before its input, and the one before, lost after."""
    base, clock = drawn(shapes_of(numbers), 0), Clock()
    terms = terms_of(base, sites, 0)
    plain = {name: torch.zeros(each.shape, dtype=torch.float64) for name, each in base.items()}
    with tempfile.TemporaryDirectory() as folder:
        federation = Federation(sites, terms, Path(folder), Clock())
        unmasking = summed(federation, base, plain, clock, Path(folder))
        total = unmasked(federation, unmasking, clock)
        with clock("mean"):
            mean = mean_from(total, base, terms, tuple(federation.sites[:-1]), RANGE)
    weight = sum(weight_of(number) for number in range(sites - 1))
    found = mean.mean.tensors
    error = max(float((found[name] - each.div_(weight)).abs().max()) for name, each in plain.items())
    return clock.seconds, error, mean.error.largest


def summed(
    federation: Federation,
    base: Mapping[str, Tensor],
    plain: Mapping[str, Tensor],
    clock: Clock,
    folder: Path,
) -> SumUnmasking:
    """Returns the masked sum, and adds up in `plain` what it is of."""
    server, shapes = SumServer(federation.terms.sum, federation.subject), federation.subject.shapes
    bundles = [federation.keys(site) for site in federation.sites]
    with clock("roster"):
        order = ordered(server.roster(heard(bundles, KeyBundle)))
    shares = [federation.answer(site, order, Roster, SumClient.shares) for site in federation.sites]
    with clock("delivery"):
        said = heard(shares, SentShares)
        assert not server.unusable(said)  # noqa: S101 - the engine checks it, too
        boxes = server.deliver(said)
    for site in federation.sites:
        federation.answer(site, ordered(boxes[site]), DeliveredShares, SumClient.receive)
    agreed = ordered(server.sharers(federation.sites))
    for number, site in enumerate(federation.sites[:-1]):
        update = drawn(shapes_of(sum(each.numel() for each in base.values())), number + 1)
        for name, total in plain.items():
            total.add_(update[name], alpha=weight_of(number))
        sent = federation.masked(site, agreed, update, base)
        with clock("adding"):
            came = frame.decode(sent, Update)
            server.add(read_said(came.values, MaskedInput, came.tensors, shapes), came.tensors)
    with clock("storing the sum"):
        return server.close(folder / "sum")


def unmasked(federation: Federation, unmasking: SumUnmasking, clock: Clock) -> dict[str, Tensor]:
    """Returns the sum."""
    signers, order = federation.sites[:-2], ordered(unmasking.survivors)
    signed = [federation.answer(site, order, Survivors, SumClient.sign) for site in signers]
    with clock("storing signatures"):
        order = ordered(unmasking.prove(heard(signed, ConsistencySignature)))
    released = [federation.answer(site, order, ConsistencyProof, SumClient.unmask) for site in signers]
    with clock("storing shares"):
        for each in heard(released, ReleasedShares):
            unmasking.take(each)
    with clock("unmasking"):
        return unmasking.finish()


def mask_rate(masks: int, numbers: int = 1 << 22) -> float:
    """Returns gigabytes of key stream a second that one core makes and adds, at best of five tries."""
    elements, seconds = np.zeros(numbers, np.uint32), []
    for _ in range(5):
        stream = MaskStream([Mask(os.urandom(32), place % 2 == 0) for place in range(masks)])
        started = time.perf_counter()
        stream.add_to(elements)
        seconds.append(time.perf_counter() - started)
    return masks * elements.nbytes / min(seconds) / 1e9


def rounds(options: argparse.Namespace, secure: str) -> list[float]:
    """Returns the seconds of the rounds of a run of a tiny model."""
    given = {"clients": options.clients, "notes": 8 * options.clients, "rounds": options.repeats}
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "fedstrata", "run", *(each.format(**given) for each in TINY)]
        command += [f"privacy.secure_aggregation={secure}", "--out", f"{folder}/run"]
        threads = {"OMP_NUM_THREADS": str(options.threads)}  # two that wait for a busy core spin
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=os.environ | threads)
        lines = (Path(folder) / "run" / "record.jsonl").read_text(encoding="utf-8").splitlines()
    return [event["seconds"] for event in map(json.loads, lines) if event["event"] == "round"]


def measured(options: argparse.Namespace, part: str, sites: int, numbers: int) -> dict[str, Any]:
    """Runs a part in a process of its own."""
    shape = ["--sites", str(sites), "--numbers", str(numbers), "--repeats", str(options.repeats)]
    command = [sys.executable, __file__, "--part", part, *shape, "--threads", str(options.threads)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def medians(steps: Sequence[Mapping[str, float]]) -> dict[str, float]:
    return {step: round(statistics.median(each[step] for each in steps), 4) for step in steps[0]}


def totals(steps: Sequence[Mapping[str, float]]) -> list[float]:
    return [sum(seconds for step, seconds in each.items() if step != "disk") for each in steps]


def simulation(options: argparse.Namespace) -> dict[str, Any]:
    """Returns what secure rounds of many clients cost, and where that goes."""
    plain, secure = (rounds(options, each) for each in ("false", "true"))
    more = statistics.median(secure) - statistics.median(plain)
    return {
        "clients": options.clients,
        "round_over_plain": round(statistics.median(secure) / statistics.median(plain), 2),
        "round_seconds": {
            "plain": round(statistics.median(plain), 3),
            "secure": round(statistics.median(secure), 3),
        },
        "client_seconds": round(more / options.clients, 4),
        "client_seconds_least": round((min(secure) - min(plain)) / options.clients, 4),
        "client_steps": medians(measured(options, "site", options.clients, TINY_NUMBERS)["steps"]),
        "small_server_steps": medians(measured(options, "server", options.clients, TINY_NUMBERS)["steps"]),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--sites", type=int, default=10, help="at least 7, since two are lost")
    parser.add_argument("--numbers", type=int, default=50_000_000, help="in an update")
    parser.add_argument("--training", type=float, default=10.0, help="seconds that a site trains in a round")
    parser.add_argument("--clients", type=int, default=50, help="in the simulation; 0 for none")
    parser.add_argument("--repeats", type=int, default=5, help="sums and rounds, of each")
    parser.add_argument("--threads", type=int, default=1, help="of torch; masks take one")
    parser.add_argument("--part", choices=["site", "server"], help=argparse.SUPPRESS)
    options = parser.parse_args()
    if not min(options.sites, options.clients or options.sites) >= 7:
        parser.error("with fewer than 7 sites a sum cannot be unmasked after two of them were lost")
    torch.set_num_threads(options.threads)
    if options.part is not None:
        part = measure_site if options.part == "site" else measure_server
        print(json.dumps(part(options.sites, options.numbers, options.repeats)))
        return
    site, server = (measured(options, part, options.sites, options.numbers) for part in ("site", "server"))
    seconds, unmasking = totals(site["steps"]), totals(server["steps"])
    result = {
        "overhead_over_plain_round": round(statistics.median(seconds) / options.training, 4),
        "site_seconds": {"median": round(statistics.median(seconds), 3), "least": round(min(seconds), 3)},
        "site_steps": medians(site["steps"]),
        "mask_gigabytes_per_second": round(mask_rate(options.sites), 2),
        "extra_payloads": round(site["extra"], 3),
        "bytes_over_float32": round(site["sent"], 5),
        "server_seconds": {
            "median": round(statistics.median(unmasking), 3),
            "least": round(min(unmasking), 3),
        },
        "server_steps": medians(server["steps"]),
        "error": server["error"],
        "declared_error": server["declared"],
        "sites": options.sites,
        "numbers": options.numbers,
    }
    print(json.dumps(result | (simulation(options) if options.clients else {})))


if __name__ == "__main__":
    main()
