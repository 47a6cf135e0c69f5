"""What is said of documents in a run whose clients are processes of their own: at each site alone."""

from __future__ import annotations

from pathlib import Path

import pytest
from remote_run import CLIENTS, Clients, home_of, served

from fedstrata.record.log import read_events
from fedstrata.record.report import report_page


@pytest.mark.slow
def test_what_documents_hold_is_in_the_report_of_their_site_alone(tmp_path: Path, clients: Clients) -> None:
    run = served(tmp_path, clients, "federation.rounds=1", "method={name: fedavg}")
    (start,) = run.of("run")
    assert "corpus" not in start
    counts = [count for client in CLIENTS for count in start["clients"][client].values()]
    assert None in counts  # of 12 notes some client has few
    assert not any(count is not None and 0 < count < 5 for count in counts)
    page = report_page([run.folder])
    assert "&lt; 5" in page
    assert "the site's own report" in page
    assert run.summary["cut"] is None
    for client in CLIENTS:
        home = home_of(run, client)
        (own,) = [event for event in read_events(home / "record.jsonl") if event["event"] == "run"]
        assert own["corpus"]["small_counts"] == "hide"
        assert own["corpus"]["documents"] == own["clients"] == {client: start["clients"][client]}
        assert own["corpus"]["partition"] is None
        assert "Types of mentions" in report_page([home])
        sent = [line for line in (home / "egress.jsonl").read_text().splitlines() if "corpus" in line]
        assert not sent
        classes = own["corpus"]["classes"]["mentions"][client]["train"]
        assert not any(count is not None and 0 < count < 5 for count in classes.values())
