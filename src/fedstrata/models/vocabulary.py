"""Cutting the vocabulary of a causal language model to the tokens of given texts.

Most of a small language model is its embedding: of Gemma 3 270M 168 of 268 million parameters, for 262,144
tokens, of which clinical text uses a tenth. A cut keeps the rows of some tokens and gives them new ids, in
the old order. What makes it exact, for byte-pair encoding (BPE):

1. BPE applies at every step the merge of lowest rank among adjacent pairs. A merge across the border of a
   token of the result was never applied, so a token is built by the same merges, alone or within a text:
   its *derivation*. Where several merges give one string, it need not be the first of them.
2. The set of kept tokens is closed under derivation, and the merges keep their order. Then a text is split as
   before if, and only if, all its original tokens are kept.
3. Any other text is spelled by shorter tokens, down to bytes, all of which are kept.

Log-probabilities become those of the whole model minus log P(kept tokens), so that losses and perplexities
of a cut model must not be compared with those of the whole one. An adapter that leaves embedding and head
alone fits the whole model too.
"""

from __future__ import annotations

import hashlib
import json
import re
import tempfile
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import Tensor, nn
from transformers import AutoTokenizer, PretrainedConfig, PreTrainedModel
from transformers.convert_slow_tokenizer import bytes_to_unicode

from fedstrata.core.errors import refused
from fedstrata.models.transformers_calls import quiet

SETTING = "model.vocabulary"
KEPT_TOKENS = "kept_tokens"
"""The key of tokenizer_config.json that lists the original ids of the kept tokens, by new id."""

_UNUSED = re.compile(r"<\|?(unused|reserved|extra)[_a-z]*\d+\|?>")
"""Added tokens that stand for nothing. Every other added token is kept."""
_BYTE = re.compile(r"<0x[0-9A-F]{2}>")
_TOKEN_IDS = re.compile(r".*_token_ids?|.*_token_index|(suppress|begin_suppress|bad_words|forced).*")
"""Names of settings of config.json and generation_config.json that hold token ids."""
_NAMED_TOKENS = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")
_REFUSED_BPE = ("dropout", "continuing_subword_prefix", "end_of_word_suffix", "ignore_merges")
"""Settings of a BPE tokenizer with which tokens are not built by the rule above."""
_SPACE, _BYTE_SPACE = "\u2581", "\u0120"
_LINE_ENDS = (("\n", "\r\n"), ("\u010a", "\u010d\u010a"))
"""The two line ends, as characters and as byte-level tokens spell them."""
_NEVER = 1 << 60

Pair = tuple[str, str]


def kept_tokens(tokenizer: Any) -> list[int] | None:
    """Returns the original ids of a cut tokenizer's tokens, by new id; None if it was not cut."""
    kept: list[int] | None = tokenizer.init_kwargs.get(KEPT_TOKENS)
    return kept


def kept_tokens_in(folder: Path) -> list[int] | None:
    """Returns the original ids of the tokens of the cut tokenizer in a folder; None if there is none."""
    try:
        found = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
        kept: list[int] | None = found.get(KEPT_TOKENS)
    except (OSError, ValueError, AttributeError):
        return None
    return kept


def digest_of(kept: Sequence[int]) -> str:
    """Returns the SHA-256 of a list of kept tokens."""
    return hashlib.sha256(json.dumps(kept, separators=(",", ":")).encode()).hexdigest()


def cut_tokenizer(tokenizer: Any, texts: Iterable[str]) -> Any:
    """Cuts a tokenizer to the tokens of texts.

    Kept are the tokens of the texts and of the chat template, each also without its leading blank and with
    one (markup puts words behind a tag, without a blank), with both line ends, all bytes and printable
    ASCII, and all added tokens but unused ones; and what these are derived from.

    Args:
        tokenizer: A fast tokenizer.
        texts: What must be split as before.

    Returns:
        Another tokenizer of the same class, whose `tokenizer_config.json` lists the kept tokens.

    Raises:
        ConfigurationError: It is not BPE, or has a setting with which the rule does not hold.
    """
    raw = bpe_parts(tokenizer)
    vocabulary: dict[str, int] = raw["model"]["vocab"]
    byte_level = "ByteLevel" in json.dumps([raw.get("pre_tokenizer"), raw.get("decoder")])
    by_id = {number: token for token, number in vocabulary.items()}
    used = _used_ids(tokenizer.backend_tokenizer, [*texts, *_chat_texts(tokenizer)])
    tokens = _with_variants((by_id[number] for number in used if number in by_id), vocabulary, byte_level)
    tokens |= _smallest(vocabulary, byte_level=byte_level)
    tokens |= {unknown} if (unknown := raw["model"].get("unk_token")) else set()
    kept, merges = derived(tokens, merge_ranks(raw["model"]["merges"]))
    named = {getattr(tokenizer, f"{name}_token", None) for name in _NAMED_TOKENS}
    old = _cut_backend(raw, kept, merges, named)
    return _with_backend(tokenizer, raw, old)


