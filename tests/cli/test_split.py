"""`fedstrata serve` and `join`: processes, certificates, a server that is killed and goes on."""

from __future__ import annotations

import json
import re
import shlex
import signal
import subprocess
from pathlib import Path

import pytest
import torch
import trustme
from divided import texts_of
from processes import Started, fedstrata, free_address, output_of, read_until
from support import TINY, RunTiny, assert_same_tensors, finished
from told import assert_refused, assert_told
from typer.testing import CliRunner

from fedstrata.cli.main import app
from fedstrata.core.errors import ConfigurationError
from fedstrata.core.files import hash_of
from fedstrata.results.result import open_result

SITES = ("data.synthetic.sites=2", "data.synthetic.notes=12", "federation.rounds=3")
METHOD = "method={name: fl_llama, mode: client_batch}"
CLIENTS = ("site-1", "site-2")


def credentials(folder: Path) -> dict[str, list[str]]:
    """Writes certificates and tokens; returns the options of each side."""
    authority, options = trustme.CA(), {}
    authority.cert_pem.write_to_path(folder / "authority.pem")
    for name in ("server", *CLIENTS):
        issued = authority.issue_cert("localhost", common_name=name)
        issued.cert_chain_pems[0].write_to_path(folder / f"{name}.pem")
        issued.private_key_pem.write_to_path(folder / f"{name}.key")
        (folder / f"{name}.token").write_text(f"token-of-{name}\n")
        for kind in ("key", "token"):
            (folder / f"{name}.{kind}").chmod(0o600)
        files = {"certificate": f"{name}.pem", "key": f"{name}.key", "authority": "authority.pem"}
        options[name] = [part for key, file in files.items() for part in (f"--{key}", str(folder / file))]
    tokens = folder / "tokens"
    tokens.write_text("".join(f"{client} token-of-{client}\n" for client in CLIENTS))
    tokens.chmod(0o600)
    options["server"] += ["--tokens", str(tokens)]
    return options


@pytest.mark.slow
@pytest.mark.parametrize(
    "method",
    [
        "method={name: layer_skipping, top: 1, head: local}",
        "method={name: fedtlu, portion: 0.34, selection: sketched}",
        "method={name: fedmedlora}",
        "method={name: fedpeptao}",
    ],
)
def test_sites_that_say_nothing_but_their_documents_come_to_the_numbers_of_a_simulation(
    tmp_path: Path, run_tiny: RunTiny, started: Started, method: str
) -> None:
    """Over TLS, with a server that is killed and goes on, and clients that would take more threads.

    Every site keeps a model that finds mentions.
    """
    whole = ("threads=1", "federation.score_everywhere=false")
    run, site = tmp_path / "run.yaml", tmp_path / "site.yaml"
    run.write_text("name: run\n")
    site.write_text("data:\n  synthetic: {sites: 2, notes: 12}\n  types: [problem, test, treatment, drug]\n")
    options, address, out = credentials(tmp_path), free_address(), tmp_path / "served"
    serve = ["serve", "--listen", address, "--out", out, *options["server"]]
    started.append(fedstrata(*serve, run, *TINY, *SITES, *whole, method))
    for client in CLIENTS:
        own = ["--client", client, "--token", tmp_path / f"{client}.token", "--home", tmp_path / client]
        started.append(fedstrata("join", "--server", address, *own, *options[client], site, threads=2))
    read_until(started[0], "round 1:")
    started[0].kill()
    started[0].wait()
    again = fedstrata(*serve, "--resume")
    started.append(again)
    output_of(again)
    for client in started[1:3]:
        said = output_of(client)
        assert "\nround 3: train\n" in said
        assert re.search(r"\n.*validation split\n.*test split\n", said)
    summary = json.loads((out / "summary.json").read_text())
    simulated, other = run_tiny(*SITES, *whole, method), finished(out, summary)
    assert_same_tensors(simulated.state.tensors, other.state.tensors)
    assert simulated.summary["metrics"] == summary["metrics"]
    assert simulated.summary["communication"] == summary["communication"]
    (home,) = (tmp_path / "site-1").glob("run-*/clients/site-1")
    note = tmp_path / "note.txt"
    note.write_text("The patient denies chest pain.")
    predicted = fedstrata("predict", home, note, "--out", tmp_path / "found")
    started.append(predicted)
    output_of(predicted)
    kept = [{*map(hash_of, each.rglob("model/*.safetensors"))} for each in (home, simulated.folder)]
    assert set() < kept[0] <= kept[1]


