"""How much of a text can be read back from the hidden states that leave a client.

Source: FL-LLaMA, sections 3.2.1 (figure 3) and 4.2.4: the server colludes with one client. It has that
client's texts and the hidden states they give, trains a decoder from states to tokens on them, and reads
other clients' states with it. The decoder is p blocks of the architecture that is attacked, initialised at
random, and a head over the vocabulary; with p = 0 it is a head alone. The paper trains it at a rate of 2e-5;
here it is given a rate at which it learns. The code that the paper's authors released (TAP-LLM/SplitFedLLM)
trains it to name the token *behind* the one that gave a state, and compares what it then names with the
tokens place by place (`Names`): the decoder learns what comes next and is marked as if it had been asked what
is there.

The second attack needs no training: the token of which what enters the first block is nearest to a hidden
state. A server that knows the pretrained model can compute that for every token: its embedding, times
whatever the architecture multiplies it by (Gemma), with the position added and normalised (BERT, GPT-2). The
third one runs A itself: see `fedstrata.privacy.attacks.search`.

Noise is drawn anew whenever a text is sent, and both sides of this can use that: the decoder is trained on
other noise in every epoch, since whoever colludes can make as much of it as it wants, and of a text that was
sent n times the server has the mean, with 1 / sqrt(n) of the noise. (While A learns the states move a little
between two times; that is not in the numbers.)

Padding is left out of everything. Special tokens count as tokens, and are no part of the texts that are
compared.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader
from transformers import AutoModel

from fedstrata.core.cut import Cut
from fedstrata.core.seeding import Seed
from fedstrata.metrics.text import overlap_scores
from fedstrata.models.blocks import transformers_model
from fedstrata.models.state import Model
from fedstrata.privacy.attacks.search import can_search, search_states
from fedstrata.split.divide import ends_of
from fedstrata.split.ends import Ends

IGNORED = -100
BATCH_SIZE, LEARNING_RATE = 16, 1e-3
"""Texts in a step of the decoder's training, and the rate of AdamW."""
SEARCHES = 20
"""Texts that are searched for, at most: each token costs a run of A on the whole vocabulary."""
_TOKENS_AT_A_TIME = 1024
_NUMBERS_AT_A_TIME = 2**24
"""Of a tensor that is only needed for a moment: 64 MiB of float32."""
Names = Literal["same", "next"]
"""Which token a decoder learns to name behind a state: the one that gave it, or the one after that."""
Embed = Callable[[Tensor], Tensor]
"""Gives what enters the first block for ids, (rows, tokens) int64 to (rows, tokens, hidden)."""


@dataclass(frozen=True, slots=True)
class Observed:
    """What A makes of one text, and the text.

    Attributes:
        states: The hidden states without noise, (tokens, hidden) float32.
        tokens: The tokens that gave them, (tokens,) int64.
        deviation: That of the noise which is added whenever they are sent.
    """

    states: Tensor
    tokens: Tensor
    deviation: float = 0.0

    def sent(self, seed: Seed, times: int = 1) -> Observed:
        """Returns what the server has after they were sent so many times: the mean, and of less noise."""
        if not self.deviation:
            return self
        noise = torch.randn(self.states.shape, generator=seed.torch()).to(self.states.device)
        return Observed(self.states + noise * (self.deviation / math.sqrt(times)), self.tokens)


@dataclass(frozen=True, slots=True)
class Leakage:
    """What was read back of texts that the attacker had not seen; from 0 to 1 each.

    Attributes:
        tokens: Share of the tokens that the decoder names.
        nearest: Share of the tokens whose input to the first block is the nearest to their hidden state.
        searched: Share of the first tokens of texts that running A on all tokens finds; none where A is not
            causal, or nothing was searched for.
        rouge2: Of the decoder's texts.
        bleu4: Of the decoder's texts.
    """

    tokens: float
    nearest: float
    searched: float | None
    rouge2: float
    bleu4: float


