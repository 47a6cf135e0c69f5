"""What a run will train, send and cost, as tables and lines."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

from fedstrata.display.tables import new_table, say
from fedstrata.record.words import duration, epsilon, limited_to, plural, size

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from fedstrata.planning.plan import GroupPlan, RunPlan
    from fedstrata.planning.privacy import PrivacyPlan

CLIENTS_SHOWN = 12
TIMES = {
    "train_seconds": "training",
    "serve_seconds": "the server's part of the model",
    "evaluate_seconds": "scoring",
    "engine_overhead_seconds": "the engine",
    "finish_seconds": "test scores and saving",
}
FILES = {
    "checkpoints_bytes": "checkpoints",
    "stores_bytes": "private tensors",
    "caches_bytes": "caches",
    "models_bytes": "saved models",
    "releases_bytes": "updates kept to be sent again",
    "ledgers_bytes": "ledgers of what was sent",
    "sums_bytes": "records of secure aggregation",
}


def show_plan(console: Console, made: RunPlan) -> None:
    """Prints a plan."""
    console.print(_groups(made))
    console.print(_clients(made))
    if made.privacy is not None and made.privacy.clients:
        console.print(_units(made.privacy))
    for line in _costs(made):
        say(console, line)
    for warning in made.warnings:
        say(console, f"warning: {warning}")


def _groups(made: RunPlan) -> Table:
    """The parts of the model; neighbouring blocks that are treated alike share a row."""
    model = made.model
    title = f"{made.method} on {made.task}: {model['name']}, {model['parameters']:,} parameters"
    table = new_table(title, ("part", "parameters", "size", "trains", "sent down", "sent up"))
    for name, alike in _alike(made.groups):
        parameters = sum(group.parameters for group in alike)
        trainable = sum(group.trainable_parameters for group in alike)
        share = "yes" if trainable == parameters else f"{100 * trainable / parameters:.1f} %"
        table.add_row(
            name,
            f"{parameters:,}" if parameters else "-",
            size(sum(group.bytes for group in alike) or None),
            share if trainable else "-",
            size(sum(group.bytes_down for group in alike) or None),
            size(sum(group.bytes_up for group in alike) or None),
        )
    return table


def _alike(groups: Sequence[GroupPlan]) -> Iterator[tuple[str, list[GroupPlan]]]:
    """Yields rows: one group, or a stretch of blocks that train and travel alike."""

    def treatment(group: GroupPlan) -> tuple[object, ...]:
        block = group.name.startswith("block ")
        how = (bool(group.trainable_parameters), bool(group.bytes_down), bool(group.bytes_up))
        return (block, *how) if block else (group.name,)

    for _, members in groupby(groups, key=treatment):
        alike = list(members)
        first, last = alike[0].name, alike[-1].name
        yield (first if first == last else f"blocks {first.split()[1]} to {last.split()[1]}"), alike


def _clients(made: RunPlan) -> Table:
    """Who does what; the first clients only where there are many."""
    named = any(client.patients for client in made.clients.values())
    documents = "training documents (patients)" if named else "training documents"
    headings = ("client", documents, "examples", "steps a round", "seconds a round", "rounds")
    table = new_table(f"{plural(made.rounds, 'round')}, judged by {made.metric}", headings)
    shown = list(made.clients.items())[:CLIENTS_SHOWN]
    for name, client in shown:
        steps, seconds = f"{client.steps:,}", f"{client.seconds:.1f}"
        whose = f" ({client.patients['train']:,})" if client.patients else ""
        documents, examples = f"{client.documents['train']:,}{whose}", f"{client.examples:,}"
        table.add_row(name, documents, examples, steps, seconds, f"{client.rounds:,}")
    if len(shown) < len(made.clients):
        table.add_row(f"and {len(made.clients) - len(shown)} more", "", "", "", "", "")
    return table


def _units(made: PrivacyPlan) -> Table:
    """Who declares and has how many units, and what their epsilon will be; of many the first only."""
    title = f"Differential privacy by {made.unit}, {made.adjacency} adjacency, delta {made.delta:g}"
    headings = ("client", f"{made.unit}s declared", "found", "in a step", "epsilon", "with spare turns")
    table = new_table(title, headings)
    for name, own in list(made.clients.items())[:CLIENTS_SHOWN]:
        spent, most = (epsilon(value) for value in (own.epsilon, own.most))
        in_step = f"{own.rate * own.found:.3g}"
        table.add_row(name, f"{own.declared:,}", f"{own.found:,}", in_step, spent, f"at most {most}")
    if len(made.clients) > CLIENTS_SHOWN:
        table.add_row(f"and {len(made.clients) - CLIENTS_SHOWN} more", "", "", "", "", "")
    return table


def _privacy(made: PrivacyPlan) -> Iterator[str]:
    """Says in a line each what is protected, by how much noise, and for how many turns."""
    by_unit = made.mechanism != "central"
    whose = f"a {made.unit}" if by_unit else "a client as a whole, from all but the server"
    most = epsilon(made.epsilon)
    yield (
        f"privacy  {made.mechanism}: epsilon at most {most} at delta {made.delta:g} for {whose}, "
        f"{made.adjacency} adjacency"
    )
    many = "units of a step" if by_unit else "clients of a round"
    over = f"{made.expected:g} expected {many}"
    yield (
        f"         sigma {made.sigma:g} of the clipping norm {made.clip:g}, over {over}: noise of "
        f"{made.noise_on_mean:.3g} of it on the mean, {made.ratio:.3g} times the most that can be learnt"
    )
    if (joint := made.joint) is not None:
        yield from _joint(joint, made.clip)
    spare = f", of these {made.spare_turns} to be taken again"
    steps = f" of {plural(made.steps, 'step')}" if made.steps is not None else ""
    noun = "turn" if by_unit else "round"
    yield f"         the noise allows for {plural(made.turns, noun)}{steps}{spare}"
    for name, own in list(made.clients.items())[:CLIENTS_SHOWN]:
        if (budget := own.budget) is not None:
            spent, after = epsilon(budget.spent), epsilon(budget.after)
            yield (
                f"         budget of {name} over all runs: {spent} of epsilon {budget.most:g} at delta "
                f"{budget.delta:g} is spent, {after} once this run is reserved"
            )


def _joint(joint: Mapping[str, Any], clip: float) -> Iterator[str]:
    """Says how clients share the noise, and what that costs."""
    among = f"threshold {joint['threshold']}, {joint['colluders']} colluders"
    yield (
        f"         {joint['sites']} clients share it, any {joint['carriers']} of them enough ({among}): a "
        f"share is {joint['share'] / (joint['scale'] * clip):.3g} of the clipping norm"
    )
    yield (
        f"         all together are {joint['cost']:.3g} times the noise of a trusted server, where local "
        f"noise is {joint['sites'] ** 0.5:.3g} times"
    )


def _costs(made: RunPlan) -> Iterator[str]:
    """Says in a line each what trains, travels, and what it takes."""
    parameters, memory, rehearsal = made.model["parameters"], made.memory, made.rehearsal
    share = 100 * made.trainable_parameters / parameters
    if made.limit is not None:
        yield f"data     {limited_to(**made.limit)}"
    yield f"trains   {made.trainable_parameters:,} of {parameters:,} parameters ({share:.1f} %)"
    yield from _travels(made)
    if made.privacy is not None:
        yield from _privacy(made.privacy)
    total, a_round = (duration(made.time[key]) for key in ("total_seconds", "seconds_per_round"))
    where = f"{made.device} with {made.workers} workers" if made.workers > 1 else made.device
    yield f"time     {total} on {where}, {a_round} a round: {_parts(made.time, TIMES, duration)}"
    gpu = f" and {size(memory['peak_gpu_bytes'])} on the GPU" if memory["peak_gpu_bytes"] else ""
    yield f"memory   {size(memory['peak_rss_bytes'])}{gpu} at the peak"
    used, free = (size(made.disk[key]) for key in ("bytes", "free_bytes"))
    yield f"disk     {used}: {_parts(made.disk, FILES, size)}; {free} free"
    yield (
        f"measured in {rehearsal['steps']:.0f} steps of {rehearsal['rounds']:.0f} rehearsed rounds, "
        f"which took {duration(rehearsal['seconds'])}"
    )


def _travels(made: RunPlan) -> Iterator[str]:
    sent = made.communication
    if sent["bytes_up"] is None:
        yield f"travels  {made.travels}"
        return
    up, down = (size(sent[f"bytes_{way}_per_client_round"]) for way in ("up", "down"))
    percent = sent["percent_of_full_model"]
    yield f"travels  a client's turn: {up} up, which is {percent:.1f} % of the model, and {down} down"
    up, down, whole = (size(sent[key]) for key in ("bytes_up", "bytes_down", "full_model_bytes_up"))
    yield f"         in all: {up} up and {down} down; the whole model each time: {whole} up"
    if made.secure_aggregation is not None:
        up, down = (size(made.secure_aggregation[f"bytes_{way}"]) for way in ("up", "down"))
        yield f"         of it keys, shares and signatures of the masked sums: {up} up and {down} down"


def _parts(values: Mapping[str, float], names: Mapping[str, str], show: Callable[[float], str]) -> str:
    return ", ".join(f"{name} {show(values[key])}" for key, name in names.items() if values[key])
