"""`fedstrata export` as a user calls it."""

from __future__ import annotations

from pathlib import Path

from support import RunTiny
from told import assert_refused
from typer.testing import CliRunner

from fedstrata.cli.main import app
from fedstrata.core.errors import ConfigurationError


def test_a_folder_with_a_card_and_a_licence_field(run_once: RunTiny, tmp_path: Path) -> None:
    done = run_once("federation.rounds=1")
    out = tmp_path / "tagger"
    shown = CliRunner().invoke(app, ["export", str(done.folder), "--out", str(out)])
    assert shown.exit_code == 0, shown.output
    assert "no licence" in shown.output
    described = {"README.md", "config.json", "fedstrata.json"}
    tokenizer = {"tokenizer.json", "tokenizer_config.json"}
    assert {path.name for path in out.iterdir()} == {*described, "model.safetensors", *tokenizer}
    saved = done.folder / "model" / "model.safetensors"
    assert (out / "model.safetensors").read_bytes() == saved.read_bytes()
    again = CliRunner().invoke(app, ["export", str(done.folder), "--out", str(out)])
    assert_refused(again.exception, ConfigurationError, "exists", values=[out])
    other = CliRunner().invoke(
        app, ["export", str(done.folder), "--out", str(tmp_path / "other"), "--licence", "mit"]
    )
    assert "no licence" not in other.output
    assert "\nlicense: mit\n" in (tmp_path / "other" / "README.md").read_text()
