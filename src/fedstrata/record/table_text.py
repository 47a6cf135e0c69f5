"""The table of a comparison for people and for other programs: Markdown, CSV, and what a terminal shows."""

import csv
import io
import json
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedstrata.core.files import write_atomically
from fedstrata.record.costs import COSTS, Column
from fedstrata.record.privacy import NOT_COVERED, SEEDED
from fedstrata.record.score_columns import BEST, CLIENTS, FLOOR
from fedstrata.record.table import score_column
from fedstrata.record.target import MEAN_OF_CLIENTS, TARGETS
from fedstrata.record.words import INFINITE

FIGURES = {"mean": "mean", "sd": "standard_deviation", "min": "minimum", "max": "maximum", "n": "n"}
"""What stands behind a column's name in the CSV file, and its name in `table.json`."""
NOTHING = "-"
OTHER_DATA = "†"
UNDER_FLOOR = "‡"


def write_table(table: Mapping[str, Any], folder: Path) -> None:
    """Writes `table.json`, `table.csv` and `table.md`; each appears complete or not at all."""
    texts = {
        "table.json": json.dumps(table, indent=2, allow_nan=False, ensure_ascii=False) + "\n",
        "table.csv": csv_text(table),
        "table.md": markdown(table),
    }
    for name, text in texts.items():
        write_atomically(folder / name, [text.encode()])


def grid(table: Mapping[str, Any]) -> tuple[list[str], list[list[tuple[str, bool]]]]:
    """Returns the titles and rows that people see; the first column holds the rows' names.

    A cell is its text, and whether it is the best of its column.
    """
    shown = {key: Column(**table["columns"][key]) for key in table["shown"] if key in table["columns"]}
    compared = table["metric"] if table["baseline"] is not None else None
    titles = [""]
    for key, column in shown.items():
        titles += [column.title, *([f"{column.title} - baseline"] if key == compared else [])]
    rows = []
    for row in table["rows"]:
        cells = [(_name(row), False)]
        for key, column in shown.items():
            text, best = _mean(row, key, column)
            marked = _under_floor(row) and key == _judged_by(table, row)
            cells.append((f"{text} {UNDER_FLOOR}" if marked else text, best))
            if key == compared:
                cells.append((_difference(row["values"][key], column), False))
        rows.append(cells)
    return titles, rows


def markdown(table: Mapping[str, Any]) -> str:
    """Returns the table in Markdown, the best mean of each column in bold, with notes below it."""
    titles, rows = grid(table)

    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"

    lines = [line(titles), line(["---", *["---:"] * (len(titles) - 1)])]
    lines += [line([f"**{text}**" if best else text for text, best in row]) for row in rows]
    return "\n".join([*lines, "", *(f"- {note}" for note in notes(table))]) + "\n"


def csv_text(table: Mapping[str, Any]) -> str:
    """Returns every column, shown or not, one line a row, in the units of `table.json`."""
    keys = list(table["columns"])
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    head = ["row", "seeds", "failed", "same_data", "tuned"]
    writer.writerow([*head, *(f"{key}_{figure}" for key in keys for figure in FIGURES)])
    for row in table["rows"]:
        failed = [str(cell["seed"]) for cell in row["cells"] if not cell["finished"]]
        seeds = " ".join(str(cell["seed"]) for cell in row["cells"])
        tuned = row["tuning"]["chosen"] if row["tuning"] else None
        values = [(row["values"][key] or {}).get(name) for key in keys for name in FIGURES.values()]
        writer.writerow([row["name"], seeds, " ".join(failed), row["same_data"], tuned, *values])
    return text.getvalue()


