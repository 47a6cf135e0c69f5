"""Experiment trackers: a run's settings and numbers, copied to TensorBoard, MLflow or Weights & Biases.

All three write into the run directory and nothing else, unless the user's own environment says otherwise
(`MLFLOW_TRACKING_URI`, `WANDB_MODE`). They are fed from the record, so a resumed run goes on where a tracker
stopped, and a tracker that is added late gets the rounds it missed. A tracker that fails is given up with
one message; the run goes on.
"""

import json
import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from fedstrata.core.errors import refused
from fedstrata.core.files import private_folder, write_atomically
from fedstrata.core.settings.source import flatten
from fedstrata.record.history import bytes_sent, client_scores, start_of
from fedstrata.record.log import Listener, committed_rounds, read_events
from fedstrata.record.privacy import largest
from fedstrata.record.summary import mean_scores

_STATE = "trackers.json"
_LINE = 200


class Tracker(Protocol):
    """Where numbers go."""

    @property
    def id(self) -> str:
        """What finds this run again when it is resumed."""

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Writes numbers of one round; they are safe when this returns."""

    def close(self, scores: Mapping[str, float] | None, step: int) -> None:
        """Ends the run's entry, with the final scores or, when the run failed, without."""


class TensorBoard:
    """Event files in `RUN/tensorboard`; look at them with `tensorboard --logdir RUN`."""

    def __init__(self, folder: Path, name: str, settings: Mapping[str, Any], id: str | None) -> None:
        from torch.utils.tensorboard import SummaryWriter  # noqa: PLC0415 - heavy, optional

        self.id = name
        private_folder(folder / "tensorboard", existing=True)
        self._writer: Any = SummaryWriter(str(folder / "tensorboard"))
        if id is None:
            text = "\n".join(f"    {path}: {value}" for path, value in flatten(settings))
            self._writer.add_text("settings", text)

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Writes scalars and flushes them."""
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def close(self, scores: Mapping[str, float] | None, step: int) -> None:
        """Closes the event file."""
        self.log(scores or {}, step)
        self._writer.close()


class MLflow:
    """A run in the store `RUN/mlruns`, or where `MLFLOW_TRACKING_URI` points."""

    def __init__(self, folder: Path, name: str, settings: Mapping[str, Any], id: str | None) -> None:
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")  # its own; nothing leaves unasked
        os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
        from mlflow import MlflowClient  # noqa: PLC0415 - heavy, optional
        from mlflow.entities import Param  # noqa: PLC0415

        own = (folder / "mlruns").absolute().as_uri()
        self._client = MlflowClient(os.environ.get("MLFLOW_TRACKING_URI") or own)
        if id is None:
            run = self._client.create_run(self._experiment(), run_name=name)
            self.id: str = run.info.run_id
            every = [Param(path, str(value)) for path, value in flatten(settings)]
            for start in range(0, len(every), 100):  # as many as one request takes
                self._client.log_batch(self.id, params=every[start : start + 100])
        else:
            self.id = id
            self._client.update_run(self.id, status="RUNNING")

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Writes metrics; a character that MLflow does not allow in a name becomes `_`."""
        from mlflow.entities import Metric  # noqa: PLC0415

        now = int(time.time() * 1000)
        metrics = [
            Metric(re.sub(r"[^\w\-. /]", "_", name), value, now, step) for name, value in values.items()
        ]
        for start in range(0, len(metrics), 1000):
            self._client.log_batch(self.id, metrics=metrics[start : start + 1000])

    def close(self, scores: Mapping[str, float] | None, step: int) -> None:
        """Sets the run's status."""
        self.log(scores or {}, step)
        self._client.set_terminated(self.id, "FAILED" if scores is None else "FINISHED")

    def _experiment(self) -> str:
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", "fedstrata")
        found = self._client.get_experiment_by_name(name)
        return str(found.experiment_id if found else self._client.create_experiment(name))


