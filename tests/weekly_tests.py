"""Slow tests that continuous integration leaves to `make test-weekly`, so that a landing takes 45 minutes.

Most stand beside others that a landing does run: a script at its smallest size by one of the same kind, a
further method between processes, an example whose commands other tests give by themselves. What a landing no
longer sees: the gate at epsilon 1, the guides, a compose file that makes a federation, a plan's memory beside
a run's, `fs.compare` from Python, `errors.py`, and sites whose numbers are a simulation's to the last bit.

By the beginning of their ids; the dearest first, with the seconds on one of two busy cores.
"""

WEEKLY = (
    "tests/test_benchmarks.py::test_the_last_line_is_one_json_object[split_training.py",  # 283
    "tests/test_guides.py::test_what_a_guide_shows_runs[docs/for_researchers.md",  # 233
    "tests/test_examples.py::test_an_example_runs[comparing",  # 197
    "tests/test_demo.py::test_a_look_up_table_is_at_least_15_f1_points_below_the_centralised_model",  # 175
    "tests/test_examples.py::test_an_example_runs[private_training",  # 175
    "tests/test_benchmarks.py::test_the_gates_of_texts_in_updates_hold",  # 163
    "tests/test_benchmarks.py::test_the_last_line_is_one_json_object[workers.py",  # 157
    "tests/test_benchmarks.py::test_what_is_disturbed_ends_as_if_nobody_had[kill.py",  # 150
    "tests/test_benchmarks.py::test_what_is_disturbed_ends_as_if_nobody_had[poor_line.py",  # 143
    "tests/test_contributing.py::test_what_it_says_to_add_is_checked_and_runs[method",  # 122
    "tests/planning/test_plan.py::test_estimates_are_within_20_percent_of_what_the_run_measures"
    "[fl_llama",  # 115
    "tests/test_examples.py::test_an_example_runs[five_sites",  # 112
    "tests/test_guides.py::test_what_a_guide_shows_runs[docs/for_engineers.md",  # 107
    "tests/cli/test_split.py::test_sites_that_say_nothing_but_their_documents_come_to_the_numbers_of_a_simulation"
    "[method={name: fedmedlora",  # 104
    "tests/cli/test_split.py::test_sites_that_say_nothing_but_their_documents_come_to_the_numbers_of_a_simulation"
    "[method={name: fedpeptao",  # 104
    "tests/auditing/test_gate.py::test_at_epsilon_1_no_more_is_found[3",  # 101
    "tests/auditing/test_gate.py::test_at_epsilon_1_no_more_is_found[4",  # 99
    "tests/planning/test_plan.py::test_estimates_are_within_20_percent_of_what_the_run_measures"
    "[private",  # 95
    "tests/auditing/test_gate.py::test_at_epsilon_1_no_more_is_found[2",  # 93
    "tests/test_benchmarks.py::test_the_last_line_is_one_json_object[private_step.py",  # 93
    "tests/test_benchmarks.py::test_the_last_line_is_one_json_object[served_memory.py",  # 92
    "tests/models/test_mini.py::test_its_pretraining_notes_and_the_demos_never_overlap[all",  # 90
    "tests/api/test_tools.py::test_a_comparison_is_a_frame_with_means_intervals_and_tests",  # 89
    "tests/auditing/test_gate.py::test_at_epsilon_1_no_more_is_found[5",  # 88
    "tests/test_benchmarks.py::test_what_is_disturbed_ends_as_if_nobody_had[fifty_sites.py",  # 87
    "tests/planning/test_plan.py::test_estimates_are_within_20_percent_of_what_the_run_measures[top2",  # 86
    "tests/test_benchmarks.py::test_the_last_line_is_one_json_object[engine_overhead.py",  # 83
    "tests/auditing/test_gate.py::test_without_noise_more_than_epsilon_2_is_found[2",  # 81
    "tests/test_benchmarks.py::test_the_last_line_is_one_json_object[client_memory.py",  # 80
    "tests/cli/test_split.py::test_sites_that_say_nothing_but_their_documents_come_to_the_numbers_of_a_simulation"
    "[method={name: layer_skipping",  # 77
    "tests/test_benchmarks.py::test_the_last_line_is_one_json_object[many_clients.py",  # 76
    "tests/auditing/test_gate.py::test_at_epsilon_1_no_more_is_found[1",  # 75
    "tests/test_benchmarks.py::test_two_mistakes_in_the_mechanism_are_noticed",  # 74
    "tests/test_examples.py::test_an_example_runs[own_method",  # 73
    "tests/test_packaging.py::test_a_package_of_plug_ins_is_found_where_it_is_installed",  # 72
    "tests/test_contributing.py::test_what_it_says_to_add_is_checked_and_runs[task",  # 67
    "tests/auditing/test_text_recovery.py::"
    "test_the_command_writes_numbers_and_shows_text_only_where_it_is_asked_to",  # 67
    "tests/auditing/test_gate.py::test_without_noise_more_than_epsilon_2_is_found[3",  # 66
    "tests/cli/test_compare.py::test_a_terminal_shows_every_run_and_a_failed_one_harms_no_other",  # 65
    "tests/auditing/test_gate.py::test_without_noise_more_than_epsilon_2_is_found[4",  # 64
    "tests/display/test_log.py::test_a_run_logs_its_rounds_and_its_end",  # 64
    "tests/auditing/test_gate.py::test_without_noise_more_than_epsilon_2_is_found[5",  # 61
    "tests/engine/test_budgets.py::test_every_run_of_a_comparison_counts_the_tuning_ones_too",  # 60
    "tests/test_deploy.py::test_the_commands_make_a_federation[by_systemd",  # 59
    "tests/cli/test_compare.py::test_ctrl_c_stops_the_runs_and_exits_130",  # 58
    "tests/cli/test_split.py::test_sites_that_say_nothing_but_their_documents_come_to_the_numbers_of_a_simulation"
    "[method={name: fedtlu",  # 57
    "tests/test_guides.py::test_what_a_guide_shows_runs[docs/for_hospitals.md",  # 56
    "tests/test_benchmarks.py::test_the_last_line_is_one_json_object[secure_sum.py",  # 53
    "tests/test_benchmarks.py::test_errors_and_differences_are_those_of_the_rows_models",  # 52
    "tests/test_packaging.py::test_the_wheel_alone_runs_the_python_of_the_readme",  # 51
    "tests/test_benchmarks.py::test_the_last_line_is_one_json_object[import_time.py",  # 50
    "tests/test_examples.py::test_an_example_runs[own_reader",  # 50
    "tests/test_deploy.py::test_the_commands_make_a_federation[by_compose",  # 50
    "tests/cli/test_split.py::test_texts_are_those_of_the_client_s_own_model",  # 43
    "tests/test_benchmarks.py::test_the_last_line_is_one_json_object[adapter_swap.py",  # 40
    "tests/auditing/test_text_recovery.py::test_with_a_secure_sum_the_server_reads_the_sum_alone",  # 37
    "tests/test_benchmarks.py::test_the_last_line_is_one_json_object[llama_shapes.py",  # 35
    "tests/test_benchmarks.py::test_the_last_line_is_one_json_object[split_wire.py",  # 28
    "tests/engines/test_secure_faults.py::"
    "test_a_site_that_is_killed_in_any_exchange_is_lost_to_it_and_comes_again[joint noise",  # 28
    "tests/test_benchmarks.py::test_the_last_line_is_one_json_object[prefix_cache.py",  # 25
    "tests/planning/test_private_plans.py::"
    "test_a_private_run_is_planned_as_it_then_runs[('privacy.unit=window",  # 24
    "tests/test_benchmarks.py::test_the_last_line_is_one_json_object[split_generation.py",  # 20
    "tests/engines/test_conformance.py::"
    "test_a_secure_sum_between_processes_is_that_of_a_simulation[plain-remote",  # 20
    "tests/test_benchmarks.py::test_the_last_line_is_one_json_object[sketched_selection.py",  # 16
    "tests/record/test_over_seeds.py::"
    "test_where_no_row_differs_any_p_is_below_5_percent_in_at_most_5_percent[8-5-None-2000",  # 3
    "tests/record/test_over_seeds.py::"
    "test_where_no_row_differs_any_p_is_below_5_percent_in_at_most_5_percent[8-3-None-2000",  # 3
    "tests/record/test_over_seeds.py::"
    "test_where_no_row_differs_any_p_is_below_5_percent_in_at_most_5_percent[4-3-None-2000",  # 1
    "tests/record/test_over_seeds.py::"
    "test_where_no_row_differs_any_p_is_below_5_percent_in_at_most_5_percent[4-2-None-2000",  # 1
    "tests/privacy/attacks/test_rates.py::test_intervals_hold_the_true_area_as_often_as_they_say[300",  # 2
    "tests/privacy/test_skellam_noise.py::test_noise_has_the_distribution[seeded-16777216",  # 1
    "tests/privacy/test_skellam_noise.py::test_noise_has_the_distribution[seeded-3700000000",  # 1
    "tests/privacy/test_skellam_noise.py::test_noise_has_the_distribution[secure-3700000000",  # 1
    "tests/privacy/test_skellam_noise.py::test_noise_has_the_distribution[secure-53",  # 1
)
