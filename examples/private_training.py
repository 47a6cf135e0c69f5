# %% [markdown]
# # Private training
#
# Differential privacy by patient, and masked sums, of which the server sees the total alone. A plan says
# what is promised before anything trains; docs/differential_privacy.md says what it means, and what it
# does not cover.

# %%
import fedstrata as fs

private = {
    "mechanism": "local",
    "unit": "patient",
    # Declared, and public: at least as many as there are.
    "units": {"site-1": 30, "site-2": 30, "site-3": 30},
    "epsilon": 8.0,
    "delta": 1e-3,
    "expected_batch": 10,
    "steps": 4,
    "secure_aggregation": True,
}
setting = {
    # Types are named: to read them from the notes would tell of the notes.
    "task": fs.tasks.NamedEntityRecognition(types=["drug", "problem"], max_length=64),
    "data": {"types": ["drug", "problem"]},
    "method": fs.methods.FFALoRA(),
    "adapter": fs.settings.LoraSettings(rank=4, alpha=16),  # few numbers train: less noise in all
    "training": {"learning_rate": 5e-3},
    "federation": {"rounds": 2},
}
notes = fs.synth(sites=3, notes=60)

# %%
print(fs.plan(setting, data=notes, privacy=private, seconds=1))

# %%
result = fs.run(setting, data=notes, privacy=private)
print({site: round(epsilon, 2) for site, epsilon in result.summary["privacy"]["clients"].items()})

# %% [markdown]
# So few documents teach little under noise; compare with the same run without it before you promise
# anything.

# %%
plain = fs.run(setting, data=notes)
print(f"F1 {result.metrics['f1']:.3f} with privacy, {plain.metrics['f1']:.3f} without")
