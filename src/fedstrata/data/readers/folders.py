"""Which files of a folder hold documents, and what site and split each belongs to.

    corpus/x.txt                       one site, not split
    corpus/site-1/x.txt                a sub-folder is a site,
    corpus/train/x.txt                 unless it is named like a split (`SPLITS`)
    corpus/site-1/train/x.txt          both, in either order
    corpus/train.tsv                   formats with many documents a file may name a split by the file,
    corpus/NCBItrainset_corpus.txt     also as corpora are published: a split's name and "set", or after
    corpus/en_ewt-ud-train.conllu      `-ud-` or a dot (`split_named`)
    corpus/ptb.train.txt
    corpus/train-00000-of-00002.json   or a split's name among the parts of a longer one (`split_within`),
    corpus/mimic_train/x.txt           of a folder, which may be a site, beside one that names another split

Hidden files and folders are passed over; files are taken in the order of their names.
"""

import logging
import re
from collections.abc import Iterable
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Literal

from fedstrata.core.errors import DataError, require_sound
from fedstrata.data.readers.files import Format, Source, stem

logger = logging.getLogger(__name__)

TOLD = 20
"""Wrong files that are named at once, at most."""
SPLITS = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("validation", "valid", "val", "dev", "devel", "develop", "development"), "validation"),
    **dict.fromkeys(("test", "testing"), "test"),
}
"""The names a split's folder or file may have, in lower case, and the split each one means."""

_END = re.compile(rf"(?:-ud-|[.])({'|'.join(sorted(SPLITS, reverse=True))})$")
_PART = re.compile(r"[-_. ]+")
_SET = re.compile(rf"(?<![a-z])((?i:{'|'.join(sorted(SPLITS, reverse=True))}))[ _-]?(?i:set)(?![a-z])")


def split_named(name: str) -> str:
    """Returns the split that the name of a file (without its suffix) or folder means; empty if none.

    >>> split_named("Devel"), split_named("NCBIdevelopset_corpus"), split_named("CDR_TestSet.PubTator")
    ('validation', 'validation', 'test')
    >>> split_named("en_ewt-ud-dev"), split_named("wiki.train")
    ('validation', 'train')
    >>> split_named("contestset"), split_named("train_2019"), split_named("stress-test")
    ('', '', '')
    """
    if name.lower() in SPLITS:
        return SPLITS[name.lower()]
    if end := _END.search(name.lower()):
        return SPLITS[end[1]]
    found = {SPLITS[match.lower()] for match in _SET.findall(name)}
    return found.pop() if len(found) == 1 else ""


def split_within(name: str) -> str:
    """Returns the split that a name means, or the only part of it that is a split's name; empty if none.

    What it finds in a longer name may be meant otherwise. So a name beside it in which it finds nothing must
    be refused: whichever of the two is misread, test documents could come to be trained on.

    >>> split_within("train-00000-of-00002"), split_within("MIMIC_test"), split_within("x.dev.v2")
    ('train', 'test', 'validation')
    >>> split_within("train_dev"), split_within("contest"), split_within("test1"), split_within("St. Anna")
    ('', '', '', '')
    """
    parts = [SPLITS[part] for part in _PART.split(name.lower()) if part in SPLITS]
    return split_named(name) or (parts[0] if len(parts) == 1 else "")


def _splits_beside(names: Iterable[str]) -> dict[str, str]:
    """Returns the split that each of the folders beside each other means; empty for a site.

    A split's name within a longer one may be part of a hospital's. It counts only beside another split.
    """
    within = {name: split_within(name) for name in names}
    sure = any(split_named(name) for name in within)
    return within if sure or len(set(within.values()) - {""}) > 1 else dict.fromkeys(within, "")


Unannotated = Literal["refuse", "skip", "keep"]


def _entered(place: Source, folder: Path, split: str) -> Source:
    """Returns the place of a sub-folder, whose name means this split, from that of the folder it lies in."""
    inside = replace(place, path=folder, prefix=f"{place.prefix}{folder.name}/")
    if split and not place.split:
        return replace(inside, split=split)
    return replace(inside, site=f"{place.site}/{folder.name}" if place.site else folder.name)


def _listing(folder: Path) -> list[Path]:
    try:
        return sorted(path for path in folder.iterdir() if not path.name.startswith("."))
    except OSError as error:
        raise DataError(folder, f"cannot be listed: {error.strerror}", code="unreadable") from None


def _files(folder: Path, suffixes: tuple[str, ...], table: str = "") -> list[Path]:
    found = [path for path in _listing(folder) if path.name.lower().endswith(suffixes) and path.is_file()]
    if table:
        found = [path for path in found if stem(path, suffixes).lower() == table]
    if table and len(found) > 1:
        raise DataError(
            found[1], f"is there a second time, as {found[0].name}", expected="one of them", code="duplicate"
        )
    return sorted(found, key=lambda path: stem(path, suffixes))


