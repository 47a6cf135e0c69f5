# %% [markdown]
# # Your own data, in ten lines
#
# Documents come from a folder (BRAT, i2b2, CoNLL, JSON lines and others, see docs/data_formats.md), from
# a pandas frame, or as objects. Here a frame with a column of notes, one of codes and one of hospitals.
# Nothing of it leaves this process; what the run needs is kept in its directory, readable by you alone.

# %%
from itertools import combinations

import pandas as pd

import fedstrata as fs

WORDS = {"I10": "high blood pressure", "E11": "raised blood sugar", "J45": "wheezing on exertion"}
rows = [
    {
        "note": f"Seen on ward {ward} with {' and '.join(WORDS[code] for code in codes)}.",
        "codes": list(codes),
        "hospital": f"hospital {ward % 2 + 1}",
    }
    for ward in range(20)
    for codes in (*combinations(WORDS, 1), *combinations(WORDS, 2))
]

# %%
result = fs.run(
    data=pd.DataFrame(rows),
    columns={"text": "note", "labels": "codes", "site": "hospital"},
    task=fs.tasks.DocumentClassification(max_length=32, stride=8),
    method=fs.methods.LayerSkipping(top=2),
    rounds=3,
    settings={"training.learning_rate": 1e-3},
)

# %% [markdown]
# Scores are those of the test split, which nothing was trained on or chosen by.

# %%
print(f"micro F1 {result.metrics['micro_f1']:.2f} after {len(result.history)} rounds")
print(result.predict(["Seen at home with wheezing on exertion."])[["document", "labels"]])

# %% [markdown]
# What is to be handed on: a report to read, and a model that `transformers` loads.

# %%
print(result.report())
print(result.export("codes"))
