# %% [markdown]
# # Five sites with other entity types
#
# Hospitals rarely annotate alike: one calls a drug a medication, another marks no tests at all.
# `data.types` says which types are kept and what the federation calls them, and `data.annotates` what
# somebody looked for where: a type that nobody looked for is unknown there, neither learnt as absent nor
# counted as wrong.

# %%
from dataclasses import replace

import fedstrata as fs

OWN_WORDS = {
    "site-1": {"drug": "drug", "problem": "problem", "test": "test"},
    "site-2": {"drug": "Medication", "problem": "Diagnosis"},
    "site-3": {"drug": "Medication", "problem": "problem", "test": "Lab"},
    "site-4": {"problem": "Diagnosis", "test": "test"},
    "site-5": {"drug": "drug", "problem": "problem", "test": "Lab"},
}
COMMON = {
    **{name: name for name in ("drug", "problem", "test")},
    **{"Medication": "drug", "Diagnosis": "problem", "Lab": "test"},
}


ANNOTATED = {"site-2": ["drug", "problem"], "site-4": ["problem", "test"]}  # the others: all types


def as_annotated_there(document: fs.Document) -> fs.Document:
    """Stands in for what a site's own files hold."""
    words = OWN_WORDS[document.site]
    spans = [replace(span, label=words[span.label]) for span in document.spans if span.label in words]
    return replace(document, spans=tuple(spans), relations=())


notes = {
    site: [as_annotated_there(document) for document in own]
    for site, own in fs.synth(sites=5, notes=50).items()
}

# %%
results = {
    method.name: fs.run(
        data=notes,
        task=fs.tasks.NamedEntityRecognition(max_length=64),
        method=method,
        rounds=2,
        name=method.name,
        settings={"data.types": COMMON, "data.annotates": ANNOTATED, "training.learning_rate": 1e-3},
    )
    for method in (fs.methods.FedAvg(), fs.methods.FedPer(personal_blocks=1))
}

# %% [markdown]
# Each site's own test documents, under either method:

# %%
for name, result in results.items():
    print(name)
    print(result.clients[["train", "test", "f1", "precision", "recall"]].round(3))