@pytest.mark.slow
def test_a_site_whose_policy_is_against_a_run_does_not_join_it_and_tells_its_own_people_why(
    tmp_path: Path, started: Started
) -> None:
    """The server hears that it refuses, and does not wait for it any more."""
    (tmp_path / "run.yaml").write_text("name: run\n")
    (tmp_path / "site.yaml").write_text("data:\n  synthetic: {sites: 2, notes: 12}\n  types: [drug]\n")
    (tmp_path / "policy.yaml").write_text("# of the board\nmethods: [fedper]\nrounds: 2\n")
    address, named = free_address(), ("--clients", ",".join(CLIENTS))
    serve = ["serve", "--insecure", "--listen", address, *named, "--out", tmp_path / "served"]
    settings = ("task={name: ner, types: [drug]}", "data.types=[drug]")
    started.append(fedstrata(*serve, tmp_path / "run.yaml", *TINY, *SITES, *settings))
    for client in CLIENTS:
        join = ["join", "--insecure", "--server", address, "--client", client, "--home", tmp_path / client]
        refused = fedstrata(*join, "--policy", tmp_path / "policy.yaml", tmp_path / "site.yaml")
        told = refused.communicate(timeout=300)[1]
        assert refused.returncode == 2
        for path, values, line in (("methods", ["fedper", "layer_skipping"], 2), ("rounds", [2, 3], 3)):
            assert_told(told, "policy_refused", at=path, values=values, origin=f"policy.yaml, line {line}")
        assert not (tmp_path / client).exists(), "nothing was computed, and nothing kept"
    told = started[0].communicate(timeout=300)[1]
    assert started[0].returncode == 1
    assert_told(told, "policy_refused", values=["site-1, site-2"])
    assert "fedper" not in told


@pytest.mark.slow
def test_a_server_that_is_killed_goes_on_with_the_clients_that_are_there(
    tmp_path: Path, run_tiny: RunTiny, started: Started
) -> None:
    file = tmp_path / "run.yaml"
    file.write_text("name: run\n")  # and not the demo's settings
    settings, options, address = [file, *TINY, *SITES, METHOD], credentials(tmp_path), free_address()
    out = tmp_path / "served"
    serve = ["split", "serve", "--listen", address, "--out", out, *options["server"]]
    server = fedstrata(*serve, *settings, "report_to=[tensorboard]")
    started.append(server)
    for client in CLIENTS:
        own = ["--client", client, "--token", tmp_path / f"{client}.token", "--home", tmp_path / client]
        started.append(fedstrata("split", "join", "--server", address, *own, *options[client], *settings))
    read_until(server, "round 1:")
    server.kill()
    server.wait()
    again = fedstrata(*serve, "--resume")
    started.append(again)
    output_of(again)
    for client in started[1:3]:
        assert "has ended" in output_of(client)
    assert {(tmp_path / client).stat().st_mode & 0o777 for client in CLIENTS} == {0o700}
    summary = json.loads((out / "summary.json").read_text())
    served, simulated = finished(out, summary), run_tiny(*SITES, METHOD)
    assert served.of("resumed")
    assert [*out.glob("tensorboard/*")]
    assert "site-2" in (out / "report.html").read_text()
    for name, tensor in served.state.tensors.items():
        torch.testing.assert_close(tensor, simulated.state.tensors[name], rtol=1e-3, atol=1e-4)
    for client, scores in simulated.summary["metrics"]["clients"].items():
        found = summary["metrics"]["clients"][client]
        assert found == {name: pytest.approx(value, abs=0.02) for name, value in scores.items()}
    kept = "".join(path.read_text() for path in out.glob("*.json*"))
    assert "token-of-" not in kept


