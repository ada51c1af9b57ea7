"""The alias `hf:ORG/NAME`: the Parquet files of a data set on the Hugging Face Hub, as a `parquet` source."""

from __future__ import annotations

import re

from bertjax.text.sources import parquet
from bertjax.text.sources.source import Source

_DATA_SET = re.compile(r"(?P<name>[\w.-]+/[\w.-]+(?:@[^/:]+)?)(?:/(?P<path>[^:]*))?(?P<field>:.*)?")


def hub_data_set(pattern: str) -> Source:
    """The `parquet` source of `ORG/NAME[/GLOB][:FIELD]`; without a glob, of all Parquet files of the data set.

    Raises ValueError for another form.
    """
    found = _DATA_SET.fullmatch(pattern)
    if not found:
        raise ValueError(
            f"source hf:{pattern}: write hf:ORG/NAME, as in hf:wikimedia/wikipedia/20231101.en/*, or the name of a "
            "column behind it, hf:ORG/NAME:COLUMN"
        )
    glob = found["path"] or "**/*.parquet"
    return Source(parquet.KIND.name, f"hf://datasets/{found['name']}/{glob}{found['field'] or ''}")