def notes(table: Mapping[str, Any]) -> list[str]:
    """Returns what a reader must know to read the table."""
    seeds = ", ".join(map(str, table["seeds"]))
    several = len(table["seeds"]) > 1
    spread = f"Mean ± sample standard deviation over the seeds {seeds}" if several else f"Seed {seeds}"
    lines = [f"{spread}. {_units(table)} Bold: the best mean of a column."]
    if table["baseline"] is not None and table["metric"] in table["shown"]:
        lines.append(
            f"Baseline: {table['baseline']}. Differences: the row minus the baseline, mean over the seeds "
            f"that both have{' (95 % interval of the mean)' if several else ''}."
        )
        if table["p_values"]:
            lines.append("p: paired t-test over seeds, two-sided, corrected by Holm's method for all rows.")
    if "rounds_to_90_percent" in table["shown"]:
        falls = table["metric"] in table["lower_is_better"]
        reached = "is at most the run's own best / 0.9" if falls else "reaches 90 % of the run's own best"
        lines.append(f"Rounds to 90 %: until the validation score {reached}.")
    if not TARGETS.keys().isdisjoint(table["shown"]):
        lines.append(_target(table))
    lines += _privacy(table)
    lines += _floors(table)
    absent = [key for key in table["shown"] if key not in table["columns"]]
    if absent:
        lines.append(f"No run has {', '.join(absent)}.")
    lines += [_tuning(row, table["lower_is_better"]) for row in table["rows"] if row["tuning"]]
    lines += [
        f"{row['name']}, seed {cell['seed']} failed: {' '.join((cell['message'] or '').split())}"
        for row in table["rows"]
        for cell in row["cells"]
        if not cell["finished"]
    ]
    if not all(row["same_data"] for row in table["rows"]):
        first = table["rows"][0]["name"]
        lines.append(f"{OTHER_DATA} not the same documents as {first}, or not at the same clients.")
    return [*lines, *_machine(table)]


def _judged_by(table: Mapping[str, Any], row: Mapping[str, Any]) -> str | None:
    """Returns the column of the score that a row's runs are judged by: that of all documents, if any."""
    metric = table["metric"]
    return metric if metric is None or row["values"].get(metric) else f"{CLIENTS}{metric}"


