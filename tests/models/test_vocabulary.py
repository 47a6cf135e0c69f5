"""A cut vocabulary: texts are split as before, losses differ by log P(kept) alone, ids are new everywhere."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from functools import cache
from typing import Any

import pytest
import torch
from support import REPOSITORY, refused
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from torch.nn.functional import cross_entropy
from transformers import GenerationConfig, PreTrainedTokenizerFast
from transformers.models.llama import LlamaConfig, LlamaForCausalLM

import fedstrata as fs
from fedstrata.core.errors import ConfigurationError
from fedstrata.models.vocabulary import (
    cut_config,
    cut_module,
    cut_tokenizer,
    derivation,
    kept_tokens,
    merge_ranks,
)

SPECIAL = ["<pad>", "<s>", "</s>", "<unk>", "</span>", "<unused0>", "<unused1>"]
CHAT = "{% for turn in messages %}<{{ turn['role'] }}>{{ turn['content'] }}\n{% endfor %}"


@cache
def pages() -> list[str]:
    """What a tokenizer is trained on besides notes: text whose tokens notes do not need."""
    paths = (REPOSITORY / name for name in ("CONTRIBUTING.md", "README.md", "LICENSE"))
    return [line for path in paths for line in path.read_text(encoding="utf-8").splitlines(keepends=True)]


@cache
def corpus() -> list[str]:
    """Lines of notes."""
    notes = (note for own in fs.synth(sites=2, notes=24, seed=1).values() for note in own)
    return [line for note in notes for line in note.text.splitlines(keepends=True)]


def bytewise() -> Tokenizer:
    """As GPT-2 and Qwen have it: tokens are of bytes."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend.train_from_iterator(
        [*corpus(), *pages()],
        trainers.BpeTrainer(vocab_size=2000, initial_alphabet=alphabet, show_progress=False),
    )
    backend.add_special_tokens(SPECIAL[:4])
    backend.add_tokens(SPECIAL[4:])
    return backend


def with_byte_fallback() -> Tokenizer:
    """As Gemma has it: tokens are of characters, others are spelled by bytes, strings have several merges."""
    backend = Tokenizer(models.BPE())
    backend.normalizer = normalizers.Replace(" ", "\u2581")
    backend.train_from_iterator(
        [*corpus(), *pages()],
        trainers.BpeTrainer(vocab_size=2000, special_tokens=SPECIAL[:4], show_progress=False),
    )
    raw = json.loads(backend.to_str())
    model, draw = raw["model"], random.Random(0)  # noqa: S311
    for code in range(256):
        model["vocab"][f"<0x{code:02X}>"] = len(model["vocab"])
    for token in [token for token in model["vocab"] if len(token) > 2 and token not in SPECIAL][::2]:
        halves = [(token[:at], token[at:]) for at in range(1, len(token))]
        others = [list(pair) for pair in halves if all(half in model["vocab"] for half in pair)]
        for pair in others:
            if pair not in model["merges"]:
                model["merges"].insert(draw.randrange(len(model["merges"])), pair)
    model |= {"byte_fallback": True, "unk_token": "<unk>"}
    backend = Tokenizer.from_str(json.dumps(raw))
    backend.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    backend.add_tokens(SPECIAL[4:])
    return backend


BACKENDS = {"bytes": bytewise, "characters": with_byte_fallback}


@cache
def whole(kind: str) -> Any:
    backend = BACKENDS[kind]()
    backend.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", backend.token_to_id("<s>"))]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token="<pad>",
        bos_token="<s>",
        eos_token="</s>",
        unk_token="<unk>",
        chat_template=CHAT,
    )


@cache
def cut(kind: str) -> Any:
    return cut_tokenizer(whole(kind), corpus()[:150])


def new_ids(kind: str) -> dict[int, int]:
    kept = kept_tokens(cut(kind))
    assert kept is not None
    return {old: new for new, old in enumerate(kept)}


def random_strings(count: int) -> list[str]:
    ranges = [(32, 127), (0, 32), (0xA0, 0x250), (0x370, 0x400), (0x600, 0x700), (0x4E00, 0x9FFF)]
    draw, strings = random.Random(1), []  # noqa: S311
    for _ in range(count):
        letters = [chr(draw.randrange(*draw.choice(ranges))) for _ in range(draw.randint(1, 30))]
        letters.insert(draw.randrange(len(letters)), draw.choice([" fever", "</span>", "\r\n", "<unused1>"]))
        strings.append("".join(letters))
    return strings


@pytest.mark.parametrize("kind", BACKENDS)
def test_texts_are_split_as_before(kind: str) -> None:
    before, after, new = whole(kind), cut(kind), new_ids(kind)
    assert len(after) < 0.8 * len(before)
    texts = [*corpus()[:150], before.apply_chat_template([{"role": "user", "content": "x"}], tokenize=False)]
    expected = [[new.get(each) for each in row] for row in before(texts)["input_ids"]]
    assert after(texts)["input_ids"] == expected


@pytest.mark.parametrize("kind", BACKENDS)
def test_any_text_comes_back_as_before(kind: str) -> None:
    def again(tokenizer: Any) -> list[str]:
        rows = tokenizer(random_strings(300), add_special_tokens=False)["input_ids"]
        return [tokenizer.decode(row, clean_up_tokenization_spaces=False) for row in rows]

    assert again(cut(kind)) == again(whole(kind))


