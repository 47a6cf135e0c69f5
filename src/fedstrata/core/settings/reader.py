"""A reader of a format of one's own: it is its settings, as a method and a task are."""

from abc import abstractmethod
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, ClassVar

from fedstrata.core.documents import Document
from fedstrata.core.plugins import Plugins
from fedstrata.core.settings.base import Settings


class Reader(Settings):
    """Reads files of one format, which a configuration names as `data.format`.

    Its fields are the settings of `data.reader`. How files are laid out is as for every format: a file or a
    folder, whose sub-folders are sites, and in these `train`, `validation` and `test` if it is split.
    """

    suffixes: ClassVar[tuple[str, ...]]
    """How the names of the files that hold text end, in lower case: `(".xml",)`."""
    annotation_suffix: ClassVar[str] = ""
    """How the names of the annotation files beside them end; empty if the text file holds them."""

    @abstractmethod
    def read(self, path: Path, annotations: Path | None) -> Iterable[Document]:
        """Yields the documents of one file.

        Their ids are unique within the file; a document without one is called after the file, and its number
        in it. `site` and `metadata["split"]` are those of the folders where they are not given, and
        `metadata["patient"]` says whose a document is.

        Args:
            path: The file.
            annotations: The file of its annotations; none for a format that has no such files, and for a text
                that has none.

        Raises:
            fedstrata.core.errors.DataError: The file does not follow the format. Whatever else is raised is
                told by its type alone: its text may quote a note.
        """


READERS = Plugins[type[Reader]](
    "fedstrata.readers",
    {},
    kind="reader: no class that derives from fedstrata.Reader",
    is_one=lambda found: isinstance(found, type) and issubclass(found, Reader),
)
"""Every reader that is plugged in, by its name in a configuration."""


def reader_of(name: str, settings: Mapping[str, Any]) -> Reader:
    """Returns a reader that is plugged in.

    Args:
        name: Its name, or its reference.
        settings: The settings of `data.reader`.

    Raises:
        ConfigurationError: There is no such reader.
        pydantic.ValidationError: A setting does not fit.
    """
    reader: Reader = READERS.find(name, "data.format").model_validate(dict(settings))
    return reader
