"""The leakage table: on whose texts, in what form, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

from support import TINY, Call, refused
from told import assert_told

from fedstrata.core.errors import ConfigurationError
from fedstrata.core.settings.source import read_source
from fedstrata.engine.prepare import prepare
from fedstrata.engine.sites import sites_of
from fedstrata.privacy.attacks.leakage import Attempt, Target, leakage_table

SHORT = (*TINY, "task={name: ner, max_length: 16, stride: 4}")
QUICK = Target(fronts=[0, 1], noises=[0.0, 50.0], texts=2, epochs=1, searched=2)


def table_of(settings: list[str], target: Target) -> list[Attempt]:
    run = prepare(read_source(None, settings))
    clients = [site.encode() for site in sites_of(run)[1]]
    return list(leakage_table(run.settings, run.task, run.model, clients, target))


def test_depth_and_noise_are_rows_of_the_table() -> None:
    attempts = table_of([*SHORT], QUICK)
    assert [(each.front, each.noise) for each in attempts] == [(0, 0.0), (0, 50.0), (1, 0.0), (1, 50.0)]
    plain, noisy = attempts[0].leakage, attempts[1].leakage
    assert plain.nearest == 1.0, "what a Llama without blocks sends are the input embeddings"
    assert noisy.nearest < 0.2


def test_one_client_alone_cannot_be_attacked() -> None:
    with refused(ConfigurationError, "not_enough_data", at="partition", values=[1]):
        table_of([*TINY, "data.synthetic.sites=1"], QUICK)


def test_a_cut_without_a_block_for_the_server_is_refused() -> None:
    with refused(ConfigurationError, "out_of_range", at="--front", values=["3 blocks", "not 3"]):
        table_of(TINY, Target(fronts=[3], noises=[0.0]))


def test_the_command_writes_the_table_and_refuses_what_is_no_number(call: Call, tmp_path: Path) -> None:
    options = ["--front", "1", "--noise", "0,1", "--texts", "2", "--epochs", "1", "--searched", "4"]
    hidden = ("attack", "hidden", *SHORT, "method={name: fl_llama}")
    done = call(*hidden, *options, "--out", "leak")
    assert done.status == 0, done.err
    table = json.loads((tmp_path / "leak/hidden.json").read_text())
    assert [(row["front"], row["noise"]) for row in table["rows"]] == [(1, 0.0), (1, 1.0)]
    assert table["sent"] == 2
    assert table["rows"][0]["searched"] == 1.0, "behind one block that changes little"
    assert (table["method"], table["seed"]) == ("fl_llama", 0)
    assert table["what_if"] is None
    assert (tmp_path / "leak/hidden.md").read_text()
    released = call(*hidden, *options, "--target", "next", "--out", "next", "--json")
    assert json.loads(released.out)["target"]["names"] == "next"
    wrong = call(*hidden, "--front", "1.5")
    assert wrong.status == 2
    assert_told(wrong.err, "wrong_form", at="--front", values=["'1.5'"])
    endless = call(*hidden, "--noise", "0,inf")
    assert endless.status == 2
    assert_told(endless.err, "wrong_form", at="--noise", values=["'0,inf'"])
