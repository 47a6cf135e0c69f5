"""`privacy.md` of a run directory: what a run with differential privacy claims, and what it does not.

It answers the questions that NIST SP 800-226, "Guidelines for Evaluating Differential Privacy Guarantees",
2025, asks of any such claim, from the record and the clients' ledgers alone: the same give the same text.
"""

from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import Any

from jinja2 import StrictUndefined, Template

from fedstrata.record.findings import Finding
from fedstrata.record.history import start_of
from fedstrata.record.log import committed_rounds
from fedstrata.record.privacy import largest, spent_by
from fedstrata.record.words import epsilon, left_of, plural, size, visible

NAMES = {"patient": "patient", "document": "document", "window": "window of a document", "client": "client"}
"""The units of privacy in words."""


def statement(
    events: Sequence[Mapping[str, Any]], sent: Sequence[Any] = (), audits: Sequence[Finding] = ()
) -> str | None:
    """Returns the statement of a run, whether it has ended or not; none for a run without a mechanism.

    Args:
        events: Its record.
        sent: What clients have sent by their ledgers, by kind (`fedstrata.privacy.ledger_summary.Sent`);
            nothing where they keep these themselves.
        audits: What attacks on the run have found.
    """
    start = start_of(events)
    facts = (start or {}).get("privacy")
    if start is None or facts is None:
        return None
    spent, rounds = spent_by(events), committed_rounds(events)
    told = [event for event in events if event["event"] == "privacy"]
    ended = [event["event"] for event in events if event["event"] in {"run", "resumed", "final", "failed"}]
    text = (files("fedstrata.record") / "privacy_statement.md").read_text(encoding="utf-8")
    filled = Template(
        text, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    ).render(
        start=start,
        facts=facts,
        local=facts["mechanism"] != "central",  # each client sees to it, with noise of its own or a share
        joint=facts.get("joint"),
        served=start.get("id") is not None,
        unit=NAMES[facts["unit"]],
        units=NAMES[facts["unit"]].replace(facts["unit"], f"{facts['unit']}s"),
        spent=spent,
        largest=largest(spent),
        at_two=told[-1]["at_two"] if told else None,
        budget=told[-1].get("budget") if told else None,
        rounds=len(rounds),
        finished=ended[-1:] == ["final"],
        lost=any(event["event"] == "client_failed" for event in events),
        named=len(spent),
        scored=any("clients" in event for event in rounds),
        sent=sent,
        audits=[audit for audit in audits if not audit.what_if],
        what_ifs=[audit for audit in audits if audit.what_if],
        epsilon=epsilon,
        left_of=left_of,
        plural=plural,
        size=size,
    )
    return visible(filled) + "\n"
