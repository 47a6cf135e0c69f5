"""Where documents come from and how they are divided: `data`."""

from collections.abc import Callable, Iterator, Mapping
from itertools import combinations
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, ValidationError

from fedstrata.core.errors import ConfigurationError, SettingError, did_you_mean
from fedstrata.core.plugins import is_reference
from fedstrata.core.settings.base import Count, Fraction, Part, Settings, idle_settings
from fedstrata.core.settings.formats import ConllSettings, RelationTableSettings
from fedstrata.core.settings.reader import READERS, reader_of


class SplitSettings(Settings):
    """Shares of a site's documents; ignored where the data names its own splits."""

    by: Literal["auto", "document", "patient"] = Field(
        default="auto",
        description="Unit of the split. `patient` keeps all documents of a patient in one part; `auto` "
        "does so for documents that name a patient.",
    )
    train: Fraction = Field(default=0.7, description="Fraction of the documents for training.")
    validation: Part = Field(
        default=0.1, description="Fraction of the documents for validation after rounds."
    )
    test: Part = Field(default=0.2, description="Fraction of the documents for the final test.")
    test_sites: list[str] = Field(
        default_factory=list,
        description="Held-out sites. All their documents are test documents, they are not clients, and "
        "their scores are reported as `external`.",
    )
    server: Annotated[int, Field(ge=0)] = Field(
        default=0,
        description="Number of training documents reserved for the server, drawn evenly from all sites "
        "with the seed. No client trains on them.",
    )

    def _misfits(self) -> Iterator[SettingError]:
        total = self.train + self.validation + self.test
        if abs(total - 1.0) > 1e-6:
            yield SettingError(f"train + validation + test must be 1, not {total:g}", "conflict")


class SyntheticSettings(Settings):
    """The synthetic corpus: how many sites and notes in all."""

    sites: Count = Field(default=4, description="Number of hospitals.")
    notes: Count = Field(default=200, description="Number of notes of all sites together.")
    imbalance: Annotated[float, Field(ge=0.0, le=10.0)] | None = Field(
        default=None,
        description="Exponent of Zipf's law of site sizes: 0 gives equal sizes; 1 gives the first site "
        "about twice the notes of the second. If null, sizes differ slightly.",
    )
    notes_per_patient: Count | None = Field(
        default=None,
        description="Maximum number of notes per patient; the number is drawn from 1 to this. If null, "
        "most patients have one note and a few have two.",
    )
    seed: int | None = Field(default=None, description="Seed of the corpus; the run's seed if null.")

    def _misfits(self) -> Iterator[SettingError]:
        if self.notes < self.sites:
            yield SettingError(
                f"notes must be at least {self.sites}, one for each of the sites, not {self.notes}",
                "out_of_range",
            )


DISCHARGE_SUMMARY = "Discharge summary"


class MimicSettings(Settings):
    """MIMIC-III tables (format `mimic`)."""

    categories: Annotated[list[str], Field(min_length=1)] | None = Field(
        default=[DISCHARGE_SUMMARY], description="Values of CATEGORY to keep; all if null."
    )


class ConlluSettings(Settings):
    """Treebanks in CoNLL-U (format `conllu`)."""

    text: Literal["original", "tokens"] = Field(
        default="original",
        description="Text of the sentences: the original (`# text`), or the tokens joined by blanks.",
    )
    documents: Literal["documents", "paragraphs"] = Field(
        default="documents",
        description="Document boundaries: `# newdoc` comments, or `# newpar` comments too.",
    )


class PlainTextSettings(Settings):
    """Plain texts (format `text`)."""

    documents: Literal["files", "paragraphs", "headings"] = Field(
        default="files",
        description="Unit of a document: a file, a paragraph (between blank lines), or the text from one "
        "`= Title =` line to the next, as in WikiText.",
    )