def find_table(folder: Path, name: str, suffixes: tuple[str, ...]) -> Path | None:
    """Returns the table of a name (in lower case, without its suffix) in a folder; none if there is none.

    Raises:
        DataError: There are several, for example a compressed and a plain one.
    """
    return next(iter(_files(folder, suffixes, name)), None)


def _annotation_folder(text_folder: Path, names: tuple[str, ...], layout: Format) -> Path:
    if layout.text_folder and text_folder.name == layout.text_folder:
        for name in names:
            if (text_folder.parent / name).is_dir():
                return text_folder.parent / name
    return text_folder


def _annotations(text_folder: Path, layout: Format) -> dict[str, dict[str, Path]]:
    """Returns the annotation files of the texts of one folder, by suffix and by the name of their text."""
    folders = dict.fromkeys([layout.annotation_suffix], layout.annotation_folders)
    folders |= {suffix: (suffix.removeprefix("."),) for suffix in layout.further_suffixes}
    return {
        suffix: {
            stem(path, (suffix,)): path
            for path in _files(_annotation_folder(text_folder, names, layout), (suffix,))
        }
        for suffix, names in folders.items()
        if suffix
    }


def _source(text: Source, annotations: dict[str, dict[str, Path]], layout: Format) -> Source:
    """Returns a text with its annotations, which are taken out of those of its folder."""
    name = stem(text.path, layout.suffixes)
    own = {suffix: found.pop(name) for suffix, found in annotations.items() if name in found}
    return replace(text, annotations=own.pop(layout.annotation_suffix, None), further=own)


def _paired(place: Source, text_folder: Path, layout: Format) -> list[Source]:
    """Returns the texts of one folder, each with its annotations if it has any."""
    annotations = _annotations(text_folder, layout)
    texts = _files(text_folder, layout.suffixes, layout.table)
    sources = [_source(replace(place, path=path), annotations, layout) for path in texts]
    for found in annotations.values():
        for name, path in found.items():
            wanted = f"{name}{layout.suffixes[0]} in {text_folder}"
            raise DataError(path, "annotations without their text", expected=wanted, code="missing")
    kept = [source for source in sources if source.annotations or not _is_about(source.path, layout)]
    if passed_over := [path.name for path in texts if all(path != source.path for source in kept)]:
        what = f"{len(passed_over)} passed over, which by name say what a folder holds and are no documents"
        logger.warning("%s: %s: %s", text_folder, what, ", ".join(passed_over))
    return kept


def _is_about(path: Path, layout: Format) -> bool:
    """Whether a file says by its name, `README.txt` or `README.md.txt`, what a folder holds."""
    return stem(path, layout.suffixes).lower().removesuffix(".md") in layout.passed_over


def _own_documents(place: Source, layout: Format) -> list[Source]:
    """Returns the documents that lie in the folder itself, or in its sub-folder of texts."""
    folder = place.path
    apart = bool(layout.text_folder) and (folder / layout.text_folder).is_dir()
    sources = _paired(place, folder / layout.text_folder if apart else folder, layout)
    if layout.annotation_suffix or place.split:
        return sources
    named = split_named if layout.one_a_file else split_within  # a note may be called lab-test-2
    splits = {source.path: named(stem(source.path, layout.suffixes)) for source in sources}
    _refuse_mixture(folder, {path.name: split for path, split in splits.items()})
    return [
        replace(source, split=split, prefix=f"{source.prefix}{stem(source.path, layout.suffixes)}/")
        if (split := splits[source.path])
        else source
        for source in sources
    ]


def _refuse_mixture(folder: Path, splits: dict[str, str]) -> None:
    """Refuses a folder in which only some names are splits: reading all could mix test into train."""
    inside = [name for name, split in splits.items() if split]
    outside = [name for name, split in splits.items() if not split]
    if inside and outside:
        raise DataError(
            folder,
            f"by its name {inside[0]} is a split and {outside[0]} is none",
            expected="the name of a split in all names or in none: north-test has one, northtest has not",
            code="ambiguous",
        )


def _loops(folder: Path) -> bool:
    """Whether a folder is a link to one it lies in."""
    return folder.is_symlink() and folder.parent.resolve().is_relative_to(folder.resolve())


