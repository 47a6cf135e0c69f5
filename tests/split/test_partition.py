"""Dividing a model: every block on one side, nothing of the other side read."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from divided import EVERY_VARIANT, Tiny, deeper
from safetensors.torch import load_file, save_file
from support import refused
from tiny_models import LABELS
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from fedstrata.adapters.attach import attach
from fedstrata.core.cut import Cut
from fedstrata.core.errors import ConfigurationError
from fedstrata.core.seeding import Seed
from fedstrata.core.settings.adapter import BottleneckSettings, LoraSettings
from fedstrata.core.settings.model import ModelSettings
from fedstrata.models.load import load
from fedstrata.models.state import Model
from fedstrata.split.divide import divide, leave_ends, leave_middle
from fedstrata.split.middle import Middle
from fedstrata.split.rows import Rows

SHARED = {"deberta": "rel_embeddings", "deberta-v2": "rel_embeddings", "mpnet": "relative_attention_bias"}


def names(model: Model) -> set[str]:
    return {name for name, _ in model.module.named_parameters()}


@EVERY_VARIANT
def test_every_block_is_on_one_side(tiny_model: Tiny, variant: tuple[str, str]) -> None:
    """And the server has no embedding, no final norm and no head."""
    family, kind = variant
    whole = tiny_model(family, kind, config=deeper(family))
    client, server = divide(whole, Cut(1, 1))
    assert names(client) | names(server) == names(whole)
    both = names(client) & names(server)
    assert bool(both) == (family in SHARED)
    assert {*server.layout.all} == {*whole.layout.blocks[1], *both}
    assert [bool(block) for block in client.layout.blocks] == [True, False, True]
    assert [bool(block) for block in server.layout.blocks] == [False, True, False]
    assert server.layout.blocks[1] == whole.layout.blocks[1]
    assert not server.layout.final_norm and not server.layout.head
    values, others = dict(client.module.named_parameters()), dict(server.module.named_parameters())
    for name, parameter in whole.module.named_parameters():
        held = values.get(name, others.get(name))
        assert held is parameter  # no copy
    for name in both:
        assert others[name] is not values[name]
        assert torch.equal(others[name], values[name])


@pytest.mark.parametrize(
    ("front", "back", "at", "code", "values"),
    [
        (-1, 0, "method.front", "out_of_range", ["-1"]),
        (0, -2, "method.back", "out_of_range", ["-2"]),
        (2, 1, "method.front", "conflict", ["2 ", "1 ", "3 "]),
        (4, 0, "method.front", "conflict", ["4 ", "0 ", " 2"]),
    ],
)
def test_a_cut_that_does_not_fit_is_refused(
    tiny_model: Tiny, front: int, back: int, at: str, code: str, values: list[str]
) -> None:
    model = tiny_model("llama", config=deeper("llama"))
    with refused(ConfigurationError, code, at=at, values=values):
        divide(model, Cut(front, back))


@pytest.mark.parametrize(("front", "back", "end"), [(0, 1, "front"), (1, 0, "back")])
def test_a_client_that_needs_blocks_elsewhere_is_told_which_end(
    tiny_model: Tiny, front: int, back: int, end: str
) -> None:
    model = tiny_model("llama", config=deeper("llama"))
    server = Middle(divide(model, Cut(1, 1))[1], Cut(1, 1))
    path, cut = f"method.cuts.a.{end}", f" {front} and {back} "
    with refused(ConfigurationError, "out_of_range", at=path, values=[cut]):
        server.run(torch.zeros(1, 4, 32), Rows(4, (0,)), Cut(front, back, "method.cuts.a"))


def sharded(folder: Path) -> None:
    """Divides the weights of a saved model into three files, as those of a large one are."""
    tensors = load_file(folder / "model.safetensors")
    places = {}
    for number in range(3):
        file = f"model-{number + 1:05d}-of-00003.safetensors"
        own = [name for place, name in enumerate(sorted(tensors)) if place % 3 == number]
        save_file({name: tensors[name] for name in own}, folder / file, metadata={"format": "pt"})
        places |= dict.fromkeys(own, file)
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))


@pytest.mark.parametrize(
    ("family", "kind", "shards"),
    [
        pytest.param(
            family,
            kind,
            shards,
            id=f"{family}-{kind}-{'shards' if shards else 'one file'}",
            marks=() if family in fast else pytest.mark.slow,
        )
        for shards, fast in ((False, ["llama-tied", "mixtral", "bert"]), (True, ["gemma3", "deberta-v2"]))
        for family, kind in [
            ("llama", "causal-lm"),
            ("llama-tied", "causal-lm"),
            ("gpt2", "causal-lm"),
            ("gemma3", "causal-lm"),
            ("mixtral", "causal-lm"),
            ("bert", "token-classification"),
            ("deberta-v2", "sequence-classification"),
            ("modernbert", "token-classification"),
        ]
    ],
)
def test_sides_of_a_saved_model_are_those_of_the_loaded_one(
    saved: Callable[..., Path], family: str, kind: str, shards: bool
) -> None:
    folder = saved(family, kind, config=deeper(family))
    labels = () if kind == "causal-lm" else LABELS
    if shards:
        sharded(folder)
    read = partial(load, ModelSettings(name=str(folder)), kind=kind, labels=labels, seed=Seed(3))
    cut, whole = Cut(1, 1), read()
    sides = (read(without=partial(leave_ends, cut=cut)), read(without=partial(leave_middle, cut=cut)))
    for side, divided in zip(sides, divide(whole, cut), strict=True):
        assert type(side.module) is type(whole.module)
        assert names(side) == names(divided)
        assert side.layout == divided.layout
        buffers = dict(divided.module.named_buffers())
        for name, tensor in [*side.module.named_parameters(), *side.module.named_buffers()]:
            expected = buffers.get(name, dict(divided.module.named_parameters()).get(name))
            assert torch.equal(tensor, expected), name


def test_a_new_head_is_drawn_as_in_the_whole_model(saved: Callable[..., Path]) -> None:
    """The weights come from a language model, so that of a classifier the head is new."""
    folder = saved("llama", "causal-lm", config=deeper("llama"))
    read = partial(
        load, ModelSettings(name=str(folder)), kind="token-classification", labels=("O", "B-a"), seed=Seed(3)
    )
    whole, client = read(), read(without=partial(leave_ends, cut=Cut(1, 1)))
    assert client.new_parameters == whole.new_parameters != ()
    for name in whole.new_parameters:
        assert torch.equal(client.snapshot([name])[name], whole.snapshot([name])[name])


def test_a_model_from_scratch_has_the_numbers_of_the_whole_one(
    settings_of: Callable[..., ModelSettings],
) -> None:
    settings = settings_of("gpt2", config=deeper("gpt2"))
    read = partial(load, settings, kind="causal-lm", seed=Seed(2))
    whole = read()
    for take in (leave_ends, leave_middle):
        side = read(without=partial(take, cut=Cut(1, 1)))
        values = side.snapshot(names(side))
        assert all(torch.equal(value, whole.snapshot([name])[name]) for name, value in values.items())


@pytest.mark.parametrize(
    "settings", [LoraSettings(rank=2), BottleneckSettings(width=4)], ids=lambda own: own.kind
)
@pytest.mark.parametrize(
    ("family", "kind"),
    [
        ("llama", "causal-lm"),
        pytest.param("gpt2", "causal-lm", marks=pytest.mark.slow),
        pytest.param("bert", "token-classification", marks=pytest.mark.slow),
    ],
)
def test_adapters_begin_alike_on_every_side(tiny_model: Tiny, family: str, kind: str, settings: Any) -> None:
    """A client that holds the ends, and a server that holds the middle, draw what the whole model would."""

    def adapted(model: Model) -> dict[str, Tensor]:
        found = attach(model, settings, kind=kind, seed=Seed(5))
        return found.snapshot(found.layout.all)

    whole = adapted(tiny_model(family, kind, config=deeper(family)))
    drawn = {name for name, value in whole.items() if value.any()}
    assert drawn
    sides = [adapted(side) for side in divide(tiny_model(family, kind, config=deeper(family)), Cut(1, 1))]
    assert sides[0].keys() | sides[1].keys() == whole.keys()
    for side in sides:
        assert drawn & side.keys()
        assert all(torch.equal(value, whole[name]) for name, value in side.items())


MEASURE = """
import ctypes, json, os, sys
from pathlib import Path
# imported before the processes part
from fedstrata.core.settings.source import read_source
from fedstrata.engine.remote.agreeing import Agreements
from fedstrata.engine.remote.joining import RemoteClient
from fedstrata.engine.prepare import prepare_client, prepare_server