class DatasetSettings(Settings):
    """A data set of the Hugging Face hub or saved by its library (format `datasets`)."""

    config: str | None = Field(
        default=None, description="Name of the configuration, where the hub has several."
    )
    revision: str | None = Field(default=None, description="Commit, branch or tag of the hub.")
    splits: dict[str, Literal["train", "validation", "test"]] | list[str] | None = Field(
        default=None, description="Splits to read: a list, or a mapping to train, validation and test."
    )


class ColumnSettings(Settings):
    """Which columns hold what (format `datasets`); `a.b` is the field `b` within the column `a`."""

    text: str | list[str] = Field(
        default="text",
        description="Column of the text. Several columns, or a list of texts, are joined by line breaks.",
    )
    text_pair: str | None = Field(default=None, description="Column of the second text of a pair.")
    labels: str | None = Field(default=None, description="Column of the document's label or list of labels.")
    separator: Annotated[str, Field(min_length=1)] | None = Field(
        default=None, description="Separator of several labels in one field: ; in I10;E11.9."
    )
    tokens: str | None = Field(
        default=None, description="Column of a list of tokens, instead of a text; needs `tags`."
    )
    tags: str | None = Field(default=None, description="Column of the tokens' chunk tags (B-x, I-x, O).")
    id: str | None = Field(
        default=None, description="Column of a unique document id; the row number if null."
    )
    site: str | None = Field(default=None, description="Column of the site.")
    patient: str | None = Field(
        default=None,
        description="Column of the patient. All documents of a patient go to the same part of the split.",
    )
    split: str | None = Field(
        default=None, description="Column of the part of the split: train, validation or test."
    )
    names: list[str] | None = Field(
        default=None, description="Column names of CSV files without a header, in order."
    )

    def _misfits(self) -> Iterator[SettingError]:
        if (self.tokens is None) != (self.tags is None):
            yield SettingError("tokens and tags are two columns of one task: name both, or none", "missing")
        if self.tokens is not None and self.text_pair is not None:
            yield SettingError(
                "text_pair has no meaning with tokens, which are no pair of texts", "no_effect"
            )
        if self.separator is not None and self.labels is None:
            yield SettingError(
                "separator has no meaning without labels, the column that it divides", "no_effect"
            )


class LabelSettings(Settings):
    """Which labels of documents are kept."""

    keep: Annotated[list[str], Field(min_length=1)] | None = Field(
        default=None, description="Labels to keep, by name; all if null."
    )
    top: Count | Literal["all"] | None = Field(
        default=None,
        description="Keep only this many of the most frequent labels of the corpus. If null, 50 with "
        "`mimic`, otherwise all.",
    )
    digits: Literal["full", 3] = Field(
        default="full", description="3 shortens ICD-9 codes to their category: 401.9 to 401, E888.9 to E888."
    )
    without_labels: Literal["keep", "drop"] = Field(
        default="keep", description="Keep or drop documents without any of the kept labels."
    )


Files = dict[Literal["train", "validation", "test"], str | Annotated[list[str], Field(min_length=1)]]
"""The files or folders of each part of a corpus."""


def listed(files: Files) -> list[tuple[str, str]]:
    """Returns each place of `Files` with the part that it is of, in their order."""
    return [
        (part, place) for part, own in files.items() for place in ([own] if isinstance(own, str) else own)
    ]


def with_places(section: Mapping[str, Any], change: Callable[[str], str]) -> dict[str, Any]:
    """Returns those settings of a corpus that name a place on this machine, each of them changed.

    Args:
        section: Settings of a corpus, checked or as they were read: what is no text is left out.
        change: What becomes of a place.
    """

    def changed(value: Any) -> Any:
        if isinstance(value, list):
            return [changed(each) for each in value]
        return change(value) if isinstance(value, str) else value

    given = {name: section.get(name) for name in ("path", "patients")}
    found = {name: change(place) for name, place in given.items() if isinstance(place, str)}
    files = section.get("files")
    return found | ({"files": {k: changed(v) for k, v in files.items()}} if isinstance(files, dict) else {})