def _under_floor(row: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Returns the runs of a row whose score beats no floor of theirs, or not the highest."""
    return [cell for cell in row["cells"] if cell.get(FLOOR) and not cell[FLOOR]["beaten"]]


def _floors(table: Mapping[str, Any]) -> list[str]:
    """Says what floors are, where they are shown, and of which runs the scores mean little."""
    lines = []
    if FLOOR in table["shown"] and FLOOR in table["columns"]:
        lines.append("Floor: the best score of what takes no training, of each run; docs/scoring.md.")
    if under := [(row["name"], cell) for row in table["rows"] for cell in _under_floor(row)]:
        runs = ", ".join(f"{name}, seed {cell['seed']} ({cell[FLOOR]['name']})" for name, cell in under)
        lines.append(f"{UNDER_FLOOR} no better than its floor: {runs}.")
    return lines + [
        f"{row['name']}, seed {cell['seed']}: {cell['degenerate']}."
        for row in table["rows"]
        for cell in row["cells"]
        if cell.get("degenerate")
    ]


def _privacy(table: Mapping[str, Any]) -> list[str]:
    """Says of what epsilons are, and of whose runs there can be no claim; nothing where no run is private."""
    cells = [(row["name"], cell.get("privacy") or {}) for row in table["rows"] for cell in row["cells"]]
    private = [(name, own) for name, own in cells if own.get("mechanism")]
    if not private:
        return []
    units = ", ".join(dict.fromkeys(f"{own['unit']} at delta {own['delta']:g}" for _, own in private))
    lines = [f"Epsilon: the largest over clients, of one {units}. Scores are {NOT_COVERED}."]
    if seeded := dict.fromkeys(name for name, own in private if own["noise"] == "seeded"):
        lines.append(f"{', '.join(seeded)}: {SEEDED}.")
    return lines


def _target(table: Mapping[str, Any]) -> str:
    """Says what score it is the time to."""
    target, metric = table["target"], table["metric"]
    if target is None:
        return "Target: there is none, since a run was never scored on the validation split."
    column = score_column(metric, metric, table["lower_is_better"])
    shown = ", ".join(f"{column.text(score)} (seed {seed})" for seed, score in target["by_seed"].items())
    whose = ", mean of clients" if target["of"] == MEAN_OF_CLIENTS else ""
    best = "lowest" if target["falling"] else "highest"
    return f"Target: validation {metric}{whose} {shown}, the {best} that every run of the seed reaches."


def _units(table: Mapping[str, Any]) -> str:
    """Says what the figures of scores are: points, but for those of which less is better."""
    costs = COSTS.keys() | TARGETS.keys() | {FLOOR}
    scores = [key for key in table["shown"] if key not in costs]
    falling = [
        name for name in table["lower_is_better"] if any(f".{key}".endswith(f".{name}") for key in scores)
    ]
    told = "Scores are points (hundredths) on the test split."
    if falling:
        others = any(not any(f".{key}".endswith(f".{name}") for name in falling) for key in scores)
        told = f"Of {', '.join(falling)} on the test split lower is better."
        told += " Other scores are points (hundredths)." if others else ""
    best = any(key.startswith(BEST) for key in scores)
    return told + (" Those of best rounds are of the validation split." if best else "")


def _machine(table: Mapping[str, Any]) -> list[str]:
    """Says what the runs ran on, and whether their seconds can be compared."""
    cells = [cell for row in table["rows"] for cell in row["cells"] if cell["finished"]]
    threads = sorted({cell["threads"] for cell in cells})
    machine = table["machine"]
    parts = [f"{machine['cores']} cores of {machine['processor']}", f"{machine['jobs']} side by side"]
    if threads:
        parts.append(f"{' or '.join(map(str, threads))} {'thread' if threads == [1] else 'threads'} a run")
    parts += [f"{name} {number}" for name, number in table["versions"].items()]
    lines = [f"{', '.join(parts)}."]
    if len(threads) > 1:
        lines.append("Runs had different numbers of threads: their seconds do not compare.")
    return lines


def _tuning(row: Mapping[str, Any], falling: Collection[str]) -> str:
    tuning = row["tuning"]
    column = score_column(tuning["metric"], tuning["metric"], falling)
    tried = ", ".join(
        f"{trial['value']}: {'failed' if trial['validation'] is None else column.text(trial['validation'])}"
        for trial in tuning["tried"]
    )
    chosen = "nothing" if tuning["chosen"] is None else f"{tuning['setting']} {tuning['chosen']}"
    decided = f"by validation {tuning['metric']} of seed {tuning['seed']}"
    return f"{row['name']}: {chosen} was chosen {decided} ({tried})."


def _name(row: Mapping[str, Any]) -> str:
    failed = [str(cell["seed"]) for cell in row["cells"] if not cell["finished"]]
    mark = "" if row["same_data"] else f" {OTHER_DATA}"
    return f"{row['name']}{mark}" + (f" (failed: seed {', '.join(failed)})" if failed else "")


def _mean(row: Mapping[str, Any], key: str, column: Column) -> tuple[str, bool]:
    """Returns mean and spread, and if it is the best; no spread where there is one value or all are equal."""
    cell = row["values"][key]
    if cell is None:
        unbounded = key == "epsilon" and any(each["privacy"]["noise"] == "seeded" for each in row["cells"])
        return INFINITE if unbounded else NOTHING, False
    text = column.mean([*cell["by_seed"].values()])
    if cell["n"] < len(row["cells"]):
        text = f"{text} (n={cell['n']})"
    return text, cell["best"]


def _difference(cell: Mapping[str, Any] | None, column: Column) -> str:
    difference = cell and cell["difference"]
    if not difference:
        return NOTHING
    text = column.text(difference["mean"])
    if difference["low"] is not None:
        text += f" ({column.text(difference['low'])} to {column.text(difference['high'])})"
    return text if difference["p"] is None else f"{text}, p {difference['p']:.3f}"