@pytest.mark.parametrize("kind", BACKENDS)
def test_a_token_is_derived_as_it_is_built(kind: str) -> None:
    """Held against the library: it builds a token with the merges of its derivation and no other."""
    raw = json.loads(whole(kind).backend_tokenizer.to_str())
    ranks = merge_ranks(raw["model"]["merges"])
    first: dict[str, tuple[str, str]] = {}
    for pair in ranks:
        first.setdefault("".join(pair), pair)
    other = 0
    for token in list(first)[::5]:
        merges = derivation(token, ranks)
        if merges is None:
            continue
        assert "".join(merges[-1]) == token
        other += merges[-1] != first[token]
        alone = dict.fromkeys(("pre_tokenizer", "normalizer", "post_processor"))
        model = {**raw["model"], "merges": sorted(set(merges), key=ranks.__getitem__)}
        own = Tokenizer.from_str(json.dumps({**raw, **alone, "model": model}))
        assert own.encode(token).tokens == [token]
    assert (other > 20) == (kind == "characters"), "the test needs strings that several merges give"


@pytest.mark.parametrize("kind", BACKENDS)
def test_markup_finds_words_without_their_blank(kind: str) -> None:
    """In no text a word stands right behind `">`, and in an answer it does."""
    before, after, new = whole(kind), cut(kind), new_ids(kind)
    ids, found = (each.encode("patient", add_special_tokens=False) for each in (before, after))
    assert found == [new[each] for each in ids]


@pytest.mark.parametrize("kind", BACKENDS)
def test_added_tokens_stay_unless_they_stand_for_nothing(kind: str) -> None:
    tokens = cut(kind).get_vocab()
    assert {*SPECIAL[:5]} <= tokens.keys()
    assert not {*SPECIAL[5:]} & tokens.keys()
    assert cut(kind).eos_token_id == tokens["</s>"]


def tiny(tokenizer: Any, *, tied: bool) -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer) + 5,  # rows beyond the tokenizer, as Qwen has them
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        tie_word_embeddings=tied,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    module = LlamaForCausalLM(config).eval()
    unused = tokenizer.get_vocab()["<unused0>"]
    module.generation_config = GenerationConfig(
        eos_token_id=[tokenizer.eos_token_id, unused], suppress_tokens=[unused], max_new_tokens=5
    )
    return module


def cut_model(kind: str, *, tied: bool) -> LlamaForCausalLM:
    module, kept = tiny(whole(kind), tied=tied), kept_tokens(cut(kind))
    assert kept is not None
    cut_module(module, kept)
    cut_config(module.config, kept)
    return module


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("kind", BACKENDS)
def test_losses_differ_by_the_probability_of_what_was_cut_off(kind: str, *, tied: bool) -> None:
    new, before, after = new_ids(kind), tiny(whole(kind), tied=tied), cut_model(kind, tied=tied)
    ids = whole(kind)("".join(corpus()[:9]))["input_ids"][:60]

    def losses(module: Any, row: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor]:
        with torch.inference_mode():
            logits = module(input_ids=torch.tensor([row])).logits[0, :-1]
        return cross_entropy(logits, torch.tensor(row[1:]), reduction="none"), logits

    full, logits = losses(before, ids)
    log_kept = logits[:, list(new)].logsumexp(-1) - logits.logsumexp(-1)
    assert log_kept.max() < -0.01
    torch.testing.assert_close(losses(after, [new[each] for each in ids])[0], full + log_kept)


@pytest.mark.parametrize("tied", [True, False])
def test_every_token_id_of_a_configuration_is_new(*, tied: bool) -> None:
    module, tokenizer = cut_model("bytes", tied=tied), cut("bytes")
    config = module.config
    ids = (config.pad_token_id, config.bos_token_id, config.eos_token_id)
    assert ids == (tokenizer.pad_token_id, tokenizer.bos_token_id, tokenizer.eos_token_id)
    assert config.vocab_size == len(tokenizer) == module.get_input_embeddings().num_embeddings
    assert module.generation_config.eos_token_id == [tokenizer.eos_token_id]
    assert module.generation_config.suppress_tokens == []
    assert (module.lm_head.weight is module.model.embed_tokens.weight) == tied
    assert module.model.embed_tokens.padding_idx == tokenizer.pad_token_id


def test_a_saved_tokenizer_knows_what_was_kept(tmp_path: Any) -> None:
    cut("characters").save_pretrained(tmp_path)
    again = PreTrainedTokenizerFast.from_pretrained(tmp_path)
    assert kept_tokens(again) == kept_tokens(cut("characters"))
    assert again(corpus()[0])["input_ids"] == cut("characters")(corpus()[0])["input_ids"]
    assert kept_tokens(whole("characters")) is None


def other_kind(kind: str) -> Tokenizer:
    if kind == "Unigram":
        return Tokenizer(models.Unigram([("a", 0.0)]))
    if kind == "WordPiece":
        return Tokenizer(models.WordPiece({"[UNK]": 0, "a": 1}, unk_token="[UNK]"))
    return Tokenizer(models.BPE({"a": 0, "b": 1, "ab": 2}, [("a", "b")], ignore_merges=True))


@pytest.mark.parametrize("kind", ["Unigram", "WordPiece", "ignore_merges"])
def test_a_tokenizer_of_another_kind_is_refused_by_name(kind: str) -> None:
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=other_kind(kind), pad_token="a")
    with refused(ConfigurationError, "not_supported", at="model.vocabulary", values=[kind]):
        cut_tokenizer(tokenizer, ["a"])
