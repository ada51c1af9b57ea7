"""Records of CSV with the line that each begins in, for messages."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator
from typing import Any

from bertjax.storage.lines import RECORD_CAP


def csv_records(path: object, lines: Iterable[str], **dialect: Any) -> Iterator[tuple[int, list[str]]]:
    """(number of its first line, fields) of each record; a blank line has no fields.

    `dialect` has the options of `csv.reader`. Raises ValueError naming `path` and the line for a malformed record.
    """
    csv.field_size_limit(RECORD_CAP)  # 128 KiB by default, which texts may have
    reader = csv.reader(lines, strict=True, **dialect)
    while True:
        first = reader.line_num + 1
        try:
            fields = next(reader, None)
        except csv.Error as error:
            raise ValueError(
                f"{path}:{reader.line_num}: bad CSV ({error}) in the row of line {first}; put fields with a "
                "separator, quotation mark or new line between quotation marks, double those within"
            ) from None
        if fields is None:
            return
        yield first, fields
