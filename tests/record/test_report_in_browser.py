"""The report in a real browser: nothing is asked of the network, and everything can be read."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from browser import CHROMIUM, QUIET
from figures import draw_only

from fedstrata.record.report import write_report

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")

SCHEMES = {"dark": 0, "light": 1}
OPTIONS = [
    *QUIET,
    "--host-resolver-rules=MAP * ~NOTFOUND",  # the browser's own requests go nowhere either
    "--enable-logging=stderr",
    "--virtual-time-budget=5000",
    "--window-size=1300,900",
    "--dump-dom",
]

# Runs within a copy of the page, in a frame: a window cannot be as narrow as a telephone.
MEASURE = """
const probe = document.createElement("canvas").getContext("2d", {willReadFrequently: true});
const rgb = colour => {
  probe.clearRect(0, 0, 1, 1); probe.fillStyle = colour; probe.fillRect(0, 0, 1, 1);
  return [...probe.getImageData(0, 0, 1, 1).data];
};
const luminance = colour => {
  const linear = value => value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
  const [r, g, b] = rgb(colour).map(value => linear(value / 255));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};
const contrast = (one, other) => {
  const [low, high] = [luminance(one), luminance(other)].sort((a, b) => a - b);
  return (high + 0.05) / (low + 0.05);
};
const behind = element => {
  for (; element; element = element.parentElement) {
    const colour = getComputedStyle(element).backgroundColor;
    if (rgb(colour)[3] > 0) return colour;
  }
  return "white";
};
const measure = () => {
  document.querySelectorAll("details").forEach(item => item.open = true);
  const texts = [...document.body.querySelectorAll("*")].filter(item =>
    !["SCRIPT", "STYLE", "title"].includes(item.tagName) && item.getClientRects().length &&
    [...item.childNodes].some(node => node.nodeType === 3 && node.data.trim()));
  const page = getComputedStyle(document.documentElement);
  const figures = [...document.querySelectorAll("figure > svg")];
  return {
    dark: matchMedia("(prefers-color-scheme: dark)").matches,
    width: innerWidth,
    overflow: document.documentElement.scrollWidth - innerWidth,
    resources: performance.getEntriesByType("resource").map(entry => entry.name),
    texts: texts.map(item => ({
      text: item.textContent.trim().slice(0, 40),
      contrast: contrast(getComputedStyle(item)[item instanceof SVGElement ? "fill" : "color"], behind(item)),
    })),
    series: [1, 2, 3, 4, 5, 6, 7].map(number =>
      contrast(page.getPropertyValue("--series-" + number).trim(), page.getPropertyValue("--page").trim())),
    figures: figures.map(figure => {
      const outer = figure.getBoundingClientRect();
      const inner = [...figure.querySelectorAll("text")].map(text => text.getBoundingClientRect());
      return {
        name: figure.getAttribute("aria-label"), width: outer.width, height: outer.height,
        text: Math.min(...inner.map(box => box.height)),
        outside: Math.max(...inner.map(box => Math.max(outer.left - box.left, box.right - outer.right,
                                                       outer.top - box.top, box.bottom - outer.bottom))),
        drawn: [...figure.querySelectorAll("path, use")]
          .filter(item => item.getBoundingClientRect().width > 3).length,
      };
    }),
  };
};
addEventListener("load", () => parent.postMessage(JSON.stringify(measure()), "*"));
"""


def browse(page: Path, *options: str) -> tuple[str, list[str]]:
    """Returns the document after it was loaded and what the console said."""
    command = [str(CHROMIUM), *OPTIONS, f"--user-data-dir={page.parent / 'profile'}", *options, page.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    return done.stdout, [line for line in done.stderr.splitlines() if "CONSOLE" in line]


def measure(report: Path, *, scheme: str, width: int) -> dict[str, Any]:
    """Loads a copy of the report that measures itself, in a frame of this width."""
    text = report.read_text(encoding="utf-8")
    assert text.count("default-src 'none';") == 1
    text = text.replace("default-src 'none';", "default-src * 'unsafe-inline';")  # nothing is held back
    copy = report.with_name("copy.html")
    copy.write_text(text.replace("</body>", f"<script>{MEASURE}</script></body>"), encoding="utf-8")
    outer = report.with_name("outer.html")
    outer.write_text(
        '<!doctype html><meta name="color-scheme" content="light dark">'
        f'<iframe src="copy.html" style="border:0;width:{width}px;height:800px"></iframe><pre></pre>'
        '<script>addEventListener("message", event => '
        'document.querySelector("pre").textContent = "RESULT" + event.data + "END")</script>'
    )
    dom, _ = browse(outer, f"--blink-settings=preferredColorScheme={SCHEMES[scheme]}")
    found = re.search(r"RESULT(.*)END</pre>", dom, flags=re.DOTALL)
    assert found
    unescaped = found[1].replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")
    return dict(json.loads(unescaped))


PAGES = ("comparison", "private", "run", "failed", "private comparison")


def pages(quick: str = "") -> list[Any]:
    """All kinds of pages, of which a person waits for one at most."""
    return [pytest.param(kind, marks=() if kind == quick else pytest.mark.slow) for kind in PAGES]


def report_of(kind: str, write_run: Any, events: Any) -> Path:
    clients = {f"St. {'W' * number}-hospital": 0.1 * number for number in range(1, 10)}
    lost = {"event": "failed", "time": "2026-01-01T10:00:00", "error": "E", "message": "nan " * 36}
    records = [events(clients=clients, personal=True) for _ in range(8)]
    if kind == "failed":
        records = [[*events(rounds=1, final=False), lost]]
    if "private" in kind:
        records = [private(events(clients=clients), 1.0 + number) for number in range(8)]
    folders = [write_run(own, f"run-of-a-long-name-{number}") for number, own in enumerate(records)]
    file = folders[0].parent / "report.html"
    write_report(folders if "comparison" in kind else folders[:1], file)
    return file


def private(events: list[dict[str, Any]], epsilon: float) -> list[dict[str, Any]]:
    """Those events, of a run with differential privacy whose noise is seeded."""
    for event in events:
        if event["event"] == "run":
            names = list(event["clients"])
            event["privacy"] = {
                **{"mechanism": "local", "unit": "patient", "adjacency": "zero-out", "delta": 1e-5},
                **{"sigma": 1.25, "clip": 1.0, "noise": "seeded", "units": dict.fromkeys(names, 400)},
                **{"expected_batch": 8, "steps": 20, "turns": 5, "spare_turns": 2},
            }
        elif event["event"] == "round":
            spent = {name: {"turns": 1, "epsilon": epsilon + place} for place, name in enumerate(names)}
            event["privacy"] = {"clients": spent, "clipped": dict.fromkeys(names, 0.5)}
    return events


@pytest.mark.parametrize("kind", pages())  # test_report.py looks for what would be asked for
def test_the_console_stays_empty(kind: str, write_run: Any, events: Any) -> None:
    """The page's policy forbids every request, and the browser says so of each one that is tried."""
    dom, said = browse(report_of(kind, write_run, events))
    assert "<h1>" in dom
    assert said == []


