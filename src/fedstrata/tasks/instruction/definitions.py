"""What the types of Fed-MedLoRA mean, in a line each, as an instruction tells a model.

The paper's annotation guideline is not public; these definitions are ours, and a configuration may replace
any of them (`task.definitions`).
"""

from __future__ import annotations

from collections.abc import Mapping

DEFINITIONS: Mapping[str, str] = {
    "problem": "a disease, symptom, sign or injury of a patient",
    "test": "an examination, measurement or laboratory test",
    "treatment": "a procedure or therapy that is not a drug",
    "drug": "a medication, vaccine or other substance that is given",
    "body location": "the part or side of the body that is affected",
    "condition": "the circumstances under which it occurs or would be treated",
    "course": "how it changes, for example worse, stable or resolved",
    "dosage": "how much is taken at a time",
    "duration": "for how long it is taken",
    "form": "the form it is given in, for example tablet",
    "frequency": "how often it is taken",
    "lab value": "the result of the test",
    "negation": "what says that it is absent or was not done",
    "reference range": "the normal values of the test",
    "route": "the way it is given, for example by mouth",
    "severity": "how bad it is",
    "strength": "the amount of substance in a unit",
    "subject": "who has it, if it is not the patient",
    "temporal": "when it was, or since when",
    "uncertain": "what says that it is only possible",
}