@pytest.mark.slow
def test_texts_are_those_of_the_client_s_own_model(
    tmp_path: Path, run_tiny: RunTiny, started: Started
) -> None:
    """Ends that clients keep, from where they keep them; a stranger is told what is wrong with its token."""
    file, out = tmp_path / "run.yaml", tmp_path / "out" / "answers.jsonl"
    file.write_text("name: run\n")
    language = ("data.types=null", "task={name: lm, max_length: 64}", "training.batch_size=4")
    shape = "model.config.initializer_range=0.3"  # or all texts would be alike
    settings = (*SITES[:2], "federation.rounds=1", "method={name: fl_llama, average_ends: never}")
    run = run_tiny(*language, *settings, shape).folder
    prompts = ["The patient has chest pain", "No fever", "He was given aspirin"]
    asked = tmp_path / "prompts.txt"
    asked.write_text("\n".join(prompts))
    options, address = credentials(tmp_path), free_address()
    server = fedstrata("split", "answer", run, "--listen", address, *options["server"])
    started.append(server)

    def ask(client: str, token: str) -> subprocess.Popen[str]:
        own = ["--client", client, "--token", tmp_path / f"{token}.token", "--home", run, *options[client]]
        what = ["--prompts", asked, "--out", out, "--max-new-tokens", "12"]
        yaml = [file, *TINY, *language, *settings, shape]
        started.append(fedstrata("split", "generate", "--server", address, *own, *what, *yaml))
        return started[-1]

    wrong = ask("site-2", "site-1")
    _, complained = wrong.communicate()
    assert wrong.returncode == 2
    assert_told(complained, "wrong_token", values=["'site-2'"])
    assert complained.count("[wrong_token]") == 1
    assert not out.exists()
    output_of(ask("site-1", "site-1"))
    found = [json.loads(line) for line in out.read_text().splitlines()]
    model = open_result(run, client="site-1").model
    assert [each["text_pair"] for each in found] == texts_of(model, prompts, 12)
    assert [each["text"] for each in found] == prompts
    assert [path.name for path in out.parent.iterdir()] == ["answers.jsonl"]
    server.send_signal(signal.SIGINT)
    said, complained = server.communicate()
    assert (server.returncode, complained.count("token-of-")) == (130, 0)
    assert said.splitlines()[-1] == "stopped"


def test_what_cannot_be_served_is_refused(tmp_path: Path) -> None:
    wrong: list[tuple[str, str, str, str]] = [
        ("--insecure --clients a --listen 0.0.0.0:0", "--listen", "not_local", ""),
        ("--insecure --clients a,", "--clients", "missing", ""),
        ("--insecure --clients b,c,b", "--clients", "duplicate", "'b'"),
        ("--insecure", "--clients", "missing", ""),
        ("--clients a", "--certificate", "missing", "--insecure"),
        ("--certificate absent --key absent --authority absent", "", "not_found", "absent"),
        ("--insecure --clients a 'method={name: centralized}'", "method.name", "not_supported", ""),
        ("--insecure --clients a workers=2", "workers", "not_supported", ""),
    ]
    for arguments, path, code, value in wrong:
        command = ["split", "serve", "--out", str(tmp_path / "run"), *TINY, METHOD, *shlex.split(arguments)]
        error = CliRunner().invoke(app, command).exception
        assert_refused(error, ConfigurationError, code, at=path, values=[value])
        assert not (tmp_path / "run").exists()