FORMATS = (
    *("synthetic", "i2b2", "brat", "conll", "conllu", "jsonl", "pubtator", "mtsamples", "mimic", "ag_news"),
    *("glue", "superglue", "mts_dialog", "coqa", "xsum", "text", "medline", "relation_table", "datasets"),
)
"""What `data.format` may be besides readers that are plugged in."""


WITHOUT_PARTS = ("synthetic", "mimic")
"""Those of them that have no files of a part: one is made, the other is tables that are joined."""


def _known_format(name: str) -> str:
    if name in FORMATS:
        return name
    try:
        READERS.find(name, "data.format")
    except ConfigurationError as error:
        if name in READERS.installed or is_reference(name):
            raise SettingError(error.problems[0].message, error.code) from None
        known = [*FORMATS, *READERS.installed]
        hint = did_you_mean(name, known, before="; ")
        allowed = f"must be one of {', '.join(map(repr, known))}, or package.module:Class"
        raise SettingError(f"{allowed}, not {name!r}{hint}", "unknown_name") from None
    return name


Names = Annotated[list[Annotated[str, Field(min_length=1)]], Field(min_length=1)]
Annotates = Names | dict[str, Names] | None


class CorpusSettings(Settings):
    """Where documents come from, and which of their annotations are kept."""

    format: Annotated[str, AfterValidator(_known_format)] = Field(
        default="synthetic",
        description="`synthetic`, `datasets`, a file format, the reader of an installed package by its "
        "name, or a custom reader: `package.module:Class`.",
    )
    path: str | None = Field(
        default=None,
        description="File or folder; sub-folders are sites. With `datasets`, also a Hugging Face hub id.",
    )
    files: Files | None = Field(
        default=None,
        description="Files or folders of `train`, `validation` and `test` (one or a list each), instead "
        "of `path`.",
    )
    patients: str | None = Field(
        default=None,
        description="CSV or TSV file with the columns `document` and `patient`, for any format.",
    )
    synthetic: SyntheticSettings = SyntheticSettings()
    mimic: MimicSettings = MimicSettings()
    conllu: ConlluSettings = ConlluSettings()
    text: PlainTextSettings = PlainTextSettings()
    conll: ConllSettings = ConllSettings()
    relation_table: RelationTableSettings = RelationTableSettings()
    dataset: DatasetSettings = DatasetSettings()
    columns: ColumnSettings = ColumnSettings()
    reader: dict[str, Any] = Field(
        default={}, description="Settings of a custom reader, which data.format names."
    )
    unannotated: Literal["refuse", "skip", "keep"] = Field(
        default="refuse",
        description="Texts without an annotation file where others have one (i2b2, BRAT), and files "
        "without labels where others have them (GLUE, SuperGLUE): refuse, skip, or keep as documents "
        "without annotations.",
    )
    annotates: Annotates = Field(
        default=None,
        description="Labels annotated at each site: a list, or a mapping from sites to lists, by the "
        "names used in the run. Other labels are treated as unknown there: excluded from the loss and "
        "from scores. If null, what the documents state, or all labels.",
    )
    types: dict[str, str] | list[str] | None = Field(
        default=None,
        description="Entity types to keep: a list, or a mapping to the names used in the run. All if null.",
    )
    relations: dict[str, str] | list[str] | None = Field(
        default=None,
        description="Relation types to keep: a list, or a mapping to the names used in the run, where "
        "`<modifier>` stands for the type of the modifier. All if null.",
    )
    modifiers: dict[str, list[str]] | Literal["clinical"] | None = Field(
        default=None,
        description="Modifier types by main entity type; only relations between them are kept. `clinical` "
        "uses those of Fed-MedLoRA. All if null.",
    )
    labels: LabelSettings = LabelSettings()

    def _misfits(self) -> Iterator[SettingError]:
        owners = {
            "synthetic": ("synthetic",),
            "mimic": ("mimic",),
            "conllu": ("conllu",),
            "text": ("text",),
            "conll": ("conll",),
            "relation_table": ("relation_table",),
            "dataset": ("datasets",),
            "columns": ("datasets",),
            "unannotated": ("i2b2", "brat", "glue", "superglue"),
            "reader": () if self.format in FORMATS else (self.format,),
        }
        for name, formats in idle_settings(self, self.format, owners).items():
            its = " or ".join(map(repr, formats)) or "package.module:Class"
            yield SettingError(
                f"data.{name} belongs to data.format {its} and has no meaning when it is {self.format!r}",
                "no_effect",
            )
        if self.format not in FORMATS:
            yield from self._misfits_of_reader()
        if self.files is not None:
            yield from self._misfits_of_files(self.files)
        elif self.format != "synthetic" and not self.path:
            yield SettingError(
                f"data.path must name a file or folder when data.format is {self.format!r}", "missing"
            )
        if self.format == "synthetic" and self.path:
            yield SettingError(
                f"data.path={self.path!r} has no meaning when data.format is 'synthetic'", "no_effect"
            )

    def _misfits_of_files(self, files: Files) -> Iterator[SettingError]:
        if self.format in WITHOUT_PARTS:
            have = f"data.format {self.format!r}, which has no files of a part"
            yield SettingError(
                f"data.files has no meaning with {have}; data.split divides its documents", "no_effect"
            )
        if self.path:
            yield SettingError(
                "data.files and data.path both say where the documents are: set one of them", "conflict"
            )
        if self.dataset != DatasetSettings():
            yield SettingError(
                "data.dataset has no meaning with data.files, which says what the parts are", "no_effect"
            )
        named = [
            (f"data.files.{part}", place, Path(place).expanduser().resolve()) for part, place in listed(files)
        ]
        for (one, first, mine), (other, second, its) in combinations(named, 2):
            where = one if one == other else f"{one} and {other}"
            if mine == its:
                yield SettingError(
                    f"{where} name {second!r} twice: a document is of one part, and read once", "duplicate"
                )
            elif mine in its.parents or its in mine.parents:
                inner, outer = (second, first) if mine in its.parents else (first, second)
                yield SettingError(
                    f"{where} name {inner!r}, which lies in {outer!r}, named too: it would be read twice",
                    "duplicate",
                )

    def _misfits_of_reader(self) -> Iterator[SettingError]:
        try:
            reader_of(self.format, self.reader)
        except ValidationError as error:
            wrong = (
                f"data.reader.{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors()
            )
            yield SettingError(f"{self.format} cannot be read so: {'; '.join(wrong)}", "invalid")


