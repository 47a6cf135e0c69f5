"""`fedstrata ledger`, as whoever answers for a site's data uses it."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
from support import Call, RunTiny, refused
from told import assert_told

from fedstrata.core.errors import ConfigurationError
from fedstrata.privacy.federation_lock import read_lock
from fedstrata.privacy.identity import Identity
from fedstrata.privacy.ledger_verification import LEDGER, NOTHING, canonical, hash_of_line
from fedstrata.privacy.ledger_witness import heads_witnessed
from fedstrata.privacy.secure_sum.messages import KeyBundle
from fedstrata.privacy.secure_sum.transcript import signed_keys

METHOD = ("method={name: layer_skipping, top: 1}", "threads=1")


@pytest.fixture
def run(run_once: RunTiny, tmp_path: Path) -> Path:
    """A run's folder that may be changed."""
    return Path(shutil.copytree(run_once(*METHOD).folder, tmp_path / "runs"))


@pytest.fixture
def summed(run_once: RunTiny, tmp_path: Path) -> Path:
    """The clients of a run with secure sums, in folders that may be changed."""
    done = run_once(*METHOD, "privacy.secure_aggregation=true")
    return Path(shutil.copytree(done.folder, tmp_path / "runs")) / "clients"


def test_show_tells_what_left(call: Call, run: Path) -> None:
    told = call("ledger", "show", run)
    assert told.status == 0, told.err
    for site in (1, 2, 3):
        assert f"site-{site} ({run}/clients/site-{site}/egress.jsonl)" in told.out
    found = re.findall(r"  round \d: update \(train\): 12 tensors, loss \S+, weight \d+; .* kB; ", told.out)
    assert len(found) == 6
    assert len(re.findall(r"2 .*, 79\.3 kB, 2 .*; epsilon: none", told.out)) == 3


def test_verify_takes_a_run_a_client_and_a_ledger(call: Call, run: Path) -> None:
    whole = call("ledger", "verify", run)
    assert (whole.status, whole.out.count(": 2 lines, ")) == (0, 3)
    client = run / "clients" / "site-1"
    heads = [call("ledger", "verify", path).out for path in (client, client / "egress.jsonl")]
    assert heads[0] == heads[1] == whole.out.splitlines(keepends=True)[0]


def test_what_is_wrong_is_named_with_its_line(call: Call, run: Path) -> None:
    one, other = (run / "clients" / f"site-{site}" / "egress.jsonl" for site in (1, 3))
    first, second = one.read_bytes().splitlines(keepends=True)
    one.write_bytes(first + second.replace(b'"bytes":3', b'"bytes":4'))
    other.write_bytes(other.read_bytes().splitlines(keepends=True)[1])
    for verb in ("verify", "show"):
        told = call("ledger", verb, run)
        assert told.status == 1
        assert f"{one}, line 2: " in told.err
        assert re.search(rf"{re.escape(str(other))}, line 1: .*line 2", told.err)
        assert "site-2" in told.out
    assert "1 thing left" in told.out, "what comes before is shown"


def test_a_head_finds_a_tail_that_was_cut_off(call: Call, run: Path) -> None:
    ledger = run / "clients" / "site-2" / "egress.jsonl"
    first, second = ledger.read_bytes().splitlines(keepends=True)
    heads = [json.loads(line)["hash"] for line in (first, second)]
    assert [call("ledger", "verify", ledger, "--head", head).status for head in heads] == [0, 0]
    ledger.write_bytes(first)
    assert call("ledger", "verify", ledger).status == 0
    told = call("ledger", "verify", ledger, "--head", heads[1])
    assert told.status == 1
    assert re.search(rf"{re.escape(str(ledger))}, line 2: .* {heads[1]}", told.err)
    several = call("ledger", "verify", run, "--head", heads[0])
    assert several.status == 2
    assert_told(several.err, "conflict", at="--head", values=[run, 3])
    for head in ("", "abc", 64 * "A"):
        wrong = call("ledger", "verify", ledger, "--head", head)
        assert wrong.status == 2
        assert_told(wrong.err, "wrong_form", at="--head", values=[64, repr(head)])


def test_where_there_is_no_ledger_is_said(call: Call, tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "missing"):
        told = call("ledger", "show", path)
        assert told.status == 2
        assert_told(told.err, "not_found", at="PATH", values=[path])


