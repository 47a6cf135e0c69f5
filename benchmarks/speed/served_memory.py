"""Does the memory of a server grow with the number of its clients?

    python benchmarks/speed/served_memory.py

Runs FedAvg of a decoder with random weights by `fedstrata serve` and processes of `fedstrata join`, over gRPC
on loopback, once for each number of clients; every client has as many batches.

- `most_over_least`: peak memory (RSS) of the server with the most clients over that with the fewest;
- `payload_megabytes`: of one plan, and of one update;
- `megabytes`: the server's peak, by the number of clients.

Last line: one JSON object.
"""

from __future__ import annotations

import argparse
import json
import socket
import tempfile
from contextlib import ExitStack
from pathlib import Path

from remote_federation import Setting, fedstrata

from fedstrata.record.log import read_events


def free_address() -> str:
    """Returns an address of this machine that nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return f"127.0.0.1:{taken.getsockname()[1]}"


def peak(setting: Setting, clients: int, folder: Path) -> tuple[int, int]:
    """Returns the peak memory of a server and the bytes of an update."""
    names = [f"client-{number}" for number in range(clients)]
    path = setting.write(folder, names, {"name": "fedavg"})
    values = json.loads(path.read_text(encoding="utf-8"))
    address, site = free_address(), folder / "site.yaml"
    site.write_text(json.dumps({name: values[name] for name in ("data", "partition", "model", "threads")}))
    shared = ("--listen", address, "--insecure", "--clients", ",".join(names), "--out", str(folder / "run"))
    with ExitStack() as stack:
        server = stack.enter_context(fedstrata("serve", str(path), "federation.rounds=2", *shared))
        for name in names:
            own = ("--insecure", "--client", name, "--home", str(folder / f"home of {name}"))
            stack.enter_context(fedstrata("join", str(site), *own, "--server", address))
        if server.wait():
            raise SystemExit(f"the server with {clients} clients has failed")
    summary = json.loads((folder / "run" / "summary.json").read_text(encoding="utf-8"))
    events = read_events(folder / "run" / "record.jsonl")
    sent = max(event["bytes_up"] for event in events if event["event"] == "client")
    return summary["memory"]["peak_rss_bytes"], sent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--clients", type=int, nargs="+", default=[2, 8])
    parser.add_argument("--blocks", type=int, default=4)
    parser.add_argument("--hidden", type=int, default=512)
    options = parser.parse_args()
    setting = Setting(options.blocks, options.hidden, front=1, back=1, tokens=16, batch=2, batches=2)
    found, sent = {}, 0
    with tempfile.TemporaryDirectory() as folder:
        for clients in options.clients:
            found[clients], sent = peak(setting, clients, Path(folder) / str(clients))
            print(f"{clients} clients: {found[clients] / 1e6:.0f} MB", flush=True)
    result = {
        "most_over_least": round(found[max(found)] / found[min(found)], 3),
        "payload_megabytes": round(sent / 1e6, 1),
        "megabytes": {clients: round(own / 1e6, 1) for clients, own in found.items()},
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