class WeightsAndBiases:
    """An offline run in `RUN/wandb`, for `wandb sync`; online only if `WANDB_MODE=online` is set.

    What else it would collect (the console, git, the host's name and load, the program, the list of packages)
    is switched off; its file still names Python's version and the libraries it knows.
    """

    def __init__(self, folder: Path, name: str, settings: Mapping[str, Any], id: str | None) -> None:
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
        import wandb  # noqa: PLC0415 - heavy, optional

        quiet = wandb.Settings(
            console="off",
            host="unnamed",
            silent=True,
            disable_git=True,
            disable_code=True,
            save_code=False,
            x_disable_stats=True,
            x_disable_machine_info=True,
            x_disable_meta=True,
            x_save_requirements=False,
        )
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", "fedstrata"),
            name=name,
            id=id,
            resume="allow" if id else None,
            dir=str(folder),
            config=dict(settings),
            mode=os.environ.get("WANDB_MODE", "offline"),
            settings=quiet,
            reinit="create_new",
        )
        self.id: str = self._run.id

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Writes one row of the history."""
        self._run.log(dict(values), step=step, commit=True)

    def close(self, scores: Mapping[str, float] | None, step: int) -> None:
        """Ends the run; final scores go into its summary, since a step is written only once."""
        self._run.summary.update(dict(scores or {}))
        self._run.finish(exit_code=1 if scores is None else 0)


TRACKERS: Mapping[str, Callable[[Path, str, Mapping[str, Any], str | None], Tracker]] = {
    "tensorboard": TensorBoard,
    "mlflow": MLflow,
    "wandb": WeightsAndBiases,
}
"""Every tracker by its name in a configuration, which is also that of its package and of our extra."""


def require_trackers(names: Sequence[str]) -> None:
    """Checks that what a configuration reports to is installed.

    Raises:
        ConfigurationError: A package is missing; the message says how to install it.
    """
    missing = [name for name in dict.fromkeys(names) if find_spec(name) is None]
    if missing:
        extras = ",".join(missing)
        message = f"{', '.join(missing)} is not installed; install it with: pip install 'fedstrata[{extras}]'"
        raise refused("report_to", message, "not_installed")


class Trackers:
    """Listens to a run for its trackers.

    Args:
        names: Which trackers.
        folder: The run directory; its record is what trackers are fed from.
        settings: The resolved configuration.
        listen: Told every event first, and `warning` when a tracker is given up.
    """

    def __init__(
        self, names: Sequence[str], folder: Path, settings: Mapping[str, Any], listen: Listener
    ) -> None:
        self._names, self._folder, self._settings, self._listen = names, folder, settings, listen
        self._record = folder / "record.jsonl"
        self._open: dict[str, Tracker] = {}
        path = folder / _STATE
        self._state: dict[str, dict[str, Any]] = json.loads(path.read_text()) if path.exists() else {}

    def __call__(self, event: str, facts: Mapping[str, Any]) -> None:
        """Takes one event of the run."""
        self._listen(event, facts)
        if event in {"run", "resumed"}:
            for name in dict.fromkeys(self._names):
                self._guarded(name, self._start)
        if event in {"run", "resumed", "round"}:
            for name in list(self._open):
                self._guarded(name, self._catch_up)
        if event in {"final", "failed"}:
            for name in list(self._open):
                self._guarded(name, lambda name: self._end(name, facts if event == "final" else None))

    def _start(self, name: str) -> None:
        known = self._state.get(name, {})
        tracker = TRACKERS[name](self._folder, str(self._settings["name"]), self._settings, known.get("id"))
        self._open[name] = tracker
        self._remember(name, known.get("round", 0))

    def _catch_up(self, name: str) -> None:
        """Gives a tracker the committed rounds it does not have yet."""
        rounds = committed_rounds(read_events(self._record))
        for event, sent in zip(rounds, bytes_sent(rounds), strict=True):
            if event["round"] > self._state[name]["round"]:
                values = round_values(event, self._metric()) | {"bytes/sent": sum(sent)}
                self._open[name].log(values, event["round"])
                self._remember(name, event["round"])

    def _end(self, name: str, final: Mapping[str, Any] | None) -> None:
        scores = None if final is None else score_values(final, self._metric(), "test")
        self._open.pop(name).close(scores, self._state[name]["round"])

    def _metric(self) -> str:
        """Returns the score the run is judged by."""
        return str((start_of(read_events(self._record)) or {})["metric"])

    def _remember(self, name: str, number: int) -> None:
        self._state[name] = {"id": self._open[name].id, "round": number}
        write_atomically(self._folder / _STATE, [(json.dumps(self._state, indent=2) + "\n").encode()])

    def _guarded(self, name: str, action: Callable[[str], None]) -> None:
        """Does something with a tracker; one that fails is given up, since no run may depend on it."""
        try:
            action(name)
        except Exception as error:  # whatever a third party raises; it never saw a note
            self._open.pop(name, None)
            reason = " ".join(f"{type(error).__name__}: {error}".split())[:_LINE]
            self._listen("warning", {"message": f"nothing more is reported to {name}: {reason}"})


def round_values(event: Mapping[str, Any], metric: str) -> dict[str, float]:
    """Returns the numbers of a `round` event by the names trackers show; what it has not is left out.

    `trained` are the mean scores of the models that the clients trained, before they were merged; `simulated`
    and `joules` are what a round took on emulated devices; `privacy` has the largest epsilon over clients.
    """
    exchanges = event["exchanges"].values()
    values = {} if event["loss"] is None else {"loss": event["loss"]}
    values |= score_values(event, metric, "validation")
    for split, own in (event.get("trained") or {}).items():
        values |= _shown(f"{split}/trained.", own["mean"])
    values |= {
        "bytes/up": sum(client["bytes_up"] for client in exchanges),
        "bytes/down": sum(client["bytes_down"] for client in exchanges),
        "seconds/round": event["seconds"],
        "seconds/train": event["train_seconds"],
    }
    if event.get("serve_seconds"):
        values["seconds/serve"] = event["serve_seconds"]
    spent = largest((event.get("privacy") or {}).get("clients") or {})
    if spent is not None:
        values["privacy/epsilon"] = spent
    emulated = {"simulated_seconds": "seconds/simulated", "joules": "energy/joules"}
    return values | {emulated[name]: event[name] for name in emulated if event.get(name) is not None}


def score_values(event: Mapping[str, Any], metric: str, split: str) -> dict[str, float]:
    """Returns the scores of an event: of all documents, of clients and of sites that were held out.

    Of clients the mean, the lowest and the highest are given, of held-out sites the mean.
    """
    outside = mean_scores(list((event.get("external") or {}).values()))
    own = _shown(f"{split}/", event.get("global"))
    own |= _shown(f"{split}/mean_client.", event.get("mean_client")) | _shown(f"{split}/held_out.", outside)
    clients = client_scores(event, metric).values()
    if clients:
        own |= _shown(f"{split}/lowest_client.", {metric: min(clients)})
        own |= _shown(f"{split}/highest_client.", {metric: max(clients)})
    return own


def _shown(begins: str, scores: Mapping[str, float] | None) -> dict[str, float]:
    """Returns scores by names that begin with a split, a `/` and whose they are.

    A name has one `/`: trackers group by it, and MLflow makes files and folders of it.
    """
    return {f"{begins}{name.replace('/', '.')}": score for name, score in (scores or {}).items()}
