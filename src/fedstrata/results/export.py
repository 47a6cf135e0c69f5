"""A finished run's model as a folder to hand on: model, tokenizer, model card, and a summary for programs.

Neither the card nor the summary holds a path of this machine, and clients are numbered unless their names
are asked for: a folder's name may be a hospital's.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedstrata.adapters.attach import merge
from fedstrata.core.errors import refused
from fedstrata.core.files import new_folder
from fedstrata.models.state import Model
from fedstrata.results.card import Facts, card_of, is_path
from fedstrata.results.result import ADAPTER, Result

SUMMARY = "fedstrata.json"
"""The summary for programs."""


def export(
    result: Result,
    out: Path,
    *,
    licence: str | None,
    language: str | None,
    with_names: bool,
    keep_adapter: bool = False,
) -> None:
    """Writes the folder; it appears complete or not at all.

    Args:
        result: The run.
        out: The folder; must not exist yet or be empty.
        licence: The model's licence, as the Hugging Face hub names it; `other` and a note when none.
        language: The code of the texts' language; not stated when none.
        with_names: Whether clients keep their names.
        keep_adapter: Whether a LoRA stays an adapter, to be used with its base model, and is not merged.

    Raises:
        ConfigurationError: The folder is not empty, or there is no adapter to keep.
    """
    names = _names(result, with_names=with_names)
    model, adapter = result.model, result.settings.adapter
    if not model.layout.frozen:  # none, or one that was merged in the rounds
        adapter = None
    if keep_adapter and adapter is None:
        message = f"this run left no adapter: {result.method.name} trained the model itself, or merged it"
        raise refused("--adapter", message, "not_found")
    merged = adapter is not None and adapter.kind == "lora" and not keep_adapter
    facts = Facts(result, out.resolve().name, licence, language, names, None if merged else adapter)
    with new_folder(out) as unfinished:
        if merged:  # for good: the result's own model is used up
            model = Model(merge(model), model.tokenizer, name=model.name)
        model.save(unfinished)
        if facts.adapter is not None:
            _forget_place(unfinished / ADAPTER)
        card_of(facts).save(unfinished / "README.md")
        text = json.dumps(_summary(result, names), indent=2, allow_nan=False)
        (unfinished / SUMMARY).write_text(text + "\n", encoding="utf-8")


def _forget_place(path: Path) -> None:
    """Takes the place of the base model out of an adapter's configuration, if it is one of this machine."""
    config = json.loads(path.read_text(encoding="utf-8"))
    if is_path(config.get("base_model_name_or_path") or ""):
        config["base_model_name_or_path"] = None
        path.write_text(json.dumps(config, indent=2, sort_keys=True), encoding="utf-8")


def _names(result: Result, *, with_names: bool) -> dict[str, str]:
    """Returns the name each client, and each site that a setting names, has in what is handed on."""
    data, task = result.settings.data, result.task
    sites = [*data.split.test_sites, *task.without_relations]  # need not be clients
    every = dict.fromkeys([*result.start["clients"], *data.external, *sites])
    return {name: name if with_names else f"site {number}" for number, name in enumerate(every, 1)}


def _summary(result: Result, names: Mapping[str, str]) -> dict[str, Any]:
    """Returns the run's summary and settings without names of clients and paths."""
    without = {"name", "device", "threads", "workers"} | ({"data", "partition"} if result.served else set())
    settings = result.settings.model_dump(mode="json", exclude=without)
    summary: dict[str, Any] = {
        **{key: value for key, value in result.summary.items() if key != "saved"},  # whose paths name clients
        "model": _without_paths(result.summary["model"]),
        "model_of": names[result.client] if result.client is not None else None,
        "documents": result.start["clients"],
        "versions": result.start["versions"],
        "settings": _without_paths(settings),
    }
    return {**_renamed(summary, names), "labels": list(result.task.classes)}


def _renamed(node: Any, names: Mapping[str, str]) -> Any:
    """Returns facts with the clients renamed, wherever they are keys or in a list."""
    if isinstance(node, Mapping):
        return {names.get(key, key): _renamed(value, names) for key, value in node.items()}
    if isinstance(node, list):
        return [names.get(item, item) if isinstance(item, str) else _renamed(item, names) for item in node]
    return node


def _without_paths(node: Any) -> Any:
    """Returns settings with null for every place on this machine."""
    if isinstance(node, Mapping):
        return {key: None if key == "path" else _without_paths(value) for key, value in node.items()}
    if isinstance(node, list):
        return [_without_paths(item) for item in node]
    return None if isinstance(node, str) and is_path(node) else node