def _walk(place: Source, layout: Format) -> list[Source]:
    """Returns the documents of a folder and its sub-folders, given the folder as a source of documents."""
    folder, place = place.path, _with_scheme(place, place.path, layout)
    own = _own_documents(place, layout)
    if layout.text_folder and (folder / layout.text_folder).is_dir():
        return own
    below: dict[str, list[Source]] = {}
    folders = [child for child in _listing(folder) if child.is_dir() and not _loops(child)]
    splits = _splits_beside(child.name for child in folders)
    for child in folders:
        if sources := _walk(_entered(place, child, splits[child.name]), layout):
            below[child.name] = sources
    annotated_below = any(source.annotations for sources in below.values() for source in sources)
    if annotated_below and not any(source.annotations for source in own):
        own = []  # texts beside annotated sub-folders are a README or a licence
    if own and below:
        raise DataError(
            folder,
            f"holds documents ({own[0].path.name}) and a sub-folder of documents ({next(iter(below))})",
            expected="one or the other, since each sub-folder is a site",
            code="conflict",
        )
    if not place.split:
        # A folder that is divided itself is a site, whatever it is called.
        _refuse_mixture(
            folder,
            {
                name: splits[name] or ("" if all(source.split for source in sources) else split_within(name))
                for name, sources in below.items()
            },
        )
    return own or [source for sources in below.values() for source in sources]


def _with_scheme(place: Source, folder: Path, layout: Format) -> Source:
    """Returns a place with what the folder says of its annotations, if it does."""
    scheme = folder / layout.scheme
    return replace(place, scheme=scheme) if layout.scheme and scheme.is_file() else place


def _one_file(path: Path, layout: Format) -> Source:
    if not layout.annotation_suffix:
        return Source(path)
    if not path.name.lower().endswith(layout.suffixes):
        raise DataError(
            path, "is not the text of a document", expected=f"*{layout.suffixes[0]}", code="wrong_format"
        )
    annotations = _annotations(path.parent, layout)
    others = {suffix for suffix in layout.further_suffixes if annotations[suffix]}
    is_annotated = bool(annotations[layout.annotation_suffix])
    source = _source(_with_scheme(Source(path), path.parent, layout), annotations, layout)
    if is_annotated:
        _refuse_unannotated([source], layout)
    return _lacking(source, others)


def _lacking(source: Source, others: set[str]) -> Source:
    """Returns the source with the endings of further files that others have and it has not."""
    lacks = frozenset(others - source.further.keys())
    return replace(source, lacks=lacks) if lacks else source


def _labelled(sources: list[Source], layout: Format, unannotated: Unannotated) -> list[Source]:
    """Leaves out or refuses sources without annotations, where others have some."""
    annotated = [source.annotations is not None for source in sources]
    if layout.has_labels is not None:  # by the first rows: the files without labels have none at all
        annotated = [any(islice(layout.has_labels(source), 100)) for source in sources]
    if not any(annotated) or all(annotated) or unannotated == "keep":
        return sources
    if unannotated == "skip":
        return [source for source, is_annotated in zip(sources, annotated, strict=True) if is_annotated]
    if layout.annotation_suffix:
        _refuse_unannotated(sources, layout)
    path = sources[annotated.index(False)].path
    expected = "labels in all files, or data.unannotated: skip, which leaves this one out"
    raise DataError(path, "has no labels, and other files have", expected=expected, code="not_annotated")


def _refuse_unannotated(sources: list[Source], layout: Format) -> None:
    """Refuses a text without annotations, where others have some."""
    errors: list[DataError] = []
    for source in sources:
        if source.annotations is None and len(errors) < TOLD:
            wanted = f"{stem(source.path, layout.suffixes)}{layout.annotation_suffix}"
            message = "has no annotations, and other texts have"
            expected = f"{wanted}, which may be empty, or data.unannotated: skip or keep"
            errors.append(DataError(source.path, message, expected=expected, code="not_annotated"))
    require_sound(errors)


def find_sources(path: Path, layout: Format, *, unannotated: Unannotated = "refuse") -> list[Source]:
    """Finds the files of one format at a path.

    Args:
        path: A folder or one file.
        layout: The format.
        unannotated: What becomes of texts without annotations, and of files without labels, where others have
            some.

    Returns:
        The files with their site and split, sorted by path. Texts none of which has annotations are all
        kept: they are the input of a prediction.

    Raises:
        DataError: There is no such path, it holds nothing of the format, or its layout is ambiguous.
    """
    if path.is_file():
        return [_one_file(path, layout)]
    if not path.is_dir():
        raise DataError(path, "no such file or folder", expected=layout.looked_for, code="not_found")
    sources = _walk(Source(path), layout)
    if not sources:
        wanted = f"{layout.looked_for}, in the folder itself or in one sub-folder a site"
        raise DataError(path, "holds no documents", expected=wanted, code="not_enough_data")
    others = {suffix for source in sources for suffix in source.further}
    return [_lacking(source, others) for source in _labelled(sources, layout, unannotated)]
