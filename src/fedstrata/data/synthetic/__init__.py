"""A synthetic clinical corpus, so that everything can be run and tested without anyone's patients.

`generate` writes discharge summaries, progress notes and transcriptions of several sites from a seed, with
exact offsets of problems, tests, treatments and drugs, their modifiers and the relations between them, and
ICD-9-CM codes that the text supports. Vocabulary and grammar were written for this project; no note is
anybody's.

What is annotated (docs/synthetic_corpus.md has the whole guideline):

- `problem`: conditions, symptoms, signs and findings, also when negated, uncertain or a relative's.
- `test`: laboratory tests, vital signs, examinations and studies made to find something out.
- `treatment`: procedures and therapies other than drugs. `drug`: substances given, under any name.
- The words that modify a mention, each related to it; they lie outside it. A location before a problem is
  part of the problem ("left knee pain"), one after a preposition modifies it ("pain in the left knee").
- Not annotated: names of clinics, teams, wards, trials, societies and people; the topics of leaflets, forms
  and letters; allergies; what a patient is told to watch for.

The text comes about in these steps: `lexicons` reads the YAML files, `style` draws how a site writes, `case`
draws who a note is about, `notes` picks the sections, `scene` expands the grammar (`template` has its
notation, `facts` fills in what depends on the patient), `builder` writes the text and counts the offsets, and
`corpus` makes documents of it.
"""

from fedstrata.data.synthetic.corpus import generate
from fedstrata.data.synthetic.lexicons import icd9_titles

__all__ = ["generate", "icd9_titles"]
