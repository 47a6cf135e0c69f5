# %% [markdown]
# # A method of your own
#
# A method is its settings and what it does with them. `fs.Averaging` has the rounds, the weighing and the
# aggregation rules; what remains is what makes yours another. This one trains the top of the model, one
# block more each round.

# %%
from typing import ClassVar, Literal

from pydantic import Field

import fedstrata as fs


class Thawing(fs.Averaging):
    """Gradual unfreezing (Howard and Ruder 2018), in a federation."""

    name: Literal["thawing"] = "thawing"
    top: int = Field(default=2, ge=1, description="Blocks that train, from the top.")
    mu: float = Field(default=0.0, ge=0.0, description="Weight of the pull towards the shared model.")

    travels: ClassVar[str] = "the upper blocks and the head, both ways"

    def trainable(self, layout: fs.Layout) -> tuple[str, ...]:
        """Returns the names of the tensors that train and travel."""
        top = [name for block in layout.blocks[-self.top :] for name in block]
        return (*top, *layout.final_norm, *layout.head)

    def not_private(self, mechanism: str) -> str:
        """Clients send what the private loop has trained, and nothing else."""
        return super().not_private(mechanism)

    def not_summed(self) -> str:
        """The server needs the mean of what they send, and nothing else."""
        return super().not_summed()

    def train(self, plan: fs.Plan, client: fs.Client, rng: fs.Seed) -> fs.Update:
        """Trains a client's copy for a turn."""
        return self.trained(plan, client, rng, proximal=self.mu)


# %% [markdown]
# The checker runs it on the small model that comes with fedstrata: does it send what it declares, does a
# resumed run come to the numbers of an uninterrupted one, and does it run under secure aggregation and
# differential privacy?

# %%
for clause in fs.testing.check_method(Thawing(top=1)):
    print("-", clause)

# %%
result = fs.run(
    data=fs.synth(sites=3, notes=30),
    task=fs.tasks.NamedEntityRecognition(max_length=64),
    method=Thawing(top=2, mu=0.01),
    rounds=2,
    settings={"data.types": ["drug", "problem", "test"], "training.learning_rate": 1e-3},
)
print(result.history[["loss", "global"]])