def peak():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))

def serve(folder, ends):
    # as `fedstrata serve` begins
    method = f"method={{name: fl_llama, front: {ends}, back: {ends}}}"
    given = [method, f"model.name={folder}", "task={name: lm, max_length: 16}", "adapter.kind=lora"]
    experiment = prepare_server(read_source(None, given), ["north"])
    Agreements(experiment, ("north",), 2**20)
    assert experiment.method.start(experiment.model).tensors
    return experiment.model

def join(folder, ends):
    # as `fedstrata join` begins
    texts = Path(folder, "texts", "north")
    texts.mkdir(parents=True)
    (texts / "notes.txt").write_text("no fever . " * 40)
    data = f"data={{format: text, path: {texts.parent}, split: {{train: 1.0, validation: 0.0, test: 0.0}}}}"
    method = f"method={{name: fl_llama, front: {ends}, back: {ends}}}"
    given = [data, method, f"model.name={folder}", "task={name: lm, max_length: 16}", "adapter.kind=lora"]
    experiment = prepare_client(read_source(None, given), "north")
    client = RemoteClient(experiment, "north", Path(folder, "home"), print)
    assert client.greeting["examples"] > 0
    return experiment.model

def measure(begin, ends):
    begin(small, 1)  # what the libraries load is not counted
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")
    before = peak()
    model = begin(large, ends)
    held = sum(each.nbytes for each in model.module.parameters())
    print(json.dumps([begin.__name__, peak() - before, held]), flush=True)