class Decoder(nn.Module):
    """The attacker's model: blocks of the architecture that it attacks, and a head over the vocabulary.

    Args:
        config: The attacked model's configuration.
        blocks: How many blocks.
        seed: Of its initial weights.
    """

    def __init__(self, config: Any, blocks: int, seed: Seed) -> None:
        super().__init__()
        text = copy.deepcopy(config.get_text_config())
        with seed.everywhere():
            self.body: nn.Module | None = None
            if blocks:
                text.update({text.attribute_map.get("num_hidden_layers", "num_hidden_layers"): blocks})
                self.body = AutoModel.from_config(text).float()  # whatever the attacked one computes in
            self.norm = nn.LayerNorm(text.hidden_size)
            self.head = nn.Linear(text.hidden_size, text.vocab_size)

    def forward(self, states: Tensor, mask: Tensor) -> Tensor:
        """Returns logits, (texts, tokens, vocabulary), for hidden states (texts, tokens, hidden)."""
        if self.body is not None:
            states = self.body(inputs_embeds=states, attention_mask=mask).last_hidden_state
        logits: Tensor = self.head(self.norm(states))
        return logits


def attack(
    known: Sequence[Observed],
    unseen: Sequence[Observed],
    ends: Ends,
    model: Model,
    epochs: int,
    searched: int,
    seed: Seed,
    names: Names = "same",
) -> Leakage:
    """Trains the attacker on one client's texts and lets it read others'.

    Args:
        known: Texts of the colluding client with their states; at least one.
        unseen: Those to be read back, as they were sent; at least one.
        ends: The client's side, in evaluation mode.
        model: The model under attack, for its architecture, its embedding and its tokenizer.
        epochs: How often the attacker goes through the colluding client's texts.
        searched: Tokens of a text that are searched for, from its beginning.
        seed: Of the decoder's weights and the order of the texts.
        names: Which token the decoder learns to name; what it names is compared place by place either way.
    """
    inner = transformers_model(model.module)
    decoder = Decoder(inner.config, ends.cut.front, seed.child("weights")).to(known[0].states.device)
    train(decoder, known, epochs, seed, names)
    batches = (unseen[start : start + BATCH_SIZE] for start in range(0, len(unseen), BATCH_SIZE))
    guesses = [guess for batch in batches for guess in read(decoder, batch)]
    vocabulary = inner.get_input_embeddings().num_embeddings
    closest = nearest(unseen, embedding_of(model), vocabulary)
    texts, truth = (
        model.tokenizer.batch_decode(list(tokens), skip_special_tokens=True)
        for tokens in (guesses, [each.tokens for each in unseen])
    )
    overlap = overlap_scores(texts, truth, rouge=["rouge2"])
    found = _searched(unseen, closest, ends, vocabulary, searched)
    return Leakage(
        _right(guesses, unseen),
        _right(closest, unseen),
        None if found is None else _right(found, unseen),
        overlap["rouge2"],
        overlap["bleu4"],
    )


def _right(guesses: Sequence[Tensor], observed: Sequence[Observed]) -> float:
    """Returns the share of the guessed tokens that are right; guesses may be of the first texts alone."""
    pairs = [(guess, each.tokens[: len(guess)]) for guess, each in zip(guesses, observed, strict=False)]
    return sum(int((guess == own).sum()) for guess, own in pairs) / sum(len(own) for _, own in pairs)


def _searched(
    unseen: Sequence[Observed], closest: Sequence[Tensor], ends: Ends, vocabulary: int, most: int
) -> list[Tensor] | None:
    """Returns the first tokens of the first texts that a search finds; none where it cannot be done."""
    chosen = unseen[:SEARCHES]
    if not most or not chosen:
        return None
    if not ends.cut.front:  # A is what `nearest` compares with
        return [found[:most] for found in closest[: len(chosen)]]
    if not can_search(ends):
        return None
    return search_states([each.states for each in chosen], ends, vocabulary, most)


