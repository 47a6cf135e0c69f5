"""Every configuration under benchmarks/ is one: all rows' settings, without their data."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from support import REPOSITORY

from fedstrata.core.sources import read_source
from fedstrata.core.sweep import read_sweep
from fedstrata.engine.setup import check_settings

FILES = sorted((REPOSITORY / "benchmarks").rglob("*.yaml"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_row_is_a_sound_configuration(path: Path) -> None:
    compared = "sweep" in yaml.safe_load(path.read_text(encoding="utf-8"))
    rows = [row.source for row in read_sweep([path], []).rows] if compared else [read_source(path, [])]
    assert rows
    for source in rows:
        settings, method, problems = check_settings(source)
        assert not problems, [problem.message for problem in problems]
        assert method is not None
        assert settings.name.replace("-", "_") == path.stem
