from __future__ import annotations

import json
import re
import statistics
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from figures import draw_only
from support import RunTiny

from fedstrata.record.report import write_report

TIME = "2026-01-01T10:00:00.000+00:00"
NASTY = ["<b>bold</b>", 'quote" onload="x', "$x$ & _y", "</svg><script>alert(1)</script>", "{{ 7 * 7 }}"]


class Page(HTMLParser):
    """What a page consists of."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.tables: list[list[list[str]]] = []
        self.text = ""
        self._cell: list[str] | None = None
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attributes)))
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in {"td", "th"}:
            self._cell = []

    def handle_endtag(self, tag: str) -> None:
        if tag in {"td", "th"} and self._cell is not None:
            self.tables[-1][-1].append(" ".join("".join(self._cell).split()))
            self._cell = None

    def handle_data(self, data: str) -> None:
        self.text += data
        if self._cell is not None:
            self._cell.append(data)


def page_of(*folders: Path) -> str:
    file = folders[0].parent / "page.html"
    write_report(folders, file)
    return file.read_text(encoding="utf-8")


def report(*folders: Path) -> Page:
    return Page(page_of(*folders))


@pytest.fixture
def without_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests that look at words and tables alone."""
    draw_only(monkeypatch)


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory, write_in: Any, events: Any) -> tuple[Path, str, str]:
    """A run with the page of it, and that of it beside another; with all figures."""
    folder = tmp_path_factory.mktemp("drawn")
    runs = [write_in(folder, events(), name) for name in ("one", "other")]
    return runs[0], page_of(runs[0]), page_of(*runs)


def failed_event(error: str, message: str | None = None, **more: Any) -> dict[str, Any]:
    return {"event": "failed", "time": TIME, "error": error, "message": message, **more}


def rows(page: Page, table: int = 0) -> dict[str, list[str]]:
    return {row[0]: row[1:] for row in page.tables[table]}


@pytest.mark.usefixtures("without_figures")
def test_a_run_leaves_a_report_with_its_numbers(run_tiny: RunTiny) -> None:
    run = run_tiny("method={name: layer_skipping, top: 1}", report=True)
    page = Page((run.folder / "report.html").read_text(encoding="utf-8"))
    metrics, table = run.summary["metrics"], rows(page)
    assert table["all documents"][0] == f"{metrics['global']['f1']:.3f}"
    assert table["mean of clients"][0] == f"{metrics['mean_client']['f1']:.3f}"
    for client, scores in metrics["clients"].items():
        (row,) = [cells for name, cells in table.items() if name.split(" ")[0] == client]
        assert row[0] == f"{scores['f1']:.3f}"
    assert f"{run.summary['communication']['percent_of_full_model']:.1f} %" in page.text
    assert (run.folder / "config.yaml").read_text() in page.text
    (groups,) = [table for table in page.tables if table[0][0] == "tensor group"]
    sent = {row[0]: row[3] for row in groups[1:]}
    assert sent["embedding"] == sent["block 0"] == "0 bytes"
    assert sent["block 2"] != "0 bytes"


