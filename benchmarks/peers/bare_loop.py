"""FedAvg as a bare PyTorch loop, in as many processes as asked: what the workload cannot do without.

python bare_loop.py PROCESSES THREADS
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, multiprocessing, nn
from workload import articles, batches_of, examples_of, mark, new_model, schedule, score, sizes, train

State = dict[str, Tensor]
Update = tuple[int, State]
"""A client's number of examples, and its weights."""


def trained(model: nn.Module, number: int, client: int, state: State) -> Update:
    """Trains a client's model; what is returned aliases it."""
    model.load_state_dict(state)
    seed = 1000 * number + client
    torch.manual_seed(seed)
    _, count = train(model, batches_of(examples_of(client), seed))
    return count, model.state_dict()


def work(todo: Any, done: Any, threads: int) -> None:
    """Trains what comes, in a process of its own."""
    torch.set_num_threads(threads)
    model = new_model()
    articles()
    while (job := todo.get()) is not None:
        count, state = trained(model, *job)
        done.put((count, {name: tensor.clone() for name, tensor in state.items()}))
        del job, state  # or the memory they share would live until the next


def loop(updates_of: Callable[[int, Sequence[int], State], Iterator[Update]], threads: int) -> None:
    """Averages, round after round, what comes of a round's clients."""
    model = new_model()
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    articles()
    mark("ready")
    for number, clients in enumerate(schedule()):
        total = sum(sizes()[client] for client in clients)
        mean = {name: torch.zeros_like(tensor) for name, tensor in state.items()}
        for count, own in updates_of(number, clients, state):
            for name, tensor in own.items():
                mean[name].add_(tensor, alpha=count / total)
            del own, tensor
        state = mean
        mark("round")
    model.load_state_dict(state)
    score(model, threads)


def main() -> None:
    processes, threads = map(int, sys.argv[1:])
    torch.set_num_threads(threads)
    if processes == 1:
        model = new_model()
        loop(
            lambda number, clients, state: (trained(model, number, each, state) for each in clients), threads
        )
        return
    context = multiprocessing.get_context("spawn")
    todo, done = context.Queue(), context.Queue()
    workers = [context.Process(target=work, args=(todo, done, threads)) for _ in range(processes)]
    for worker in workers:
        worker.start()

    def updates_of(number: int, clients: Sequence[int], state: State) -> Iterator[Update]:
        for client in clients:
            todo.put((number, client, state))
        for _ in clients:
            yield done.get()

    loop(updates_of, processes * threads)
    for _ in workers:
        todo.put(None)
    for worker in workers:
        worker.join()


if __name__ == "__main__":
    main()
