"""Reading a text back token by token, by somebody who has A.

Not in FL-LLaMA, whose attacker does not know A. A server does know it where clients' parts are averaged
(`average_ends`), and nearly where they are not, since all begin with a published model. The hidden state of a
token then depends on nothing but that token and, if A is causal, those before it: whoever runs A on every
token of the vocabulary behind those that were found already sees which one gives the state that came. Nothing
is trained, and nobody colludes.
"""

import copy
import inspect
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache

from fedstrata.models.blocks import transformers_model
from fedstrata.split.ends import Ends

_CANDIDATES_AT_A_TIME = 1024


def can_search(ends: Ends) -> bool:
    """Whether a text can be searched for from its beginning: A is causal, and keeps keys and values."""
    inner = transformers_model(ends.module)
    if "past_key_values" not in inspect.signature(inner.base_model.forward).parameters:
        return False
    ids = torch.arange(6, device=next(ends.module.parameters()).device).view(2, 3)
    ids[1, :2] = ids[0, :2]
    with torch.inference_mode():
        one, other = ends.front(lambda: ends.module(input_ids=ids)).states[:, :2].float()
    return bool(torch.allclose(one, other, rtol=1e-3, atol=1e-5))


@torch.inference_mode()
def search(sent: Sequence[Tensor], ends: Ends, vocabulary: int, most: int) -> list[Tensor]:
    """Returns the first tokens of each text, found one after the other.

    Args:
        sent: The hidden states of each text that reached the server, (tokens, hidden) float32.
        ends: The client's side, in evaluation mode, of which A is run; `can_search` must hold.
        vocabulary: How many tokens there are.
        most: Tokens that are searched for in each text.

    Returns:
        For each text (at most `most`,) int64.
    """
    config: Any = transformers_model(ends.module).config
    everything = torch.arange(vocabulary, device=next(ends.module.parameters()).device)
    chunks = torch.split(everything, _CANDIDATES_AT_A_TIME)
    found = []
    for states in sent:
        known = DynamicCache(config=config.get_text_config(decoder=True))
        tokens: list[Tensor] = []
        for state in states[:most]:
            distances = [_states(ends, chunk, known).sub_(state).norm(dim=-1) for chunk in chunks]
            tokens.append(torch.cat(distances).argmin())
            _run(ends, tokens[-1].view(1, 1), known)
        found.append(torch.stack(tokens))
    return found


def _states(ends: Ends, candidates: Tensor, known: DynamicCache) -> Tensor:
    """Returns what A gives for each candidate behind what is known, (candidates, hidden) float32."""
    cache = copy.deepcopy(known)
    cache.batch_repeat_interleave(len(candidates))
    return _run(ends, candidates[:, None], cache)[:, 0].float()


def _run(ends: Ends, ids: Tensor, cache: DynamicCache) -> Tensor:
    """Returns what A gives for tokens behind those of a cache, which has them too afterwards."""
    return ends.front(lambda: ends.module(input_ids=ids, past_key_values=cache, use_cache=True)).states