@pytest.mark.parametrize("update", ["targeted", pytest.param("random", marks=pytest.mark.slow)])
def test_the_blocks_that_were_merged_are_shown_by_round(
    run_once: RunTiny, update: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw_only(monkeypatch, "heat_map")
    run = run_once(f"method={{name: fedtlu, update: {update}, portion: 0.67}}", "federation.evaluate_every=2")
    page = page_of(run.folder)
    figure = page[page.index("<figcaption>Blocks by round") :]
    figure = figure[: figure.index("</figure>")]
    assert all(f"block {block}<" in figure for block in range(3))
    dots = sum(len(event["state"]["merged_blocks"]) for event in run.of("round"))
    assert figure.count('href="#blocks-') >= dots == 4
    cells = sum(len(event["state"].get("block_scores", [])) for event in run.of("round"))
    assert figure.count("opacity") >= cells == (6 if update == "targeted" else 0)
    assert ("darker: a higher score" in figure) == (update == "targeted")
    above = [event["state"].get("above_noise") for event in run.of("round")]
    targeted = update == "targeted"
    if targeted:
        assert f"{min(above):.1f} to {max(above):.1f} times" in " ".join(page.split())
    tables = [table for table in Page(page).tables if table[0][0] == "tensor"]
    assert len(tables) == (update == "targeted")
    for name, last, mean, lowest, highest in (row for table in tables for row in table[1:]):
        scores = [event["state"]["tensor_scores"][name] for event in run.of("round")]
        expected = [scores[-1], statistics.fmean(scores), min(scores), max(scores)]
        assert [last, mean, lowest, highest] == [f"{score:.4g}" for score in expected]


@pytest.mark.usefixtures("without_figures")
def test_where_no_block_is_ever_merged_there_is_no_figure_of_blocks(write_run: Any, events: Any) -> None:
    for merged, shown in (([], False), ([1], True)):
        record = events()
        for event in record[1:-1]:
            event["state"] = {"merged_blocks": merged}
        assert ("Blocks by round" in page_of(write_run(record, str(shown)))) == shown


def test_a_report_that_cannot_be_written_fails_no_run(
    run_tiny: RunTiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any) -> None:
        raise ValueError

    monkeypatch.setattr("fedstrata.record.report.write_report", broken)
    run = run_tiny("federation.rounds=0", report=True)
    assert (run.folder / "summary.json").exists()
    assert not (run.folder / "report.html").exists()


@pytest.mark.usefixtures("without_figures")
@pytest.mark.parametrize("method", ["local_only", "centralized"])
def test_personal_and_pooled_methods_have_reports(write_run: Any, events: Any, method: str) -> None:
    own = {"personal": method == "local_only", "pooled": method == "centralized"}
    page = report(write_run(events(method=method, **own)))
    titles = {attributes.get("aria-label") for tag, attributes in page.tags if tag == "svg"}
    assert ("validation f1 by megabytes sent, both ways, all clients" in titles) == (method == "local_only")
    assert ("all documents, own models" in rows(page)) == (method == "local_only")


def test_the_same_record_gives_the_same_bytes(drawn: tuple[Path, str, str]) -> None:
    run, page, _ = drawn
    assert page_of(run) == page


def test_names_from_outside_are_text_and_nothing_else(
    write_run: Any, events: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    clients = {name: index / 10 for index, name in enumerate(NASTY)}
    record = events(clients=clients, method="<i>method</i>")
    for event in record[1:]:
        event["global"]["f1/<u>kind</u>"] = 0.5
    failed = failed_event("E", "<script>alert(2)</script>")
    folders = [
        write_run(record, "first", "name: <s>config</s>\n"),
        write_run([*record[:-1], failed], "<em>second</em>"),
    ]
    pages = [report(folders[0]), report(*folders)]
    draw_only(monkeypatch)  # of the failed one, which has the same figures
    for page in (*pages, report(folders[1])):
        tags = {tag for tag, _ in page.tags}
        assert not tags & {"script", "b", "i", "u", "s", "em"}
        assert not any(name.startswith("on") for _, attributes in page.tags for name in attributes)
    assert all(name in pages[0].text for name in [*NASTY, "<u>kind</u>", "<s>config</s>"])


def test_control_characters_in_names_are_shown_as_they_are_spelt(
    write_run: Any, events: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw_only(monkeypatch, "dots", "ranges")
    clients = {"north\u000b": 0.25, "north\u000c": 0.75, "west\u0000\ufffe": 0.5}
    one, other = write_run(events(clients=clients), "one"), write_run(events(), "other")
    page = report(one)
    assert all(page.text.count(name) >= 2 for name in (r"north\x0b", r"north\x0c", r"west\x00\ufffe"))
    assert not set(page.text) & set("\u000b\u000c\u0000\ufffe")
    report(one, other)


def test_nothing_refers_to_anything_outside_the_file(drawn: tuple[Path, str, str]) -> None:
    for page in map(Page, drawn[1:]):
        ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
        assert len(ids) == len(set(ids))
        for _, attributes in page.tags:
            for name in {"src", "href", "xlink:href", "action", "data", "srcset"} & attributes.keys():
                value = str(attributes[name])
                assert value == "data:," or value[1:] in ids, value
            for used in re.findall(r"url\(#([^)]*)\)", str(attributes.get("clip-path"))):
                assert used in ids


def test_figures_take_every_colour_from_the_page(drawn: tuple[Path, str, str]) -> None:
    page = Page(drawn[2])
    styles = [str(attributes["style"]) for _, attributes in page.tags if "style" in attributes]
    colours = [value for style in styles for value in re.findall(r"(?:fill|stroke): ([^;]+)", style)]
    assert colours
    assert {value for value in colours if not value.startswith("var(--")} == {"none"}


@pytest.mark.usefixtures("without_figures")
def test_the_lowest_and_the_highest_client_are_marked(write_run: Any, events: Any) -> None:
    table = rows(report(write_run(events(clients={"a": 0.5, "b": 0.2, "c": 0.9, "d": 0.4}))))
    assert {"b ▼ lowest", "c ▲ highest", "a", "d"} < table.keys()
    same = rows(report(write_run(events(clients={"a": 0.5, "b": 0.5}), "same")))
    assert {"a", "b"} < same.keys()


def falling(events: Any, clients: dict[str, float]) -> list[dict[str, Any]]:
    """The events of a run that is judged by a score of which less is better."""
    return events(clients=clients, lower_is_better=["f1"])


@pytest.mark.usefixtures("without_figures")
def test_of_a_falling_score_the_highest_client_is_the_worst(write_run: Any, events: Any) -> None:
    page = report(write_run(falling(events, {"a": 12.5, "b": 8.25, "c": 30.0})))
    assert {"b ▼ lowest", "c ▲ highest", "a"} < rows(page).keys()
    marked = {attributes["class"] for tag, attributes in page.tags if "tag-" in str(attributes.get("class"))}
    assert marked == {"tag tag-low", "tag tag-high"}


@pytest.mark.usefixtures("without_figures")
def test_the_models_that_clients_trained_have_a_column_where_they_were_scored(
    write_run: Any, events: Any
) -> None:
    record = events()
    assert "own models" not in report(write_run(record, "plain")).text
    for event in record[1:3]:
        event["trained"] = {"validation": {"clients": {}, "mean": {"f1": 0.125 * event["round"]}}}
    page = report(write_run(record, "scored"))
    assert "clients' own models" in page.text
    (numbers,) = [table for table in (rows(page, number) for number in range(1, 5)) if "1" in table]
    assert [numbers[number][5] for number in "123"] == ["0.125", "0.250", "-"]


@pytest.mark.usefixtures("without_figures")
def test_of_a_falling_score_the_lowest_run_is_the_best(write_run: Any, events: Any) -> None:
    one = write_run(falling(events, {"a": 10.0, "b": 90.0}), "one")
    two = write_run(falling(events, {"a": 50.0, "b": 70.0}), "two")
    text = page_of(one, two)
    assert re.findall(r"<strong>([^<]*)</strong>", text) == ["50.000", "50.000", "10.000", "70.000"]


def test_many_clients_are_all_in_a_folded_table_and_the_ends_in_sight(
    write_run: Any, events: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw_only(monkeypatch, "dots")
    page = report(write_run(events(clients={f"client-{number:03d}": number / 200 for number in range(150)})))
    everybody = {f"client-{number:03d}" for number in range(150)}
    first, folded = ({name.split()[0] for name in rows(page, table) if name} for table in (0, 1))
    assert first & everybody == {"client-000", "client-149"}
    assert folded >= everybody
    drawn = set(re.findall(r"client-(\d{3}) \(7\)", page.text))
    assert drawn == {f"{number:03d}" for number in [*range(20), *range(130, 150)]}


@pytest.mark.usefixtures("without_figures")
def test_a_failed_run_says_why_and_shows_its_last_scores(write_run: Any, events: Any) -> None:
    lost = [
        failed_event("OSError", event="client_failed", round=number, client="b")
        for number in (1, 3, 3)  # the third round was run twice
    ]
    failed = failed_event("TrainingError", "the loss is nan")
    page = report(write_run([*events(rounds=2, final=False), *lost, failed]))
    assert "the loss is nan" in page.text and "round 2" in page.text
    (clients,) = [table for table in page.tables if table[0][0] == "client"]
    assert clients[1:] == [["b", "1, 3", "OSError"]]
    assert rows(page)["all documents"][0] == "0.500"


def test_a_run_without_a_single_round_has_a_report(write_run: Any, events: Any) -> None:
    assert "unfinished" in report(write_run(events(rounds=0, final=False))).text.lower()
    assert "MemoryError" in report(write_run([failed_event("MemoryError")], "early")).text


@pytest.mark.usefixtures("without_figures")
@pytest.mark.parametrize("scores", ["none", "summed"])
def test_a_run_whose_clients_keep_their_scores_says_so(write_run: Any, events: Any, scores: str) -> None:
    secure = {"range": 1.0, "survivors": None, "scores": scores}
    made = events(rounds=0, final=False, id="0123456789abcdef", secure_aggregation=secure)
    told = " ".join(report(write_run(made)).text.split())
    assert ("privacy.scores: none" in told) == (scores == "none")


@pytest.mark.usefixtures("without_figures")
def test_rounds_that_were_not_scored_are_left_out_of_the_curves(write_run: Any, events: Any) -> None:
    record = events(rounds=4)
    for event in record[1:4:2]:
        del event["global"], event["clients"], event["mean_client"]
    page = report(write_run(record))
    (numbers,) = [table for table in page.tables if table[0][0] == "round"]
    assert [row[2] for row in numbers[1:]] == ["-", "0.500", "-", "0.500"]


@pytest.mark.usefixtures("without_figures")
def test_a_record_of_an_older_version_has_a_report(write_run: Any, events: Any) -> None:
    record = events()
    del record[0]["groups"]
    for event in record[1:-1]:
        del event["groups_up"]
    assert "What an update holds" not in report(write_run(record)).text


@pytest.mark.usefixtures("without_figures")
def test_a_comparison_shows_the_best_and_what_differs(write_run: Any, events: Any) -> None:
    low = write_run(events(clients={"a": 0.1, "b": 0.9}), "low", "seed: 0\nmethod: {name: x, top: 2}\n")
    high = write_run(events(clients={"a": 0.5, "b": 0.7}), "high", "seed: 0\nmethod: {name: y}\nname: n\n")
    text = page_of(low, high)
    assert re.findall(r"<strong>([^<]*)</strong>", text) == ["0.900", "0.600", "0.600", "0.500"]
    page = Page(text)
    assert rows(page, 2) == {"setting": ["low", "high"], "method.name": ["x", "y"], "method.top": ["2", "-"]}


@pytest.mark.usefixtures("without_figures")
def test_runs_on_other_documents_are_not_compared(write_run: Any, events: Any) -> None:
    one = write_run(events(clients={"a": 0.1, "b": 0.9}), "one")
    other = write_run(events(data="another"), "other")
    text = page_of(one, other)
    assert "data fingerprints differ" in text
    assert "<strong>" not in text


def test_runs_of_other_tasks_are_listed_without_figures(write_run: Any, events: Any) -> None:
    one, record = write_run(events(), "one"), json.loads(json.dumps(events(metric="micro_f1")))
    for event in record[1:]:
        for scores in (event["global"], event["mean_client"], *event["clients"].values()):
            scores["micro_f1"] = scores.pop("f1")
    page = report(one, write_run(record, "other"))
    assert "(f1, micro_f1)" in page.text
    assert not any(tag == "svg" for tag, _ in page.tags)


@pytest.mark.usefixtures("without_figures")
def test_runs_of_one_name_are_told_apart(write_run: Any, events: Any) -> None:
    first, second = write_run(events(), "x/run"), write_run(events(), "y/run")
    assert {"x", "y"} < rows(report(first, second)).keys()
    seeds = [write_run(events(), f"{row}/seed-{seed}") for row in ("x", "y") for seed in (0, 1)]
    assert {"x/seed-0", "x/seed-1", "y/seed-0", "y/seed-1"} < rows(report(*seeds)).keys()
    above = write_run(events(), "z/run/run")
    assert {"z/run", "x"} < rows(report(first, above)).keys()


@pytest.mark.usefixtures("without_figures")
def test_held_out_sites_and_lost_clients_are_shown(run_tiny: RunTiny) -> None:
    federation = "federation={rounds: 4, dropout: 0.5, evaluate_every: 4}"
    run = run_tiny("data.split.test_sites=[site-3]", federation, report=True)
    page = Page((run.folder / "report.html").read_text(encoding="utf-8"))
    held_out = run.summary["metrics"]["external"]["site-3"]["f1"]
    assert rows(page)["site-3 held out"][0] == f"{held_out:.3f}"
    (lost,) = [table for table in page.tables if table[0][0] == "client"]
    counts = {row[0]: len(row[1].split(",")) for row in lost[1:]}
    assert counts == run.summary["failures"]["clients"]
    assert "2 clients" in page.text


@pytest.mark.usefixtures("without_figures")
def test_scores_by_simulated_time_are_drawn_where_runs_have_it(write_run, events) -> None:
    own = events(final=True)
    for event in own:
        if event["event"] == "round":
            memory = {"batches": 2, "mean_bytes": 5e6, "peak_bytes": 8e6}
            event |= {"simulated_seconds": 3000.0, "joules": 2000.0, "device_memory": memory}
    emulated, plain = write_run(own, "emulated"), write_run(events(), "plain")
    page = report(emulated)
    for part in ("by simulated time", "2 h 30 min", "6.0 kJ", "5.0 MB", "8.0 MB"):
        assert part in page.text
    assert "simulated" not in report(plain).text
    both = report(emulated, plain)
    assert "by simulated time" in both.text
    costs = rows(both, 1)
    assert costs["emulated"][-2:] == ["2 h 30 min", "6.0 kJ"]
    assert costs["plain"][-2:] == ["-", "-"]


@pytest.mark.usefixtures("without_figures")
def test_what_each_client_counted_by_its_loss_is_a_table(write_run: Any, events: Any) -> None:
    record = events(rounds=2, server_documents=["n1", "n2"])

    def counted(loss: float, share: float) -> dict[str, Any]:
        return {"loss": loss, "influence": share, "weight": share / 2, "capped": share > 0.5}

    rounds = [
        {"a": counted(number, 0.5 + number / 8), "b": counted(2.0 + number, 0.5 - number / 8)}
        for number in (0.0, 1.0)
    ]
    for event, influence in zip(record[1:3], rounds, strict=True):
        event["state"] = {"influence": influence}
    page = report(write_run(record))
    (table,) = [table for table in page.tables if table[0][0] == "client"]
    shown = {row[0]: row[1:] for row in table[1:]}
    assert shown.keys() == {"a", "b"}
    for client, last in rounds[-1].items():
        weights = [100 * own[client]["weight"] for own in rounds]
        expected = [f"{value:.1f} %" for value in (statistics.fmean(weights), min(weights), max(weights))]
        assert shown[client][:2] == ["2", f"{last['loss']:.4g}"]
        assert shown[client][2:4] == [f"{100 * last['influence']:.1f} %", f"{100 * last['weight']:.1f} %"]
        assert shown[client][4:7] == expected
        assert shown[client][7] == str(sum(own[client]["capped"] for own in rounds))
