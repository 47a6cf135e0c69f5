"""What does not fit into one message is refused before anything is written, and advice can be followed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import TINY, problems_of
from typer.testing import CliRunner

from fedstrata.cli.main import app
from fedstrata.core.errors import ConfigurationError
from fedstrata.core.settings.source import read_source
from fedstrata.engine.remote import agreeing
from fedstrata.engine.remote.agreeing import too_large
from fedstrata.planning.plan import make_plan
from fedstrata.transport import timing
from fedstrata.transport.agreement import Agreement
from fedstrata.transport.timing import MOST_MEGABYTES

AGREED = Agreement({}, run="demo", blocks=1, numbers=10, trained={})
LARGEST = MOST_MEGABYTES * 2**20


@given(numbers=st.integers(1, 2**30), largest=st.integers(1, MOST_MEGABYTES).map(lambda each: each * 2**20))
def test_a_larger_message_is_advised_only_where_one_helps(numbers: int, largest: int) -> None:
    sent = replace(AGREED, numbers=numbers).largest
    problem = too_large("fedavg", numbers, largest)
    assert (problem is None) == (sent <= largest)
    if problem is not None:
        expected = ("--megabytes", "out_of_range") if sent <= LARGEST else ("method.name", "too_large")
        assert (problem.path, problem.code) == expected


def test_the_option_takes_what_one_message_may_have_and_no_more() -> None:
    for value, refused in ((MOST_MEGABYTES, False), (MOST_MEGABYTES + 1, True)):
        said = CliRunner().invoke(app, ["serve", "--megabytes", str(value), "--on", "nvflare"])
        assert (said.exit_code == 2 and isinstance(said.exception, SystemExit)) == refused


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages that hold no model at all, where LLaMA-3.2-1B would take 5 GB of a test's memory."""
    for module in (agreeing, timing):
        monkeypatch.setattr(module, "MOST_MEGABYTES", 4)


@pytest.mark.usefixtures("small")
def test_serve_refuses_what_no_message_holds_before_anything_is_written(tmp_path: Path) -> None:
    options = ["--insecure", "--clients", "site-1,site-2", "--listen", "127.0.0.1:0", "--megabytes", "4"]
    refused = CliRunner().invoke(
        app, ["serve", *TINY, "method={name: fedavg}", *options, "--out", str(tmp_path / "run")]
    )
    assert isinstance(refused.exception, ConfigurationError)
    assert problems_of(refused.exception) == [("method.name", "too_large")]
    assert not (tmp_path / "run").exists()


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize(
    ("method", "warned"), [("fedavg", 1), pytest.param("fl_llama", 0, marks=pytest.mark.slow)]
)
def test_a_plan_warns_of_what_no_message_holds(method: str, warned: int) -> None:
    asked = (*TINY, "data.synthetic.notes=12", "task.max_length=32", f"method={{name: {method}}}")
    warnings = make_plan(read_source(None, [*asked]), seconds=0.0).warnings
    assert sum("fedstrata serve" in warning for warning in warnings) == warned
