"""A data set of the catalogue, as the rows of a source."""

from coterie.datasets.catalogue import CATALOGUE, Split
from coterie.datasets.local import check_two_files, checksum, load_rows
from coterie.datasets.rows import QuestionRow
from coterie.datasets.settings import SourceSettings


class CatalogueSet:
    """One of the catalogue."""

    settings_type = SourceSettings

    def __init__(self, settings: SourceSettings) -> None:
        assert settings.name is not None, "a data set has a name"
        self.name, self.source = settings.name, settings.source
        self.row = CATALOGUE[self.name].row
        self.splits = CATALOGUE[self.name].splits

    def rows(self, split: Split) -> list[QuestionRow]:
        """The rows that can be asked, in the order of the file."""
        check_two_files(self.name, self.source)
        return load_rows(self.name, split, self.source)

    def content(self) -> str:
        """The checksums of its two files."""
        return checksum(self.name, self.source)
