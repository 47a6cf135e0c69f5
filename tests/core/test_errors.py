"""What messages say, and what they never do."""

from __future__ import annotations

import importlib
import pickle
import pkgutil

import pytest
from hypothesis import given
from hypothesis import strategies as st

import fedstrata
from fedstrata.core.errors import (
    ConfigurationError,
    DataError,
    FedstrataError,
    ManyDataError,
    PolicyError,
    Problem,
    did_you_mean,
    printable,
)


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("no such client", "no such client"),
        ("\x1b[2J\x07gone\r\nline", "\ufffd[2J\ufffdgone\ufffd\ufffdline"),
        ("right\u202eleft\u200b", "right\ufffdleft\ufffd"),
        ("a" * 501, "a" * 500 + " ..."),
    ],
)
def test_what_another_machine_said_cannot_steer_a_terminal(said: str, shown: str) -> None:
    assert printable(said) == shown


def test_a_name_is_asked_for_only_where_one_is_near() -> None:
    assert did_you_mean("epoch", ["epochs", "rounds"]) == "did you mean 'epochs'?"
    assert did_you_mean("colour", ["epochs", "rounds"]) == did_you_mean("colour", []) == ""


texts = st.text(max_size=20)
problems = st.builds(Problem, texts, texts, origin=texts, code=texts)
codes = st.none() | texts
data_errors = st.builds(DataError, texts, texts, line=st.none() | st.integers(), expected=texts, code=codes)
OF_THEIR_OWN = {
    ConfigurationError: st.builds(ConfigurationError, st.lists(problems, max_size=3)),
    PolicyError: st.builds(PolicyError, st.lists(problems, max_size=3)),
    DataError: data_errors,
    ManyDataError: st.builds(ManyDataError, st.lists(data_errors, min_size=1, max_size=3)),
}
"""How those are made whose `__init__` takes more than a message."""


EXTRAS = ("nvflare", "ray")
"""Without which some modules cannot be imported; none of these defines an error."""


@pytest.fixture(scope="module")
def kinds() -> list[type[FedstrataError]]:
    """All errors of the package, wherever they are defined."""
    for found in pkgutil.walk_packages(fedstrata.__path__, "fedstrata."):
        if found.name.endswith("__main__"):
            continue
        try:
            importlib.import_module(found.name)
        except ModuleNotFoundError as error:
            if str(error.name).partition(".")[0] not in EXTRAS:
                raise
    every: list[type[FedstrataError]] = [FedstrataError]
    for kind in every:
        every += kind.__subclasses__()
    return [kind for kind in every if kind.__module__.startswith("fedstrata.")]


def known(value: object) -> object:
    """What is in an error, and in those that it holds."""
    if isinstance(value, FedstrataError):
        return type(value), str(value), value.exit_status, value.code, known(vars(value))
    if isinstance(value, dict):
        return {name: known(each) for name, each in value.items()}
    return [known(each) for each in value] if isinstance(value, list | tuple) else value


@given(data=st.data())
def test_every_error_is_the_same_in_another_process(
    kinds: list[type[FedstrataError]], data: st.DataObject
) -> None:
    for kind in kinds:
        error = data.draw(OF_THEIR_OWN.get(kind, st.builds(kind, texts)))
        error.add_note("in round 3")
        assert known(pickle.loads(pickle.dumps(error))) == known(error)  # noqa: S301 - its own
