# %% [markdown]
# # A reader of your own
#
# A hospital's export that no format describes: a file a note, with a line of offsets for each mention
# after the text. A reader says which files it reads and what documents a file holds. Sites are
# sub-folders, as for every format.

# %%
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

from pydantic import Field

import fedstrata as fs


class Export(fs.Reader):
    """`TEXT`, a line of dashes, and a line `start end type` a mention."""

    suffixes: ClassVar[tuple[str, ...]] = (".export",)

    rule: str = Field(default="---", min_length=1, description="The line between text and mentions.")

    def read(self, path: Path, annotations: Path | None) -> Iterator[fs.Document]:
        """Yields the one document of a file."""
        text, rule, after = path.read_text(encoding="utf-8-sig").partition(f"\n{self.rule}\n")
        if not rule:
            raise fs.DataError(path, "its text and its mentions are not divided", expected=self.rule)
        mentions = [line.split(maxsplit=2) for line in after.splitlines()]
        spans = tuple(fs.Span(int(start), int(end), label) for start, end, label in mentions)
        yield fs.Document(path.stem, text, spans=spans)


# %% [markdown]
# Some files to read, of two sites:

# %%
for site, documents in fs.synth(sites=2, notes=24).items():
    folder = Path("exports", site)
    folder.mkdir(parents=True)
    for number, document in enumerate(documents):
        lines = [f"{span.start} {span.end} {span.label}" for span in document.spans]
        (folder / f"{number}.export").write_text("\n".join([document.text, "---", *lines]))

# %% [markdown]
# The checker cuts files short and spoils their encoding: a reader must name the file and quote nothing of
# a note.

# %%
for clause in fs.testing.check_reader(Export(), "exports"):
    print("-", clause)
print(len(fs.read("exports", Export())), "documents")

# %% [markdown]
# In a module of its own, a reader is named in a configuration: `data: {format: "exports_reader:Export",
# path: exports}`. Objects need no name:

# %%
result = fs.run(
    data=fs.read("exports", Export()),
    task=fs.tasks.NamedEntityRecognition(max_length=64),
    method=fs.methods.FedAvg(),
    rounds=1,
    settings={"data.types": ["drug", "problem"], "training.learning_rate": 1e-3},
)
print(result.clients[["train", "validation", "test"]])