class DataSettings(CorpusSettings):
    """The documents of a run: how they are divided, and what else is tested on."""

    not_annotated: Literal["unknown", "absent"] = Field(
        default="unknown",
        description="How training treats labels that are not annotated in a document (`annotates`): "
        "unknown, or absent, which teaches the model not to predict them.",
    )
    allow_in_vocabulary: bool = Field(
        default=False,
        description="Allow model.vocabulary to name files of this data. The list of kept tokens is shared "
        "with all sites and reveals which words occur in them.",
    )
    split: SplitSettings = SplitSettings()
    limit: Count | None = Field(
        default=None,
        description="Maximum number of documents per site and part, including `external`, for quick "
        "tests; drawn with the seed after the split. All if null.",
    )
    external: dict[Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")], CorpusSettings] = Field(
        default={},
        description="Additional test corpora by name: all documents of each are scored, with the settings "
        "of `data` above.",
    )

    def _misfits(self) -> Iterator[SettingError]:
        yield from super()._misfits()
        if self.files is not None and "train" not in self.files:
            parts = ", ".join(self.files) or "no part"
            yield SettingError(
                f"data.files must name what is trained on, train, and names {parts}", "missing"
            )
        if self.limit is not None and self.format == "synthetic":
            yield SettingError(
                "data.limit has no meaning with data.format 'synthetic': data.synthetic.notes says how many",
                "no_effect",
            )
