# %% [markdown]
# # Comparing methods, with statistics
#
# Every row runs on the same documents, splits and seeds, in a process of its own. What has finished is
# not run again: call it once more with the same arguments to go on.

# %%
import fedstrata as fs

comparison = fs.compare(
    methods={
        "everything": fs.methods.FedAvg(),
        "top blocks": fs.methods.LayerSkipping(top=2),
    },
    seeds=(0, 1, 2),
    baseline="everything",
    data=fs.synth(sites=2, notes=16),
    task=fs.tasks.NamedEntityRecognition(max_length=64),
    rounds=1,
    settings={"data.types": ["drug", "problem", "test"], "training.learning_rate": 1e-3},
)

# %% [markdown]
# Mean and spread over seeds, Student's 95 % interval of the mean, and the difference to the baseline on the
# same seeds, with its interval. An interval that covers 0 says that no difference was shown.

# %%
print(comparison.table[comparison.metric].round(3))
print(comparison.cells[["row", "seed", comparison.metric]].round(3))
comparison.plot().savefig("comparison.png")

# %% [markdown]
# Any single run is there as if it had been run alone.

# %%
print(comparison.result("top blocks", 0).history[["loss", "headline", "bytes"]])
