"""Do the tests of joint noise notice when its shares, its rounding or its accountant are wrong?

    python benchmarks/privacy/joint_noise_mutations.py

As `mutations.py`, which makes the mistakes and runs the tests.
"""

from mutations import Mutant, main

SKELLAM, NOISE, JOINT = "privacy/skellam.py", "privacy/skellam_noise.py", "privacy/joint.py"

TERMS, TURN = "privacy/joint_terms.py", "client/turn.py"

OF_SKELLAM = "tests/privacy/test_skellam.py"
OF_NOISE = "tests/privacy/test_skellam_noise.py"
OF_JOINT = "tests/privacy/test_joint.py"
OF_RUNS = "tests/privacy/test_joint_runs.py"

MUTANTS = [
    Mutant(
        "half the variance in a share of joint noise",
        [(JOINT, "** 2 / self.sharing.carriers", "** 2 / (2 * self.sharing.carriers)")],
        [f"{OF_JOINT}::test_the_fewest_honest_survivors_carry_the_noise"],
    ),
    Mutant(
        "joint noise takes every site",
        [(JOINT, "** 2 / self.sharing.carriers", "** 2 / self.sharing.sites")],
        [f"{OF_JOINT}::test_the_fewest_honest_survivors_carry_the_noise"],
    ),
    Mutant(
        "joint noise counts on colluders",
        [(JOINT, "threshold(self.sites) - self.colluders", "threshold(self.sites)")],
        [f"{OF_JOINT}::test_the_fewest_honest_survivors_carry_the_noise"],
    ),
    Mutant(
        "any number of colluders will do",
        [(JOINT, "not 0 <= self.colluders <= most", "self.colluders < 0")],
        [f"{OF_JOINT}::test_the_usual_colluders_are_fewer_than_a_sum_bears"],
    ),
    Mutant(
        "rounding is not conditioned",
        [(JOINT, "if not counts:", "if False:")],
        [f"{OF_JOINT}::test_rounding_that_always_goes_up_is_too_long_and_does_not_count"],
    ),
    Mutant(
        "the sensitivity is that before rounding",
        [(JOINT, "return max(1, math.floor(squared))", "return max(1, math.floor(self.scaled**2))")],
        [f"{OF_JOINT}::test_no_rounded_gradient_is_too_long"],
    ),
    Mutant(
        "rounding to the nearest",
        [(JOINT, "block += randomness.uniform(len(block))", "block += 0.5")],
        [f"{OF_JOINT}::test_rounding_is_unbiased"],
    ),
    Mutant(
        "the L1 term of Skellam noise is dropped",
        [(SKELLAM, " + 6.0 * l1)", ")")],
        [f"{OF_SKELLAM}::test_the_bound_is_the_theorem_worked_by_hand"],
    ),
    Mutant(
        "the rate of Skellam noise is squared",
        [(SKELLAM, "subsampled(mechanism.rate, whole", "subsampled(mechanism.rate**2, whole")],
        [f"{OF_SKELLAM}::test_it_tends_to_the_gaussian"],
    ),
    Mutant(
        "one step of Skellam noise is counted",
        [(SKELLAM, "sum(each.steps * _divergences(each)", "sum(_divergences(each)")],
        [f"{OF_SKELLAM}::test_epsilon_of_many_steps_is_never_below_a_loss_distribution"],
    ),
    Mutant(
        "inexact noise is free",
        [(SKELLAM, "math.exp(min(larger, 700.0))) * distance", "math.exp(min(larger, 700.0))) * 0.0")],
        [f"{OF_SKELLAM}::test_inexact_noise_is_paid_for_out_of_delta"],
    ),
    Mutant(
        "Skellam noise without its corrections",
        [(NOISE, "first = -0.5 - 0.25 * inverse", "first = -0.5")],
        [f"{OF_NOISE}::test_probabilities_are_right_to_the_last_bits"],
    ),
    Mutant(
        "all proposed noise is accepted",
        [(NOISE, "return places[accepted]", "return places[accepted | True]")],
        [f"{OF_NOISE}::test_noise_has_the_distribution"],
    ),
    Mutant(
        "zero is drawn from both sides",
        [(NOISE, "        places += negative\n", "")],
        [f"{OF_NOISE}::test_every_number_of_a_block_is_met_once"],
    ),
    Mutant(
        "a share for the sites that were asked and not for those of the roster",
        [(TERMS, "names, len(roster.sites))", "names, own.noise.sharing.sites)")],
        [f"{OF_RUNS}::test_the_sum_has_the_noise_that_is_claimed"],
    ),
    Mutant(
        "joint noise as the server says",
        [(TERMS, "if wrong := [", "if wrong := [] and [")],
        [f"{OF_RUNS}::test_no_site_takes_its_noise_from_the_server"],
    ),
    Mutant(
        "no joint noise if the server says none",
        [(TERMS, "if (own is None) != (said is None):", "if own is None and said is not None:")],
        [f"{OF_RUNS}::test_no_site_takes_its_noise_from_the_server"],
    ),
    Mutant(
        "any roster carries the noise",
        [(TERMS, "        noise.among(len(roster.sites))\n", "        noise.among(noise.sharing.sites)\n")],
        [f"{OF_RUNS}::test_a_roster_too_small_for_its_colluders_gets_no_sum"],
    ),
    Mutant(
        "a share of joint noise is sent again",
        [(TURN, "keeps = self.privacy.joint is None", "keeps = True")],
        ["tests/engine/test_private_turns.py::test_a_share_of_joint_noise_is_never_kept_to_be_sent_again"],
    ),
]


if __name__ == "__main__":
    main(MUTANTS)
