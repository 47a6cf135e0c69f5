"""Do the tests of differential privacy notice when the mechanism is wrong?

    python benchmarks/privacy/mutations.py

Copies the sources and what tests read into a temporary folder, makes one mistake at a time there, each a
replacement of exact text, and runs the few tests that must go red. A mistake that they see is killed; tests
that do not end in time, or cannot be collected, notice nothing. First all of these tests are run without any
mistake, and have to pass. A mutant whose text is not there exactly once ends the script, so that none is left
behind when the code changes. Last line: one JSON object; the status is 1 unless all were killed.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
PACKAGE = "src/fedstrata"
CLIPPING, ROWS = "privacy/clipping.py", "privacy/row_gradients.py"
RANDOMNESS, SAMPLING = "privacy/randomness.py", "privacy/sampling.py"
CENTRAL, RELEASED, BUDGETS = "privacy/central.py", "privacy/released.py", "engine/budgets.py"
SITE_POLICY, SHARED_SETTINGS, JOINED_RUNS = (
    f"engine/remote/{name}.py" for name in ("site_policy", "shared_settings", "joined_runs")
)
MECHANISM, RELEASES, TURN = "privacy/mechanism.py", "client/releases.py", "client/turn.py"

OF_CLIPPING = "tests/privacy/test_clipping.py"
OF_UNITS = "tests/privacy/test_units.py"
OF_RANDOMNESS = "tests/privacy/test_randomness.py"
OF_SAMPLING = "tests/privacy/test_sampling.py"
OF_JOINS = "tests/engine/remote/test_lying_joins.py"
OF_TURNS = "tests/engine/test_private_turns.py"
OF_RELEASED = "tests/privacy/test_released.py"
OF_CENTRAL = "tests/privacy/test_central_noise.py"
OF_DEFAULT = "tests/engine/remote/test_default_budget.py"
OF_RUNS = "tests/privacy/test_private_runs.py"

RED = 1
"""How pytest ends when tests failed; other errors are not a test that noticed something."""


@dataclass(frozen=True)
class Mutant:
    """One mistake.

    Attributes:
        name: What is wrong.
        changes: File (below the package), text, and what takes its place.
        tests: Which must go red: tests, or files or folders of which at least one must.
    """

    name: str
    changes: Sequence[tuple[str, str, str]]
    tests: Sequence[str]


MUTANTS = [
    Mutant(
        "the server may have noise that it can draw again",
        [(SHARED_SETTINGS, "            *_repeatable_noise(said, source.values),\n", "")],
        [f"{OF_JOINS}::test_noise_that_the_server_can_draw_again_needs_the_own_file_of_the_site"],
    ),
    Mutant(
        "a policy that demands an epsilon takes noise that protects nothing",
        [(SITE_POLICY, 'if privacy.noise == "seeded":', "if False:")],
        [f"{OF_JOINS}::test_noise_that_the_server_can_draw_again_needs_the_own_file_of_the_site"],
    ),
    Mutant(
        "a site takes part in any run that the server names",
        [(JOINED_RUNS, "if len(known) >= self._runs:", "if False:")],
        [f"{OF_JOINS}::test_a_site_takes_part_in_one_run"],
    ),
    Mutant(
        "scoring is bound by no round of a policy",
        [(SITE_POLICY, "<= order.round <= most:", "<= order.round <= (most if of_method else 10**9):")],
        [f"{OF_JOINS}::test_every_bound_holds_for_scoring"],
    ),
    Mutant(
        "a round is scored as often as the server likes",
        [(SITE_POLICY, "if counts and not runs.may_score(", "if False and not runs.may_score(")],
        [f"{OF_JOINS}::test_scorings_of_a_round_are_bounded"],
    ),
    Mutant(
        "units of a step do without different blocks",
        [(CLIPPING, "feed, lambda: active, tally)", "feed, leave_out, tally)")],
        [f"{OF_CLIPPING}::test_all_units_of_a_step_do_without_the_same_blocks"],
    ),
    Mutant(
        "a patient may be at several clients",
        [("engine/privacy.py", "if len(who) > 1]", "if len(who) > 99]")],
        [f"{OF_RUNS}::test_a_partition_that_parts_a_patient_is_refused"],
    ),
    Mutant(
        "turns of other noise are counted by the noise of now",
        [(RELEASES, "if others := [noise for", "if others := 0 and [noise for")],
        [f"{OF_TURNS}::test_turns_of_other_noise_are_none_of_the_run"],
    ),
    Mutant(
        "who has lost what it kept has spent nothing before",
        [("engine/remote/turns.py", "self._before[client] += self._said[client]", "pass")],
        [f"{OF_TURNS}::test_who_has_lost_what_it_kept_has_spent_it_all_the_same"],
    ),
    Mutant(
        "a central round that is stopped once its model is out is free",
        [
            (
                "engine/run.py",
                "dict.fromkeys(clients, self._noised.count)",
                "dict.fromkeys(clients, self.committed)",
            )
        ],
        [f"{OF_CENTRAL}::test_turns_are_recorded_if_no_epsilon_can_be_worked_out"],
    ),
    Mutant(
        "half of sigma",
        [(CLIPPING, "deviation = self.privacy.sigma *", "deviation = 0.5 * self.privacy.sigma *")],
        [f"{OF_CLIPPING}::test_the_noise_of_a_step_is_sigma_times_the_clip_over_the_expected_batch"],
    ),
    Mutant(
        "noise not in units of the clip",
        [(CLIPPING, "self.privacy.sigma * self.privacy.settings.clip", "self.privacy.sigma")],
        [f"{OF_UNITS}::test_noise_is_added_to_the_sum_of_units_too"],
    ),
    Mutant(
        "noise after the division, of half the size",
        [
            (
                CLIPPING,
                "noised = piece.double()\n",
                "noised = piece.double().div_(self.expected_batch)\n",
            ),
            (CLIPPING, "alpha=deviation)", "alpha=deviation / (2 * self.expected_batch))"),
            (CLIPPING, "noised.div_(self.expected_batch))", "noised)"),
        ],
        [f"{OF_CLIPPING}::test_the_noise_of_a_step_is_sigma_times_the_clip_over_the_expected_batch"],
    ),
    Mutant(
        "clipped by batch",
        [
            (
                CLIPPING,
                "for unit in units:\n",
                "for unit in [[one for unit in units for one in unit]] if units else []:\n",
            )
        ],
        [f"{OF_CLIPPING}::test_a_unit_is_the_gradient_of_its_mean_loss"],
    ),
    Mutant(
        "every tensor clipped by itself",
        [
            (
                CLIPPING,
                "self._add(totals, gradients, scale * min(1.0, self._clip / max(norm, SHORTEST)))",
                "[\n"
                "            t.add_(g, alpha=scale * min(1.0, self._clip / max(scale * float(n), 1e-38)))\n"
                "            for t, g, n in zip(totals, gradients, norms, strict=True)\n"
                "            ]",
            )
        ],
        [f"{OF_CLIPPING}::test_a_long_gradient_is_as_long_as_the_clip_and_a_short_one_is_what_it_was"],
    ),
    Mutant(
        "every tensor of a row clipped by itself",
        [
            (
                ROWS,
                "torch.stack([_lengths(own) for own in gradients]).norm(dim=0)",
                "torch.stack([_lengths(own) for own in gradients]).amax(dim=0)",
            )
        ],
        [f"{OF_CLIPPING}::test_rows_at_once_are_the_rows_one_by_one"],
    ),
    Mutant(
        "embeddings are not clipped with the rest of a row",
        [
            (
                ROWS,
                "index_add_(0, gradients.rows, squares).sqrt()",
                "index_add_(0, gradients.rows, squares * 0).sqrt()",
            )
        ],
        [f"{OF_CLIPPING}::test_rows_at_once_are_the_rows_one_by_one"],
    ),
    Mutant(
        "an embedding within the blocks has its rows",
        [(ROWS, "_is_plain_embedding(layer) and id(layer.weight) in below", "_is_plain_embedding(layer)")],
        [f"{OF_CLIPPING}::test_embeddings_have_rows_below_the_blocks_alone"],
    ),
    Mutant(
        "rows not clipped at all",
        [(ROWS, "(clip / found.clamp(min=SHORTEST)).clamp(max=1.0)", "torch.ones_like(found)")],
        [f"{OF_CLIPPING}::test_rows_at_once_are_the_rows_one_by_one"],
    ),
    Mutant(
        "norms in float32, which are too short",
        [
            (ROWS, "if kept < gradients.ndim and gradients.shape[-1] <= STRETCH:", "if False:"),
            (
                ROWS,
                "torch.linalg.vector_norm(together, dim=-1, dtype=torch.float64)",
                "torch.linalg.vector_norm(together, dim=-1).double()",
            ),
        ],
        [f"{OF_UNITS}::test_lengths_are_not_too_short"],
    ),
    Mutant(
        "shuffled batches of a fixed size",
        [
            (
                SAMPLING,
                "return np.flatnonzero(randomness.uniform(units) < rate)",
                "return np.sort(np.argsort(randomness.uniform(units))[: round(units * rate)])",
            )
        ],
        [
            f"{OF_SAMPLING}::test_units_and_steps_are_independent",
            f"{OF_SAMPLING}::test_a_step_may_be_empty",
        ],
    ),
    Mutant(
        "divided by the number drawn",
        [
            (
                CLIPPING,
                "self.drawn += len(drawn)\n",
                "self.drawn += len(drawn)\n        self.__dict__['just'] = max(1, len(drawn))\n",
            ),
            (CLIPPING, "noised.div_(self.expected_batch)", "noised.div_(self.__dict__['just'])"),
        ],
        [f"{OF_CLIPPING}::test_a_unit_is_the_gradient_of_its_mean_loss"],
    ),
    Mutant(
        "the rate is of the units that are there",
        [
            (
                CLIPPING,
                "rate = self.expected_batch / self.declared",
                "rate = min(1.0, self.expected_batch / max(1, len(self.units)))",
            )
        ],
        [f"{OF_UNITS}::test_the_rate_is_of_declared_units_whoever_is_there"],
    ),
    Mutant(
        "twice the windows of a unit",
        [(CLIPPING, "self.privacy.settings.windows,", "2 * self.privacy.settings.windows,")],
        [f"{OF_UNITS}::test_a_step_has_no_more_windows_of_a_unit_than_is_said"],
    ),
    Mutant(
        "the noise of every turn the same, seeded",
        [(TURN, 'settings, rng.child("privacy"))', 'settings, self.seed.child("privacy"))')],
        [f"{OF_TURNS}::test_an_update_has_noised_tensors_and_declared_numbers_alone"],
    ),
    Mutant(
        "the noise of every turn the same, secure",
        [(RANDOMNESS, "os.urandom(32)", "bytes(32)")],
        [f"{OF_RANDOMNESS}::test_noise_depends_on_no_other_noise"],
    ),
    Mutant(
        "the noise of every step the same",
        [
            (
                CLIPPING,
                "self.randomness.normal(len(piece))",
                "torch.randn(len(piece), generator=torch.Generator().manual_seed(0), dtype=torch.float64)",
            )
        ],
        [f"{OF_CLIPPING}::test_no_two_steps_have_the_same_noise"],
    ),
    Mutant(
        "the noise of every tensor the same",
        [
            (
                CLIPPING,
                "        for parameter, own in zip(parameters, sums, strict=True):\n",
                "        key = int(self.randomness.uniform(1)[0] * 2**50)\n"
                "        for parameter, own in zip(parameters, sums, strict=True):\n",
            ),
            (
                CLIPPING,
                "self.randomness.normal(len(piece))",
                "torch.randn(len(piece), generator=torch.Generator().manual_seed(key), dtype=torch.float64)",
            ),
        ],
        [f"{OF_UNITS}::test_no_two_tensors_have_the_same_noise"],
    ),
    Mutant(
        "secure noise of half the variance",
        [(RANDOMNESS, "piece *= (2.0 / _DRAWS) ** 0.5", "piece *= (1.0 / _DRAWS) ** 0.5")],
        [f"{OF_RANDOMNESS}::test_noise_is_standard_normal"],
    ),
    Mutant(
        "a fork draws its parent's noise",
        [(RANDOMNESS, "if os.getpid() != self._process:", "if False:")],
        [f"{OF_RANDOMNESS}::test_a_fork_is_refused_and_may_make_its_own"],
    ),
    Mutant(
        "an empty draw is skipped",
        [
            (
                CLIPPING,
                "            rows = [self",
                "            if not len(drawn):\n                continue\n            rows = [self",
            )
        ],
        [f"{OF_UNITS}::test_the_rate_is_of_declared_units_whoever_is_there"],
    ),
    Mutant(
        "a killed turn is not spent",
        [(RELEASES, "self._number = self._insert(connection)", "self._number = 1")],
        [f"{OF_TURNS}::test_a_killed_turn_has_spent_what_a_whole_one_spends"],
    ),
    Mutant(
        "a turn is spent once it has ended",
        [
            (CLIPPING, "        self.begin()\n        rate", "        rate"),
            (
                CLIPPING,
                "adds nothing\n\n    def _rows_of",
                "adds nothing\n        self.begin()\n\n    def _rows_of",
            ),
        ],
        [
            f"{OF_UNITS}::test_a_turn_is_taken_down_before_anything_is_drawn",
            f"{OF_TURNS}::test_a_repeated_order_is_one_release_and_a_killed_one_is_spent",
        ],
    ),
    Mutant(
        "turns without end",
        [(RELEASES, "if (spent := len(begun)) >= self._allowed:", "if (spent := len(begun)) < 0:")],
        [f"{OF_TURNS}::test_a_killed_turn_has_spent_what_a_whole_one_spends"],
    ),
    Mutant(
        "a repeated order is computed anew",
        [(TURN, "before = release.finished(store) if release else None", "before = None")],
        [f"{OF_TURNS}::test_a_repeated_order_is_one_release_and_a_killed_one_is_spent"],
    ),
    Mutant(
        "another plan is answered with the same",
        [(RELEASES, "(*turn, plan.sha256())", '(*turn, "")')],
        [f"{OF_TURNS}::test_a_finished_turn_is_answered_with_what_was_sent_and_no_other_is"],
    ),
    Mutant(
        "a unit that is not finite is in the sum",
        [(CLIPPING, "if math.isfinite(norm):", "if True:")],
        [f"{OF_CLIPPING}::test_one_unit_moves_the_sum_by_at_most_the_clip"],
    ),
    Mutant(
        "a row that is not finite is in the sum",
        [
            (
                ROWS,
                "torch.where(found.isfinite(), factors, 0.0)",
                "torch.where(found.isfinite(), factors, 1.0)",
            )
        ],
        [f"{OF_CLIPPING}::test_a_row_that_is_not_finite_counts_as_zero_at_once_too"],
    ),
    Mutant(
        "a layer that runs twice has its rows",
        [(ROWS, "return taken if once and", "return taken if")],
        [f"{OF_UNITS}::test_rows_are_given_only_where_the_hooks_are_right"],
    ),
    Mutant(
        "a weight that is used elsewhere has its rows",
        [(ROWS, "and nowhere_else and", "and")],
        [f"{OF_UNITS}::test_rows_are_given_only_where_the_hooks_are_right"],
    ),
    Mutant(
        "tokens are taken for rows",
        [(ROWS, "nowhere_else and by_row else None", "nowhere_else else None")],
        [f"{OF_UNITS}::test_rows_are_given_only_where_the_hooks_are_right"],
    ),
    Mutant(
        "masks of dropout are drawn from the seed of the run, which the server knows",
        [("train/local.py", "if client.privacy is None else Seed(client.privacy.secret())", "")],
        [f"{OF_CLIPPING}::test_the_server_does_not_know_what_is_dropped"],
    ),
    Mutant(
        "blocks to leave out are drawn from the seed of the run",
        [("methods/droppeft.py", "if client.privacy is None else Seed(client.privacy.secret())", "")],
        [f"{OF_CLIPPING}::test_the_server_does_not_know_which_blocks_are_left_out"],
    ),
    Mutant(
        "the loss leaves",
        [(TURN, "for name in sorted(told)}", "for name in update.values}")],
        [f"{OF_TURNS}::test_an_update_has_noised_tensors_and_declared_numbers_alone"],
    ),
    Mutant(
        "an update weighs what is there",
        [
            (
                "core/client.py",
                "len(self.examples) if self.privacy is None else self.privacy.declared",
                "len(self.examples)",
            )
        ],
        [f"{OF_TURNS}::test_an_update_has_noised_tensors_and_declared_numbers_alone"],
    ),
    Mutant(
        "a client tells how many examples it has",
        [("client/site.py", "return self.declared or len(self.encode())", "return len(self.encode())")],
        [f"{OF_TURNS}::test_a_server_is_told_of_declared_units"],
    ),
    Mutant(
        "the accountant is told half of the rate",
        [
            (
                MECHANISM,
                "Mechanism(self.sigma, rate, self.steps * turns)",
                "Mechanism(self.sigma, rate / 2, self.steps * turns)",
            )
        ],
        [f"{OF_TURNS}::test_an_update_has_noised_tensors_and_declared_numbers_alone"],
    ),
    Mutant(
        "sigma is solved for half of the rate",
        [(MECHANISM, "max(rates.values()), steps)", "max(rates.values()) / 2, steps)")],
        [f"{OF_TURNS}::test_sigma_is_solved_for_all_steps_of_all_turns_and_spare_ones"],
    ),
    Mutant(
        "epsilon is of the steps of one round",
        [(MECHANISM, "self.steps * turns)", "self.steps)")],
        [f"{OF_TURNS}::test_an_update_has_noised_tensors_and_declared_numbers_alone"],
    ),
    Mutant(
        "sigma is solved for the steps of one round",
        [(MECHANISM, "steps = turns * (settings.steps or 1)", "steps = settings.steps or 1")],
        [f"{OF_TURNS}::test_sigma_is_solved_for_all_steps_of_all_turns_and_spare_ones"],
    ),
    Mutant(
        "sigma is solved for the least of the sites",
        [(MECHANISM, "max(rates.values()), steps)", "min(rates.values()), steps)")],
        [f"{OF_TURNS}::test_sigma_is_solved_for_the_site_with_the_fewest_units"],
    ),
    Mutant(
        "spare turns are free",
        [("engine/privacy.py", "turns += privacy.spare_turns", "turns += 0")],
        [f"{OF_TURNS}::test_sigma_is_solved_for_all_steps_of_all_turns_and_spare_ones"],
    ),
    Mutant(
        "more units than are declared",
        [("engine/privacy.py", "if 0 < declared < there else", "if False else")],
        [f"{OF_TURNS}::test_more_units_than_are_declared_are_refused"],
    ),
    Mutant(
        "a patient's documents are units of their own",
        [("data/split.py", "patient or document.id", "document.id")],
        [f"{OF_TURNS}::test_a_patient_has_all_of_her_documents"],
    ),
    Mutant(
        "single steps are not counted",
        [("privacy/accounting.py", "if each.steps and each.rate:", "if each.steps > 1 and each.rate:")],
        ["tests/privacy/test_accounting.py::test_at_rate_1_it_is_the_closed_form"],
    ),
    Mutant(
        "what a method sends is not compared with what was released",
        [
            (
                TURN,
                "private.released.require(self.method, order.handler, plan, update, layout, earlier)",
                "dict[str, str]()",
            )
        ],
        [f"{OF_RELEASED}::test_tensors_that_no_private_training_has_released_are_refused"],
    ),
    Mutant(
        "gradients without noise lead to something released",
        [("train/local.py", "client.privacy if gradients is None else None", "client.privacy")],
        [f"{OF_RELEASED}::test_tensors_that_no_private_training_has_released_are_refused"],
    ),
    Mutant(
        "a model that has moved on is what was released",
        [(RELEASED, "self._tensors.items() if digest(own) == self.hashes[name]}", "self._tensors.items()}")],
        [f"{OF_RELEASED}::test_something_else_beside_what_was_released_is_refused"],
    ),
    Mutant(
        "a count of examples leaves as the weight",
        [(TURN, "if update.weight != due:", "if False:")],
        [f"{OF_RELEASED}::test_something_else_beside_what_was_released_is_refused"],
    ),
    Mutant(
        "what was left out in one round may be sent in another",
        [(RELEASES, "if found == number and unsent]", "if unsent]")],
        [f"{OF_RELEASED}::test_a_later_turn_of_the_round_may_send_what_was_left_out_and_no_other_round_may"],
    ),
    Mutant(
        "a method has the answers of its base for halves of its own",
        [("core/method.py", "if _depth(cls, question) > changed:", "if False:")],
        [f"{OF_RELEASED}::test_a_half_of_its_own_needs_an_answer_of_its_own"],
    ),
    Mutant(
        "a run without an id begins the count anew",
        [(RELEASES, "(run = :run OR run IS NULL OR :run IS NULL)", "run IS :run")],
        [f"{OF_TURNS}::test_a_turn_without_a_run_id_counts_for_every_run"],
    ),
    Mutant(
        "a noised mean is not recorded",
        [(CENTRAL, "        self._record(number)\n", "")],
        [f"{OF_CENTRAL}::test_a_mean_is_recorded_before_it_is_returned"],
    ),
    Mutant(
        "a mean that is noised again is free",
        [
            (
                CENTRAL,
                'sum(event["event"] == "noised" for event in events) + earlier + resumed',
                "len(noised) + earlier + resumed",
            )
        ],
        [f"{OF_CENTRAL}::test_every_mean_that_was_noised_is_charged"],
    ),
    Mutant(
        "noised means without end",
        [(CENTRAL, "if self.count >= self._privacy.turns:", "if False:")],
        [f"{OF_CENTRAL}::test_a_mean_is_recorded_before_it_is_returned"],
    ),
    Mutant(
        "seeded noise has a finite epsilon",
        [(MECHANISM, "return None if seeded else self", "return self")],
        [f"{OF_TURNS}::test_sigma_is_solved_for_all_steps_of_all_turns_and_spare_ones"],
    ),
    Mutant(
        "a site has no budget over runs by default",
        [(BUDGETS, "if by_default and settings.boundable:", "if False:")],
        [f"{OF_DEFAULT}::test_a_server_with_other_run_ids_gets_no_more_than_one_run"],
    ),
    Mutant(
        "the budget by default is that of each process",
        [("engine/remote/joining.py", "experiment = with_budget(", "with_budget(")],
        [f"{OF_DEFAULT}::test_whoever_joins_has_it"],
    ),
    Mutant(
        "a later run raises the cap of the budget by default",
        [(BUDGETS, "(terms := budget.read_budget(path)[0])", "(terms := {})")],
        [f"{OF_DEFAULT}::test_another_process_of_the_site_has_the_same_budget_and_no_larger_one"],
    ),
]


def check(mutant: Mutant, root: Path) -> None:
    """Makes sure that the text of every change is there once.

    Raises:
        SystemExit: It is not.
    """
    for file, text, instead in mutant.changes:
        count = (root / PACKAGE / file).read_text(encoding="utf-8").count(text)
        if count != 1 or text == instead:
            raise SystemExit(f"{mutant.name!r}: {file} has this {count} times, and not once:\n{text}")


def apply(mutant: Mutant, root: Path) -> None:
    """Makes the mistake in a copy."""
    for file, text, instead in mutant.changes:
        path = root / PACKAGE / file
        path.write_text(path.read_text(encoding="utf-8").replace(text, instead), encoding="utf-8")


def copied(into: Path) -> Path:
    """Copies what the tests need."""
    for folder in ("src", "tests", "benchmarks", "docs", "examples"):
        shutil.copytree(REPOSITORY / folder, into / folder, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "CONTRIBUTING.md", "README.md", "LICENSE"):
        shutil.copy(REPOSITORY / name, into)
    return into


def status_of(tests: Sequence[str], root: Path, limit: float, marked: str = "") -> tuple[int | None, str]:
    """Returns how pytest ended, none if it did not in time, and what it wrote.

    Args:
        tests: Tests, files or folders.
        root: The copy.
        limit: How many seconds it has.
        marked: Which of these tests run, by their markers; all if empty.
    """
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-m", marked, *tests]
    environment = {
        **os.environ,
        "PYTHONPATH": str(root / "src"),
        "PYTHONDONTWRITEBYTECODE": "1",
        "OMP_NUM_THREADS": "1",
        "TORCHDYNAMO_DISABLE": "1",
    }
    try:
        done = subprocess.run(
            command, cwd=root, env=environment, capture_output=True, text=True, timeout=limit, check=False
        )
    except subprocess.TimeoutExpired:
        return None, ""
    return done.returncode, done.stdout + done.stderr


def killed(mutant: Mutant, limit: float, marked: str = "") -> bool:
    """Returns whether the tests notice a mistake; see `status_of`."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        root = copied(Path(folder))
        apply(mutant, root)
        status, told = status_of(mutant.tests, root, limit, marked)
    noticed = status == RED
    first = next((line for line in told.splitlines() if line.startswith(("E   ", "FAILED", "ERROR"))), "")
    took = f"{time.monotonic() - began:.0f} s"
    word = "killed  " if noticed else "SURVIVED"
    print(f"{word} {mutant.name}, {took} ({first.strip()[:110]})", flush=True)
    return noticed