def bpe_parts(tokenizer: Any) -> dict[str, Any]:
    """Returns what tokenizer.json holds of a tokenizer that can be cut.

    Raises:
        ConfigurationError: It is not BPE, or the rule of derivation does not hold for it.
    """
    raw: dict[str, Any] = json.loads(tokenizer.backend_tokenizer.to_str())
    model = raw["model"]
    if model["type"] != "BPE":
        message = f"needs a BPE tokenizer; this model's {type(tokenizer).__name__} is {model['type']}"
        raise refused(SETTING, message, "not_supported")
    for name in _REFUSED_BPE:
        if model.get(name):
            raise refused(SETTING, f"cannot cut a BPE tokenizer with {name}={model[name]!r}", "not_supported")
    return raw


def merge_ranks(merges: Iterable[Sequence[str] | str]) -> dict[Pair, int]:
    """Returns the rank of each pair that BPE merges; of a pair that stands twice the first."""
    ranks: dict[Pair, int] = {}
    for rank, merge in enumerate(merges):
        first, second = merge.split(" ") if isinstance(merge, str) else merge
        ranks.setdefault((first, second), rank)
    return ranks


def derivation(token: str, ranks: Mapping[Pair, int]) -> list[Pair] | None:
    """Returns the merges by which BPE builds a token, in order; None if it never builds it."""
    symbols, applied = list(token), []
    while len(symbols) > 1:
        pairs = list(pairwise(symbols))
        best = min(pairs, key=lambda pair: ranks.get(pair, _NEVER))
        if best not in ranks:
            return None
        place = pairs.index(best)
        symbols[place : place + 2] = ["".join(best)]
        applied.append(best)
    return applied


def derived(tokens: Iterable[str], ranks: Mapping[Pair, int]) -> tuple[set[str], set[Pair]]:
    """Closes a set of tokens under derivation; returns it with the merges that build its tokens."""
    kept, merges = set(tokens), set[Pair]()
    for token in list(kept):
        for pair in derivation(token, ranks) or ():
            merges.add(pair)
            kept.update((*pair, "".join(pair)))
    return kept, merges


def cut_config(config: PretrainedConfig, kept: Sequence[int]) -> None:
    """Gives a configuration the size of the cut vocabulary and its new token ids, in place."""
    new = {old: number for number, old in enumerate(kept)}
    for part in {id(each): each for each in (config, config.get_text_config())}.values():
        _remap(part, new)
        part.vocab_size = len(kept)


def cut_module(module: PreTrainedModel, kept: Sequence[int]) -> None:
    """Keeps the rows of these tokens in a model's embedding and head, in place; tied ones stay tied.

    Parts that are not there, as in a client's part of a divided model, are passed over.

    Args:
        module: The whole model, or a part of it.
        kept: The original id of each new one.
    """
    new, rows = {old: number for number, old in enumerate(kept)}, torch.tensor(kept)
    embedding, head = module.get_input_embeddings(), module.get_output_embeddings()
    tied = embedding is not None and head is not None and embedding.weight is head.weight
    for layer in (embedding, head):
        if layer is None or getattr(layer, "weight", None) is None:
            continue
        if tied and layer is head:
            layer.weight = embedding.weight
        else:
            layer.weight = _rows(layer.weight, rows)
        if getattr(layer, "bias", None) is not None:
            layer.bias = _rows(layer.bias, rows)
        _resize(layer, len(kept), new)
    for part in module.modules():
        if isinstance(getattr(part, "vocab_size", None), int):
            part.vocab_size = len(kept)
    if module.can_generate():
        _remap(module.generation_config, new)


def _rows(parameter: Tensor, rows: Tensor) -> nn.Parameter:
    return nn.Parameter(parameter.detach()[rows], requires_grad=parameter.requires_grad)


def _resize(layer: Any, count: int, new: Mapping[int, int]) -> None:
    """Writes the number of tokens, and the row of the padding token, into the attributes of a layer."""
    if hasattr(layer, "num_embeddings"):
        layer.num_embeddings = count
        layer.padding_idx = None if layer.padding_idx is None else new.get(layer.padding_idx)
    if hasattr(layer, "out_features"):
        layer.out_features = count


def _remap(settings: Any, new: Mapping[int, int]) -> None:
    """Replaces the token ids among an object's attributes; ids of tokens that were cut become None."""
    for name, value in list(vars(settings).items()):
        if _TOKEN_IDS.fullmatch(name.removeprefix("_")):
            setattr(settings, name, _remapped(value, new))


def _remapped(value: Any, new: Mapping[int, int]) -> Any:
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, int):
        return new.get(value)
    if isinstance(value, list | tuple):
        found = [_remapped(each, new) for each in value]
        return [each for each in found if each is not None]
    return value