def test_a_hostile_ledger_shows_no_control_characters(call: Call, tmp_path: Path) -> None:
    line = {
        **{"version": 1, "number": 1, "before": NOTHING, "frame": NOTHING, "bytes": 2**62, "call": 0},
        **{"client": "\x1b[2J", "run": None, "round": 0, "handler": "\x07", "what": "\n", "epsilon": 1e308},
        **{"protection": "\x1b", "tensors": {}, "values": {"\x1b": "\x1b", **{str(n): n for n in range(99)}}},
        "again": None,
    }
    (tmp_path / LEDGER).write_bytes(canonical({**line, "hash": hash_of_line(line)}) + b"\n")
    told = call("ledger", "show", tmp_path)
    assert told.status == 0, told.err
    assert "92 more" in told.out
    assert not re.search(r"[^\n\x20-\U0010ffff]", told.out)


def test_others_know_a_tail_that_was_cut_off(call: Call, summed: Path) -> None:
    """With the keys of a secure sum each site signs the head of its ledger, and the others keep it."""
    shown = call("ledger", "show", summed.parent)
    assert "protection: secure aggregation\n" in shown.out
    assert "protection: none" not in shown.out
    ledger = summed / "site-2" / "egress.jsonl"
    site = summed / "site-1"
    known = ("--witnessed", site / "witnessed.jsonl", "--lock", site / "federation.lock")
    told = call("ledger", "verify", ledger, *known)
    assert (told.status, told.err) == (0, "")
    assert ", with 1 head " in told.out
    ledger.write_bytes(b"".join(ledger.read_bytes().splitlines(keepends=True)[:-8]))
    told = call("ledger", "verify", ledger, *known)
    assert told.status == 1
    assert re.search(r"line \d: .* \w{64} \(run .*, round 2, train, ", told.err)


def test_heads_that_the_site_has_not_signed_are_refused(call: Call, summed: Path) -> None:
    ledger, lock = summed / "site-2" / "egress.jsonl", summed / "site-1" / "federation.lock"
    known = summed / "site-1" / "witnessed.jsonl"
    alone = call("ledger", "verify", ledger, "--witnessed", known)
    assert alone.status == 2
    assert_told(alone.err, "no_effect", at="--witnessed", values=["--lock"])
    texts = known.read_text().splitlines(keepends=True)
    entries = [json.loads(text) for text in texts]
    number = next(n for n, each in enumerate(entries, 1) if each["keys"]["site"] == "site-2")
    entries[number - 1]["keys"]["ledger_head"] = 64 * "a"
    known.write_text("".join(json.dumps(each) + "\n" for each in entries))
    told = call("ledger", "verify", ledger, "--witnessed", known, "--lock", lock)
    assert told.status == 2
    assert_told(told.err, "not_signed", at="--witnessed", values=[f"entry {number}", "'site-2'"])


def test_a_file_of_witnesses_that_says_nothing_of_the_client_checks_nothing_and_is_refused(
    call: Call, summed: Path
) -> None:
    site = summed / "site-2"
    for path in (site / "witnessed.jsonl", site / "egress.jsonl"):
        told = call("ledger", "verify", site, "--witnessed", path, "--lock", site / "federation.lock")
        assert told.status == 2
        assert f"--witnessed: {path}" in told.err


def test_a_site_that_signs_that_it_has_no_ledger_is_found(call: Call, summed: Path) -> None:
    """It has one after its first sum: with zeros in all sums it could write its ledger anew."""
    site, known = summed / "site-2", summed / "site-1" / "witnessed.jsonl"
    identity = Identity.read(site / "identity.pem")
    entries = [json.loads(text) for text in known.read_text().splitlines()]
    own = [each for each in entries if each["keys"]["site"] == "site-2"]
    assert len(own) == 2
    for number, entry in enumerate(own, start=1):
        forged = KeyBundle.model_validate({**entry["keys"], "ledger_head": 64 * "0"})
        signature = identity.sign(signed_keys(forged)).hex()
        entry["keys"] = {**forged.model_dump(mode="json"), "signature": signature}
        known.write_text("".join(json.dumps(each) + "\n" for each in own[:number]))
        told = call("ledger", "verify", site, "--witnessed", known, "--lock", site / "federation.lock")
        assert (told.status, "--witnessed: " in told.err) == (2, True)


def test_heads_of_another_run_are_not_looked_for(summed: Path) -> None:
    """A site has one identity over many runs, and a ledger for each."""
    site = summed / "site-1"
    known, lock = site / "witnessed.jsonl", read_lock(site / "federation.lock")
    own = json.loads(known.read_text().splitlines()[0])["keys"]["sum"]["run"]
    assert len(heads_witnessed(known, "site-2", own, lock)) == 1
    with refused(ConfigurationError, "not_found", at="--witnessed", values=["'site-2'", "another"]):
        heads_witnessed(known, "site-2", "another", lock)
