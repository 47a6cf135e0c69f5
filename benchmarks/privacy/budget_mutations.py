"""Do the tests of budgets notice when less is counted than was spent?

    python benchmarks/privacy/budget_mutations.py

As `mutations.py`, which makes the mistakes and runs the tests.
"""

from mutations import RELEASES, Mutant, main

BUDGET, ACCOUNTS = "privacy/budgets/budget.py", "privacy/budgets/accounts.py"
EVENTS, DATABASE = "privacy/budgets/events.py", "privacy/budgets/database.py"
OF_RUN = "engine/budgets.py"

OF_BUDGET = "tests/privacy/budgets/test_budget.py"
OF_EVENTS = "tests/privacy/budgets/test_events.py"
OF_RUNS = "tests/engine/test_budgets.py"

MUTANTS = [
    Mutant(
        "nothing is added when a run reserves",
        [(ACCOUNTS, "max(each.turns, before.reserved if before else 0),", "0,")],
        [f"{OF_BUDGET}::test_a_run_that_would_pass_the_cap_is_refused_and_leaves_nothing"],
    ),
    Mutant(
        "what a crashed run has reserved is given back",
        [
            (
                ACCOUNTS,
                "return self.begun if self.ended else max(self.reserved, self.begun)",
                "return self.begun",
            )
        ],
        [
            f"{OF_BUDGET}::test_what_was_reserved_and_never_begun_is_free_once_the_run_has_ended_and_not_before",
            f"{OF_RUNS}::test_a_run_that_was_stopped_keeps_all_it_had_reserved_until_it_has_gone_on_to_its_end",
        ],
    ),
    Mutant(
        "a run that goes on begins its account anew",
        [(ACCOUNTS, "max(each.begun, before.begun if before else 0),", "0,")],
        [f"{OF_BUDGET}::test_a_run_that_goes_on_keeps_its_account_and_nothing_of_it_gets_less"],
    ),
    Mutant(
        "a patient who is no longer there is forgotten",
        [(ACCOUNTS, "units = set(each.units) | self.units(each.account)", "units = set(each.units)")],
        [f"{OF_BUDGET}::test_a_run_that_goes_on_keeps_its_account_and_nothing_of_it_gets_less"],
    ),
    Mutant(
        "a turn is begun in the budget once it has ended",
        [
            (
                RELEASES,
                "            if self._account is not None:\n                self._account.begin()\n",
                "",
            ),
            (
                RELEASES,
                "            self._account.commit()  #",
                "            self._account.begin()\n            self._account.commit()  #",
            ),
        ],
        [f"{OF_BUDGET}::test_whatever_step_a_site_is_killed_after_no_less_is_counted_than_was_drawn_or_sent"],
    ),
    Mutant(
        "an update is finished before it is committed",
        [
            (
                RELEASES,
                "        if self._account is not None:\n            self._account.commit()  # before it is "
                "finished, from when on it may be sent without a new turn\n"
                "        with site_database(self._record.path, _TABLES) as connection:\n"
                '            values = hash_of(self._path("sent")), json.dumps(self.unsent), self._number\n'
                '            connection.execute("UPDATE releases SET sent = ?, unsent = ? WHERE number = ?", '
                "values)\n",
                "        with site_database(self._record.path, _TABLES) as connection:\n"
                '            values = hash_of(self._path("sent")), json.dumps(self.unsent), self._number\n'
                '            connection.execute("UPDATE releases SET sent = ?, unsent = ? WHERE number = ?", '
                "values)\n"
                "        if self._account is not None:\n            self._account.commit()\n",
            )
        ],
        [f"{OF_BUDGET}::test_whatever_step_a_site_is_killed_after_no_less_is_counted_than_was_drawn_or_sent"],
    ),
    Mutant(
        "turns begin beyond what is reserved, or after the end",
        [(BUDGET, '"NOT ended AND begun < reserved"', '"1"')],
        [
            f"{OF_BUDGET}::test_no_turn_begins_beyond_what_is_reserved_and_none_is_sent_that_did_not_begin",
            f"{OF_BUDGET}::test_what_was_reserved_and_never_begun_is_free_once_the_run_has_ended_and_not_before",
        ],
    ),
    Mutant(
        "two runs read before either writes",
        [
            (
                BUDGET,
                "    with writing(path, make=True) as connection:\n"
                "        _require_terms(connection, terms, path)\n"
                "        after = _require_room(Book.read(connection), requests, terms, most)\n",
                "    with reading(path) as before:\n"
                "        after = _require_room(Book.read(before), requests, terms, most)\n"
                "    with writing(path, make=True) as connection:\n"
                "        _require_terms(connection, terms, path)\n",
            )
        ],
        [f"{OF_BUDGET}::test_of_two_runs_that_reserve_at_once_one_alone_finds_the_room"],
    ),
    Mutant(
        "a budget that is gone is made anew by a turn",
        [
            (
                BUDGET,
                "        with writing(path) as connection:\n            changed",
                "        with writing(path, make=True) as connection:\n            changed",
            )
        ],
        [f"{OF_BUDGET}::test_a_budget_that_is_gone_lets_nothing_begin_or_leave"],
    ),
    Mutant(
        "runs of other noise are left out",
        [
            (
                EVENTS,
                "counts[replace(event, steps=1)] += event.steps",
                "counts[replace(event, steps=1)] += event.steps * (event.sigma == 1.0)",
            )
        ],
        [f"{OF_BUDGET}::test_each_patient_has_what_was_spent_for_it"],
    ),
    Mutant(
        "other noise beside Gaussian noise is free",
        [(EVENTS, "return max(*alone, min(together, added))", "return max(alone)")],
        [f"{OF_EVENTS}::test_both_kinds_together_are_no_less_than_the_divergences_say"],
    ),
    Mutant(
        "somebody at two clients has joint noise twice",
        [(OF_RUN, "if both := [name for name in each.units if name in seen]:", "if both := []:")],
        [f"{OF_RUNS}::test_nobody_at_two_clients_has_joint_noise_twice"],
    ),
    Mutant(
        "the least that anyone has spent counts",
        [(EVENTS, "key=lambda each: -each.epsilon", "key=lambda each: each.epsilon")],
        [f"{OF_EVENTS}::test_the_largest_is_that_of_whoever_spent_most"],
    ),
    Mutant(
        "equal names at two sites are always two patients",
        [(OF_RUN, "by_site = own.disjoint_sites and not apart", "by_site = True")],
        [f"{OF_RUNS}::test_equal_names_at_two_sites_are_one_patient_unless_sites_are_disjoint"],
    ),
    Mutant(
        "spare turns are not reserved",
        [
            (
                OF_RUN,
                "                privacy.turns,\n",
                "                privacy.turns - privacy.settings.spare_turns,\n",
            )
        ],
        [f"{OF_RUNS}::test_runs_compose_until_one_would_pass_the_cap_which_does_not_start"],
    ),
    Mutant(
        "a server gets what no budget can count",
        [("engine/budgets.py", "and not settings.boundable:", "and False:")],
        ["tests/engine/remote/test_default_budget.py::test_no_server_gets_what_no_budget_can_count"],
    ),
]


if __name__ == "__main__":
    main(MUTANTS)