small, large = sys.argv[1:]
for begin, ends in ((join, 1), (serve, 6)):  # two blocks are left to each
    if (process := os.fork()) == 0:
        measure(begin, ends)
        os._exit(0)
    assert os.waitpid(process, 0)[1] == 0, begin
"""


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory, tokenizer_folder: Path) -> tuple[Path, Path]:
    """A small model, and one of fourteen blocks of 17 MB each, in three shards."""
    folders = []
    for width, blocks in ((32, 3), (512, 14)):
        shape = {"hidden_size": width, "intermediate_size": 4 * width, "num_attention_heads": 4}
        config = LlamaConfig(vocab_size=64, num_hidden_layers=blocks, tie_word_embeddings=False, **shape)
        folder = tmp_path_factory.mktemp("model")
        with torch.device("meta"):
            model = LlamaForCausalLM(config)
        model.to_empty(device="cpu").save_pretrained(folder, max_shard_size="80MB")
        for file in tokenizer_folder.iterdir():
            (folder / file.name).write_bytes(file.read_bytes())
        folders.append(folder)
    return folders[0], folders[1]


@pytest.fixture(scope="module")
def measured(large: tuple[Path, Path]) -> dict[str, tuple[int, int]]:
    """By how many bytes each process grew, and how many the tensors have that it then holds."""
    command = [sys.executable, "-c", MEASURE, *map(str, large)]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr
    rows = [json.loads(line) for line in found.stdout.splitlines() if line.startswith('["')]
    return {begin: (grown, held) for begin, grown, held in rows}


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="memory is measured by Linux's /proc")
@pytest.mark.parametrize("begin", ["join", "serve"])
def test_a_process_never_holds_the_other_sides_tensors(
    measured: dict[str, tuple[int, int]], begin: str
) -> None:
    """The greatest memory a process ever has while it loads two blocks; twelve are on the other side."""
    grown, held = measured[begin]
    block = 4 * (4 * 512**2 + 3 * 512 * 2048)
    assert held == pytest.approx(2 * block, rel=0.05)  # and a small adapter
    assert grown < 4 * block