@pytest.mark.slow
def test_the_console_would_tell(write_run: Any, events: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards the test above: a page that does ask for something is noticed."""
    draw_only(monkeypatch)
    report = report_of("run", write_run, events)
    text = report.read_text(encoding="utf-8")
    report.write_text(text.replace("</body>", '<img src="http://example.org/a.png"></body>'))
    assert any("example.org" in line for line in browse(report)[1])


@pytest.mark.parametrize(
    ("scheme", "width"), [("dark", 400), pytest.param("light", 1200, marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("kind", pages("private"))
def test_everything_can_be_read(kind: str, write_run: Any, events: Any, scheme: str, width: int) -> None:
    seen = measure(report_of(kind, write_run, events), scheme=scheme, width=width)
    assert (seen["dark"], seen["width"]) == (scheme == "dark", width)
    assert seen["resources"] == []
    assert seen["overflow"] <= 0
    assert len(seen["texts"]) > 40
    assert [item for item in seen["texts"] if item["contrast"] < 4.5] == []
    assert min(seen["series"]) >= 3.0
    assert len(seen["figures"]) >= 5
    for figure in seen["figures"]:
        assert figure["width"] > 250
        assert figure["height"] > 50
        assert figure["text"] >= 9
        assert figure["outside"] < 16
        assert figure["drawn"] >= 3
