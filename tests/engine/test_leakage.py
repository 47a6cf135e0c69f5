"""The leakage table: on whose texts, in what form, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support import TINY, Call

from fedstrata.core.errors import ConfigurationError
from fedstrata.core.sources import read_source
from fedstrata.engine.leakage import Target, leakage_table
from fedstrata.engine.setup import prepare

QUICK = Target(fronts=[0, 1], noises=[0.0, 50.0], texts=60, epochs=3)


def test_depth_and_noise_are_rows_of_the_table() -> None:
    attempts = list(leakage_table(prepare(read_source(None, TINY)), QUICK))
    assert [(each.front, each.noise) for each in attempts] == [(0, 0.0), (0, 50.0), (1, 0.0), (1, 50.0)]
    plain, noisy = attempts[0].leakage, attempts[1].leakage
    assert plain.nearest == 1.0, "what a Llama without blocks sends are the input embeddings"
    assert noisy.nearest < 0.2


def test_one_client_alone_cannot_be_attacked() -> None:
    alone = prepare(read_source(None, [*TINY, "data.synthetic.sites=1"]))
    with pytest.raises(ConfigurationError, match="there is 1"):
        list(leakage_table(alone, QUICK))


def test_a_cut_without_a_block_for_the_server_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="leave none of the model's 3"):
        list(leakage_table(prepare(read_source(None, TINY)), Target(fronts=[3], noises=[0.0])))


def test_the_command_writes_the_table_and_refuses_what_is_no_number(call: Call, tmp_path: Path) -> None:
    options = ["--front", "1", "--noise", "0,1", "--texts", "20", "--epochs", "1", "--out", "leak"]
    done = call("attack", *TINY, *options)
    assert done.status == 0, done.err
    table = json.loads((tmp_path / "leak/leakage.json").read_text())
    assert [(row["front"], row["noise"]) for row in table["rows"]] == [(1, 0.0), (1, 1.0)]
    assert table["sent"] == 2
    assert table["rows"][0]["searched"] == 1.0, "behind one block that changes little"
    assert (
        (tmp_path / "leak/leakage.md")
        .read_text()
        .startswith("| p | noise | mean size | tokens | nearest embedding | search |")
    )
    wrong = call("attack", *TINY, "--front", "1.5")
    assert wrong.status == 2
    assert "--front: must be whole numbers of 0 or more" in wrong.err
