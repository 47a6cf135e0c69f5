"""Does the fast suite notice mistakes in twenty modules?

    python benchmarks/reliability/suite_mutations.py
    python benchmarks/reliability/suite_mutations.py --mutants-only --jobs 1

As `../privacy/mutations.py`, which makes the mistakes and runs the tests. Here there is one mistake in each
of twenty modules, and none in privacy, which has mutants of its own. Only the tests that `make test` runs
count. A mutant names whole folders or files, so that tests in them can be moved, merged and renamed.
"""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "privacy"))

from mutations import Mutant, main

FAST = "not slow and not engines"
"""What `make test` runs."""
LIMIT = 600.0
"""Seconds; a folder may take minutes until the test that notices."""

MUTANTS = [
    Mutant(
        "a mean of tensors in 16 bits forgets the weights",
        [("aggregate/mean.py", ".copy_(part), alpha=weight)", ".copy_(part))")],
        ["tests/aggregate"],
    ),
    Mutant(
        "Krum looks at a neighbour too many",
        [("aggregate/robust.py", "len(products) - hostile - 2)", "len(products) - hostile - 1)")],
        ["tests/aggregate"],
    ),
    Mutant(
        "a client that trained is taken to hold what was merged after it",
        [
            (
                "methods/fedtlu.py",
                "dict.fromkeys(uploaded.clients, number - 1)",
                "dict.fromkeys(uploaded.clients, number)",
            )
        ],
        ["tests/methods/test_fedtlu.py", "tests/invariants"],
    ),
    Mutant(
        "a schedule waits one round more than its patience",
        [
            (
                "policies/select.py",
                "if self.waited + 1 < schedule.patience:",
                "if self.waited < schedule.patience:",
            )
        ],
        ["tests/policies"],
    ),
    Mutant(
        "alpha is the rank where none is set, half of the documented scale",
        [
            (
                "adapters/attach.py",
                "lora_alpha=settings.alpha_used,",
                "lora_alpha=settings.alpha or settings.rank,",
            )
        ],
        ["tests/adapters"],
    ),
    Mutant(
        "an I- goes on with a mention of another type",
        [
            (
                "tasks/ner.py",
                "(types == np.concatenate([[0], types[:-1]]))",
                "(np.concatenate([[0], types[:-1]]) > 0)",
            )
        ],
        ["tests/tasks/test_ner.py"],
    ),
    Mutant(
        "a mention of marked-up text need not be there without gaps",
        [
            (
                "tasks/instruction/markup.py",
                "if len(stretch) and stretch[0] >= 0 and (np.diff(stretch) == 1).all():",
                "if len(stretch) and stretch[0] >= 0:",
            )
        ],
        ["tests/tasks/test_markup.py"],
    ),
    Mutant(
        "an interval leaves out its whole share at either end",
        [("metrics/stats.py", "[(1.0 - level) / 2.0, (1.0 + level) / 2.0]", "[1.0 - level, level]")],
        ["tests/metrics"],
    ),
    Mutant(
        "a linear schedule falls at once by the share of its warmup",
        [("train/local.py", "max(0.0, (steps - step) / rest)", "max(0.0, (steps - step) / steps)")],
        ["tests/train"],
    ),
    Mutant(
        "the settings of generation keep token ids from before a cut of the vocabulary",
        [
            (
                "models/vocabulary.py",
                "    if module.can_generate():\n        _remap(module.generation_config, new)\n",
                "",
            )
        ],
        ["tests/models/test_vocabulary.py"],
    ),
    Mutant(
        "offsets in BRAT count a line end of Windows as two characters alone",
        [
            (
                "data/readers/brat.py",
                '        if "\\r\\n" in text:\n            yield text.replace("\\r\\n", "\\n")\n',
                "",
            )
        ],
        ["tests/data/readers/test_brat.py"],
    ),
    Mutant(
        "by default a patient's documents come to training and to test",
        [
            (
                "data/split.py",
                'patient = document.patient if by != "document" else ""',
                'patient = document.patient if by == "patient" else ""',
            )
        ],
        ["tests/data/test_split.py", "tests/data/test_patients.py"],
    ),
    Mutant(
        "a run goes on from a round that was never committed",
        [
            (
                "engine/checkpoint.py",
                "(number for number in self.rounds() if number <= committed)",
                "(number for number in self.rounds() if number <= committed + 1)",
            )
        ],
        ["tests/engine/test_checkpoint.py"],
    ),
    Mutant(
        "8 bits are filled one too far, and the largest number changes its sign",
        [("wire/quantize.py", "LARGEST = 127", "LARGEST = 128")],
        ["tests/wire"],
    ),
    Mutant(
        "the gradient of the ends of a divided model grows with the batches of a step",
        [
            (
                "split/client_step.py",
                "torch._foreach_mul_(found, 1.0 / terms)",
                "torch._foreach_mul_(found, len(batches) / terms)",
            )
        ],
        ["tests/split", "tests/invariants/test_split_reductions.py"],
    ),
    Mutant(
        "a client that sent nothing counts among those that delivered",
        [("record/summary.py", 'client["bytes_up"] > 0 for', 'client["bytes_up"] >= 0 for')],
        ["tests/record", "tests/engine/test_drop_outs.py"],
    ),
    Mutant(
        "of losses the highest is chosen",
        [("comparing/compare.py", "sign = -1.0 if falling else 1.0", "sign = 1.0")],
        ["tests/comparing"],
    ),
    Mutant(
        "training documents that GOLD lacks are scored with a part",
        [("results/document_pairs.py", "others = (known | elsewhere) - ids", "others = known - ids")],
        ["tests/cli/test_score.py", "tests/results"],
    ),
    Mutant(
        "a setting whose value holds a slash is taken for a file",
        [
            (
                "cli/options.py",
                'if "=" in text and "/" not in text.partition("=")[0]]',
                'if "=" in text and "/" not in text]',
            )
        ],
        ["tests/cli"],
    ),
    Mutant(
        "of two values for a setting on the command line the first holds",
        [("core/settings/source.py", "for override in overrides:", "for override in reversed(overrides):")],
        ["tests/core", "tests/cli", "tests/api"],
    ),
]


if __name__ == "__main__":
    main(MUTANTS, marked=FAST, limit=LIMIT)
