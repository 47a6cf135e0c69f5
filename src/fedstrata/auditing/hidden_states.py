"""Whether a run sends the hidden states that the attack `hidden` reads, and which."""

from fedstrata.auditing.membership import unattackable
from fedstrata.auditing.observed_run import unread, unseen
from fedstrata.engine.prepare import Experiment


def why_none(experiment: Experiment) -> str:
    """Returns why no hidden states leave the clients of a run; empty where some do."""
    method = experiment.method
    if any(method.divides(name) is not None for name in experiment.clients):
        return ""
    return f"{method.name} does not divide the model, and no hidden state leaves a client"


def applicable(experiment: Experiment) -> list[str]:
    """Returns the attacks that read something a run of these settings sends."""
    reasons = {
        "hidden": bool(why_none(experiment)),
        "invert": bool([*unseen(experiment), *unread(experiment)]),
        "membership": bool(unattackable(experiment)),
        "span": bool([*unseen(experiment), *unread(experiment)]),
    }
    return [attack for attack, reason in reasons.items() if not reason]


def own_cuts(experiment: Experiment) -> str:
    """Returns where a run divides its model and with what noise, in words; empty where it does not."""
    cuts = (experiment.method.divides(name) for name in experiment.clients)
    fronts = sorted({cut.front for cut in cuts if cut is not None})
    noise = getattr(experiment.method, "noise", None)  # of methods that divide the model
    scale = "none"
    if noise is not None and noise.on == "states":
        scale = f"{noise.scale:g} ({noise.kind}{', relative' if noise.relative else ''})"
    return f"the run itself has p {', '.join(map(str, fronts))} and noise {scale}" if fronts else ""
