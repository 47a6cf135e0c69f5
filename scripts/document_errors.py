"""Writes docs/errors.md from the table of error codes: `python scripts/document_errors.py`."""

from pathlib import Path

from fedstrata.core.error_codes import CODES

DOCUMENT = Path(__file__).parents[1] / "docs" / "errors.md"
HEAD = """# Error codes

Every error has a code. Messages may be reworded between versions; codes keep their meaning.

- The command line shows the code behind the message, with the place where the value was set:
  `training.batch_size: must be greater than or equal to 1, not 0  [out_of_range, from a.yaml, line 12]`.
  Exit status 2 is a wrong configuration or input, 1 a failure while running, 130 an interruption.
  With logs in JSON the last line has `"event": "failed"` and `"code"`.
- In Python every `FedstrataError` has `code`. A `ConfigurationError` has `problems`, each with `path`,
  `code`, `message` and `origin`.
- A client that the server refuses, and a server that a client refuses, get the code over the connection.

No message, code or log holds the text of a note. This page is written by `python scripts/document_errors.py`.

| code | meaning |
|---|---|
"""


def document() -> str:
    """Returns the whole page."""
    return HEAD + "".join(f"| `{code}` | {meaning} |\n" for code, meaning in CODES.items())


if __name__ == "__main__":
    DOCUMENT.write_text(document(), encoding="utf-8")