def train(
    decoder: Decoder, known: Sequence[Observed], epochs: int, seed: Seed, names: Names = "same"
) -> None:
    """Trains the decoder to name the tokens behind hidden states, by cross entropy."""
    order, noise = seed.child("order").torch(), seed.child("noise")
    optimizer = torch.optim.AdamW(decoder.parameters(), lr=LEARNING_RATE, fused=True)
    decoder.train()
    with seed.child("dropout").everywhere():
        for epoch in range(epochs):
            loader: DataLoader[Any] = DataLoader(
                [each.sent(noise.child(epoch, index)) for index, each in enumerate(known)],  # type: ignore[arg-type]
                batch_size=BATCH_SIZE,
                shuffle=True,
                generator=order,
                collate_fn=_padded,
            )
            for states, mask, tokens in loader:
                logits = decoder(states, mask)
                wanted = tokens if names == "same" else F.pad(tokens[:, 1:], (0, 1), value=IGNORED)
                F.cross_entropy(logits.flatten(0, 1), wanted.flatten(), ignore_index=IGNORED).backward()  # type: ignore[no-untyped-call]
                torch.nn.utils.clip_grad_norm_(decoder.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)


@torch.inference_mode()
def read(decoder: Decoder, observed: Sequence[Observed]) -> list[Tensor]:
    """Returns the tokens that the decoder takes each text for, (tokens,) int64 each."""
    decoder.eval()
    states, mask, _ = _padded(observed)
    found = decoder(states, mask).argmax(dim=-1)
    return [row[: len(each.tokens)] for row, each in zip(found, observed, strict=True)]


def embedding_of(model: Model) -> Embed:
    """Returns the step before the first block, as the model itself does it when nothing trains."""
    cut = Cut(0, 0)
    ends = Ends(ends_of(model, cut), cut)
    ends.module.train(False)
    return lambda ids: (
        ends.front(lambda: ends.module(input_ids=ids, attention_mask=torch.ones_like(ids))).states
    )


@torch.inference_mode()
def nearest(observed: Sequence[Observed], embed: Embed, vocabulary: int) -> list[Tensor]:
    """Returns for each text the tokens whose input to the first block is nearest, (tokens,) int64 each.

    Args:
        observed: The texts, at least one.
        embed: The step before the first block; where it knows of positions, a hidden state is compared with
            tokens at its own.
        vocabulary: How many tokens there are.
    """
    lengths = [len(each.states) for each in observed]
    states = nn.utils.rnn.pad_sequence([each.states.float() for each in observed]).contiguous()
    one = observed[0].tokens[:1]  # of a text: RoBERTa gives no positions to padding
    everywhere = embed(one.expand(1, len(states)))
    if torch.allclose(everywhere, everywhere[:, :1]):  # no positions: all places are one
        found = _nearest(states.flatten(0, 1)[None], embed, vocabulary).view(states.shape[:2])
    else:
        found = _nearest(states, embed, vocabulary)
    return [row[:length] for row, length in zip(found.T, lengths, strict=True)]


def _nearest(states: Tensor, embed: Embed, vocabulary: int) -> Tensor:
    """Returns the nearest tokens to hidden states (places, texts, hidden), (places, texts) int64."""
    places, _, hidden = states.shape
    at_a_time = max(1, min(_TOKENS_AT_A_TIME, _NUMBERS_AT_A_TIME // (places * hidden)))
    texts_at_a_time = max(1, _NUMBERS_AT_A_TIME // (places * at_a_time))
    best = states.new_full(states.shape[:2], math.inf)
    found = torch.zeros(states.shape[:2], dtype=torch.long, device=states.device)
    for ids in torch.split(torch.arange(vocabulary, device=states.device), at_a_time):
        vectors = embed(ids[:, None].expand(-1, places)).float().transpose(0, 1)
        for start in range(0, states.shape[1], texts_at_a_time):
            part = slice(start, start + texts_at_a_time)
            distances, indices = torch.cdist(states[:, part], vectors).min(dim=-1)
            nearer = distances < best[:, part]
            best[:, part] = torch.where(nearer, distances, best[:, part])
            found[:, part] = torch.where(nearer, ids[indices], found[:, part])
    return found


def _padded(observed: Sequence[Observed]) -> tuple[Tensor, Tensor, Tensor]:
    """Returns states, mask and tokens of several texts, padded on the right."""
    states = nn.utils.rnn.pad_sequence([each.states for each in observed], batch_first=True)
    tokens = nn.utils.rnn.pad_sequence(
        [each.tokens for each in observed], batch_first=True, padding_value=IGNORED
    )
    return states, (tokens != IGNORED).long(), tokens
