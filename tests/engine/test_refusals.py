"""Settings that a run refuses before anything starts: where, by which code, and what the message names."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

import pytest
from support import TINY, TINY_SETTINGS, problems_of, refused

from fedstrata.core.errors import ConfigurationError
from fedstrata.core.settings.source import read_source
from fedstrata.engine.prepare import prepare

Row = tuple[str | tuple[str, ...], str, str, list[object]]
FIVE = "data.synthetic.sites=5"
WITHOUT_TYPES = tuple(each for each in TINY if not each.startswith("data.types"))
SECURE = (
    *TINY,
    "privacy.secure_aggregation=true",
    "data.synthetic.sites=4",
    "data.synthetic.notes=8",
    "federation.min_clients=1",
)
NO_HEADS_BEHIND = (
    "model.config={model_type: llama, hidden_size: 16, intermediate_size: 24, num_hidden_layers: 3, "
    "num_attention_heads: 2, num_key_value_heads: 2, is_causal: false}"
)
LM = (
    *TINY,
    "data.types=null",
    "task={name: lm, max_length: 16}",
    "model.config={model_type: gpt2, n_embd: 16, n_layer: 3, n_head: 2, n_positions: 64}",
    "model.tokenizer={train: words, vocabulary: 60, lower_case: true}",
    "method={name: fedavg}",
)
TWO_BLOCKS = json.dumps({**TINY_SETTINGS["model.config"], "num_hidden_layers": 2})


def fedavg(aggregation: str) -> str:
    return f"method={{name: fedavg, aggregation: {aggregation}}}"


DATA: Sequence[Row] = [
    ("data={format: brat, path: x, mimic: {categories: null}}", "data", "no_effect",
     ["data.mimic", "'mimic'"]),
    ("data={format: mimic, path: x, columns: {text: body}}", "data", "no_effect",
     ["data.columns", "'datasets'"]),
    ("data={dataset: {config: small}}", "data", "no_effect", ["'synthetic'"]),
    ("data={format: datasets, path: x, columns: {tokens: words}}", "data.columns", "missing", ["tokens"]),
    ("data={format: mimic}", "data", "missing", ["data.path"]),
    ("data={labels: {top: 0}}", "data.labels.top", "out_of_range", []),
    ("data={labels: {top: 3}}", "data.labels.top", "no_effect", ["ner"]),
    ("data={labels: {digits: 4}}", "data.labels.digits", "unknown_name", []),
    ("data={labels: {keep: []}}", "data.labels.keep", "out_of_range", []),
    ("data={format: mimic, path: x, mimic: {categories: []}}", "data.mimic.categories", "out_of_range", []),
    ("data={split: {by: site}}", "data.split.by", "unknown_name", []),
    ("data={format: mimic, path: x, synthetic: {notes: 4}}", "data", "no_effect",
     ["data.synthetic", "'synthetic'"]),
    ("data={conllu: {text: tokens}}", "data", "no_effect", ["data.conllu", "'conllu'"]),
    ("data={text: {documents: headings}}", "data", "no_effect", ["data.text", "'text'"]),
    ("data={unannotated: skip}", "data", "no_effect", ["data.unannotated", "'i2b2' or 'brat'"]),
    ("data={format: bioc, path: x}", "data.format", "unknown_name",
     ["'text', 'medline', 'relation_table', 'datasets'", "'bioc'"]),
    (("data.types=null", "task={name: classify}", "data.labels={keep: ['401']}"), "data.labels.keep",
     "not_found", ["'401'"]),
    ("data.external={site-1: {synthetic: {sites: 1, notes: 2}}}", "data.external", "duplicate", ["site-1"]),
    ("data.external={x: {format: brat}}", "data.external.x", "missing", ["data.path"]),
    ("data.external={x: {format: brat, path: nowhere}}", "data.external.x.path", "not_found", ["nowhere"]),
    ("data.external={x: {split: {train: 0.5}}}", "data.external.x.split", "unknown_key", []),
    ("data.split.test_sites=[site-9]", "data.split.test_sites", "unknown_name",
     ["'site-9'", "'site-1', 'site-2', 'site-3'", "the command line"]),
    ("data.split.test_sites=[site-1, site-2, site-3]", "data.split.test_sites", "not_enough_data", []),
    (("data.split.test_sites=[site-3]", "federation.min_clients=3"), "federation.min_clients",
     "out_of_range", [2]),
    ("data.not_annotated=absent", "data.not_annotated", "no_effect", ["data.annotates"]),
    (("task={name: lm}", "data.types=null", "data.annotates=[problem]"), "data.annotates", "no_effect",
     ["lm"]),
    ("data.annotates={elsewhere: [problem]}", "data.annotates", "unknown_name", ["'elsewhere'"]),
    ("data.relations=[severity]", "data.relations", "no_effect", []),
    (("task={name: lm}", "data.types=null", "data.modifiers=clinical"), "data.modifiers", "no_effect", []),
    (("task={name: classify}", "data.types=[problem]"), "data.types", "no_effect",
     ["classify", "the command line"]),
    ("report.small_counts=some", "report.small_counts", "unknown_name", ["'auto', 'hide' or 'show'"]),
]  # fmt: skip
CLIENTS: Sequence[Row] = [
    ("federation.dropout=1.0", "federation.dropout", "out_of_range", []),
    ("federation.dropout=-0.1", "federation.dropout", "out_of_range", []),
    ("federation.dropout=high", "federation.dropout", "wrong_type", []),
    ("federation.corrupt={share: 0.1, kind: shuffled_labels, strength: 2.0}", "federation.corrupt",
     "no_effect", ["strength=2", "'shuffled"]),
    ("federation.corrupt={share: 0.3, clients: [site-1]}", "federation.corrupt", "conflict",
     ["share", "clients"]),
    ("federation.corrupt={clients: [site-9]}", "federation.corrupt.clients", "unknown_name", ["'site-9'"]),
    ("federation.corrupt={portion: 0.5}", "federation.corrupt", "no_effect", ["portion"]),
    ("federation.corrupt={share: 0.3, portion: 0.5, kind: scale}", "federation.corrupt", "no_effect",
     ["portion=0.5", "'scale'"]),
    ("federation.corrupt={share: 1.0}", "federation.corrupt.share", "out_of_range", ["1.0"]),
    ("federation.corrupt={share: 0.1, kind: noise}", "federation.corrupt.kind", "unknown_name",
     ["'shuffled_labels'"]),
    ("federation.corrupt={share: 0.1, kind: scale, strength: 0.0}", "federation.corrupt.strength",
     "out_of_range", [0]),
    ("devices.as_model=llama-9", "devices.as_model", "unknown_name", ["bert-large, ", "'llama-9'"]),
    ("devices.as_model={hidden_size: 4}", "devices.as_model", "missing", ["model_type"]),
    (f"devices.as_model={TWO_BLOCKS}", "devices.as_model", "out_of_range", ["2 blocks", 3]),
    ("devices.as_model={model_type: llama, hiden_size: 4}", "devices.as_model", "unknown_key",
     ["config.hiden_size", "LlamaConfig"]),
]  # fmt: skip
RULES: Sequence[Row] = [
    (fedavg("medain"), "method.aggregation.rule", "unknown_name", ["'mean', 'median'", "'medain'"]),
    (fedavg("{hostile: 0.1}"), "method.aggregation.hostile", "unknown_key", ["trimmed_mean", "krum"]),
    (fedavg("{rule: krum, hostile: 0.5}"), "method.aggregation.hostile", "out_of_range", [0.5]),
    (fedavg("krum"), "method.aggregation", "not_enough_data", ["krum", "5 updates", "f = 1", "and 3 "]),
    ((fedavg("median"), "federation.sample=0.5"), "method.aggregation", "not_enough_data",
     ["median", "3 updates", "2 clients", 0.5]),
    ((fedavg("trimmed_mean"), "federation.min_clients=2"), "federation.min_clients", "out_of_range",
     ["at least 3", "not 2", "trimmed_mean"]),
    ((fedavg("median"), "federation.dropout=0.1"), "federation.min_clients", "missing", ["3 or more"]),
    ((fedavg("{rule: multi_krum, keep: 5}"), FIVE), "method.aggregation.keep", "out_of_range",
     ["at most 4", "not 5"]),
    ("method={name: local_only, aggregation: median}", "method.aggregation", "unknown_key",
     ["layer_skipping", "fedavg", "fedprox"]),
    ("method={name: centralized, aggregation: median}", "method.aggregation", "unknown_key", []),
]  # fmt: skip
REFUSED: Mapping[tuple[str, ...], Sequence[Row]] = {
    TINY: [*DATA, *CLIENTS, *RULES],
    WITHOUT_TYPES: [
        (("data.types=[problem, tset]", "task.types=[problem, test]"), "data.types", "not_found", ["'tset'"]),
        (("data.types=[problem, test]", "task.types=[problem, test, tset]"), "task.types", "not_found",
         ["'tset'", "'test'"]),
        (("data.types=[problem, test]", "task.types=[problem]"), "task.types", "missing", ["'test'"]),
        ("task.types=[problem, problem]", "task.types", "duplicate", ["'problem'"]),
        ("task={name: relations, types: [none, severity]}", "task", "reserved", ["'none'"]),
        ("task={name: classify, problem_type: single_label, labels: [a]}", "task", "out_of_range", []),
        (("task={name: classify}", "data.relations=[severity]"), "data.relations", "no_effect", []),
    ],
    SECURE: [
        ("federation.sample=0.5", "privacy.secure_aggregation", "not_enough_data", ["3 to 64", "and 4"]),
        ("privacy.survivors=5", "privacy.survivors", "not_enough_data", ["5 to 64", "and 4"]),
        (("privacy.secure_aggregation=false", "privacy.range=2"), "privacy", "no_effect", ["range"]),
        ("privacy={mechanism: central, secure_aggregation: true, sigma: 1, delta: 0.01}", "privacy",
         "conflict", ["mechanism 'local'"]),
        ((fedavg("median"), "federation.min_clients=3"), "privacy.secure_aggregation", "not_supported",
         ["median", "method.aggregation: mean"]),
        ("method={name: fedtlu, selection: sketched}", "privacy.secure_aggregation", "not_supported",
         ["selection: exact"]),
        ("method={name: layer_skipping, top: auto}", "privacy.secure_aggregation", "not_supported",
         ["method.top"]),
        ("method={name: local_only}", "privacy.secure_aggregation", "not_supported", ["local_only"]),
        ("method={name: centralized}", "privacy.secure_aggregation", "not_supported", ["use fedavg"]),
    ],
    LM: [
        ("task={name: lm, stride: 8}", "task.stride", "unknown_key", []),
        ("data.types=[drug]", "data.types", "no_effect", ["lm"]),
        ("task={name: lm, max_length: 65}", "task.max_length", "out_of_range", [64]),
        ("model.init=pretrained", "model", "conflict", ["`init: random`"]),
        ("model.tokenizer={train: bytes, vocabulary: 100}", "model.tokenizer", "out_of_range",
         ["vocabulary", 258]),
        ("model.tokenizer={train: bytes, split: blanks}", "model.tokenizer", "no_effect", ["split='blanks'"]),
        ("model.tokenizer={train: letters}", "model.tokenizer.train", "unknown_name", ["'words' or 'bytes'"]),
        (NO_HEADS_BEHIND, "model.config.is_causal", "sees_ahead", ["false"]),
        ("model.config={model_type: gpt2, n_layer: 1, n_head: 2, n_embd: 16, vocab_size: 9}",
         "model.tokenizer", "conflict", ["has 9"]),
        ("federation.metric=f1", "federation.metric", "unknown_name", ["'f1'"]),
    ],
}  # fmt: skip


@pytest.mark.parametrize(
    ("base", "overrides", "path", "code", "values"),
    [
        pytest.param(base, *row, id=row[0] if isinstance(row[0], str) else ", ".join(row[0]))
        for base, rows in REFUSED.items()
        for row in rows
    ],
)
def test_what_cannot_be_is_refused_where_it_was_set(
    base: tuple[str, ...], overrides: str | tuple[str, ...], path: str, code: str, values: list[object]
) -> None:
    own = (overrides,) if isinstance(overrides, str) else overrides
    with refused(ConfigurationError, code, at=path, values=values) as caught:
        prepare(read_source(None, [*base, *own]))
    assert {where for where, _ in problems_of(caught.value)} == {path}