def main(mutants: Sequence[Mutant] = MUTANTS, *, marked: str = "", limit: float = 180.0) -> None:
    """Makes the mistakes that the command line names, or all of them.

    Args:
        mutants: All of them.
        marked: Which of their tests run, by their markers; all if empty.
        limit: Seconds that the tests of a mutant have, if the command line does not say.
    """
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--only", nargs="+", metavar="NAME", help="mutants by name; all if none")
    parser.add_argument("--limit", type=float, default=limit, help="seconds of a mutant's tests")
    parser.add_argument("--jobs", type=int, default=2, help="mutants at a time")
    parser.add_argument(
        "--mutants-only", action="store_true", help="trust that the tests pass without a mistake"
    )
    options = parser.parse_args()
    names = {mutant.name for mutant in mutants}
    if unknown := set(options.only or ()) - names:
        parser.error(f"no such mutant: {', '.join(sorted(unknown))}; there are: {', '.join(sorted(names))}")
    chosen = [mutant for mutant in mutants if options.only is None or mutant.name in options.only]
    for mutant in chosen:
        check(mutant, REPOSITORY)
    tests = sorted({test for mutant in chosen for test in mutant.tests})
    if not options.mutants_only:
        with tempfile.TemporaryDirectory() as folder:
            status, told = status_of(tests, copied(Path(folder)), 4 * options.limit, marked)
        if status != 0:
            raise SystemExit(f"without a mistake these tests end with {status}:\n{told[-4000:]}")
    with ThreadPoolExecutor(options.jobs) as several:
        found = list(several.map(lambda mutant: killed(mutant, options.limit, marked), chosen))
    print(json.dumps({"mutants": len(found), "killed": sum(found)}))
    sys.exit(not all(found))


if __name__ == "__main__":
    main()
