"""Makes a folder of some of a corpus's BRAT documents, by links: experiments on few reports of many.

python benchmarks/fed_medlora/reports.py SOURCE TARGET --reports 100 --seed 7
"""

import argparse
import random
from pathlib import Path


def main() -> None:
    """Links the reports that the seed draws."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("source", type=Path, help="a folder of .txt and .ann files")
    parser.add_argument("target", type=Path, help="the folder to write")
    parser.add_argument("--reports", type=int, required=True)
    parser.add_argument("--seed", type=int, default=7)
    given = parser.parse_args()
    texts = sorted(path.with_suffix(".txt") for path in given.source.glob("*.ann"))
    given.target.mkdir(parents=True, exist_ok=True)
    for text in random.Random(given.seed).sample(texts, given.reports):  # noqa: S311
        for path in (text, text.with_suffix(".ann")):
            link = given.target / path.name
            link.unlink(missing_ok=True)
            link.symlink_to(path.resolve())
    print(f'{{"reports": {given.reports}}}')


if __name__ == "__main__":
    main()