def _used_ids(backend: Tokenizer, texts: Sequence[str]) -> set[int]:
    used: set[int] = set()
    for encoding in backend.encode_batch(list(texts), add_special_tokens=False):
        used.update(encoding.ids)
    return used


def _chat_texts(tokenizer: Any) -> Iterator[str]:
    """Yields what the chat template writes around turns, and the template itself."""
    if not getattr(tokenizer, "chat_template", None):
        return
    turns = [{"role": role, "content": "x"} for role in ("user", "assistant", "user")]
    for system in ([], [{"role": "system", "content": "x"}]):
        for begins in (True, False):
            try:
                yield tokenizer.apply_chat_template(
                    [*system, *turns], tokenize=False, add_generation_prompt=begins
                )
            except Exception:  # noqa: S112 - whatever a template raises where it has no such role
                continue
    yield str(tokenizer.chat_template)


def _smallest(vocabulary: Collection[str], *, byte_level: bool) -> set[str]:
    """Returns the tokens that spell any text: all bytes, printable ASCII and white space."""
    if byte_level:
        return {*bytes_to_unicode().values()} & set(vocabulary)
    kept = {token for token in vocabulary if _BYTE.fullmatch(token)}
    if len(kept) < 256:
        raise refused(
            SETTING,
            f"needs a tokenizer with a token for every byte; this one has {len(kept)}",
            "lacks_tokens",
        )
    return kept | ({chr(code) for code in range(32, 127)} | {_SPACE, "\n", "\t"}) & set(vocabulary)


def _with_variants(tokens: Iterable[str], vocabulary: Collection[str], byte_level: bool) -> set[str]:
    """Adds each token without its leading blank, with one, and with the other line end."""
    blank = _BYTE_SPACE if byte_level else _SPACE
    kept = set(tokens)
    kept |= {token[1:] for token in kept if token.startswith(blank)}
    kept |= {blank + token for token in kept if token.isalpha()}
    for one, other in _LINE_ENDS:
        kept |= {token.replace(other, one) for token in kept if other in token}
        kept |= {token.replace(one, other) for token in kept if one in token and other not in token}
    return kept & set(vocabulary)


def _cut_backend(
    raw: dict[str, Any], kept: Collection[str], merges: Collection[Pair], named: Collection[str | None]
) -> list[int]:
    """Cuts what tokenizer.json holds, in place; returns the original id of each new one."""
    model = raw["model"]

    def stays(token: str) -> bool:
        return token in named or not _UNUSED.fullmatch(token)

    added = [token for token in raw["added_tokens"] if stays(token["content"])]
    in_model = {token: model["vocab"][token] for token in kept if stays(token)}
    old = sorted({*(token["id"] for token in added), *in_model.values()})
    new = {number: place for place, number in enumerate(old)}
    in_model |= {token: number for token, number in model["vocab"].items() if number in new}
    order = sorted(in_model.items(), key=lambda item: item[1])
    model["vocab"] = {token: new[number] for token, number in order}
    model["merges"] = [merge for merge in model["merges"] if tuple(merge) in merges]
    raw["added_tokens"] = [{**token, "id": new[token["id"]]} for token in added]
    for part in _processors(raw.get("post_processor")):
        for special in part.get("special_tokens", {}).values():
            special["ids"] = [new[number] for number in special["ids"]]
        for end in ("sep", "cls"):
            if isinstance(part.get(end), list):
                part[end][1] = new[part[end][1]]
    raw["padding"] = None  # as its users set it
    return old


def _processors(processor: dict[str, Any] | None) -> list[dict[str, Any]]:
    if processor is None:
        return []
    return processor["processors"] if processor["type"] == "Sequence" else [processor]


def _with_backend(tokenizer: Any, raw: Mapping[str, Any], old: list[int]) -> Any:
    """Returns a tokenizer of the same class with another tokenizer.json, by way of a folder."""
    new = {number: place for place, number in enumerate(old)}
    with tempfile.TemporaryDirectory() as folder, quiet():
        tokenizer.save_pretrained(folder)
        (Path(folder) / "tokenizer.json").write_text(json.dumps(raw, ensure_ascii=False), encoding="utf-8")
        path = Path(folder) / "tokenizer_config.json"
        settings = json.loads(path.read_text(encoding="utf-8"))
        if "added_tokens_decoder" in settings:  # an old id would be registered again at its old place
            added = ((int(number), token) for number, token in settings["added_tokens_decoder"].items())
            settings["added_tokens_decoder"] = {
                str(new[number]): token for number, token in added if number in new
            }
        path.write_text(json.dumps({**settings, KEPT_TOKENS: old}), encoding="utf-8")
        cut = AutoTokenizer.from_pretrained(folder, trust_remote_code=False, local_files_only=True)
    for key in ("is_local", "local_files_only"):
        cut.init_kwargs.pop(key, None)
    return cut
