"""Estimate the cost of preparing a corpus from recorded rates: processor time, hours on hosts, disk and requests."""

from __future__ import annotations

import math
from collections.abc import Sequence

from bertjax.config import DataConfig
from bertjax.report.page import Table
from bertjax.text.corpus import LARGEST_UNIT, MAX_UNITS, UNIT_BYTES
from bertjax.text.sources.registry import KINDS, parse_sources, source_files
from bertjax.text.store.manifest import token_dtype

# Recorded on one core of an AMD EPYC with 60 MB of Wikipedia, from compressed JSON Lines to the store.
BYTES_PER_SECOND = {"wordpiece": 3.6e6, "byte_bpe": 1.4e6}
BYTES_PER_TOKEN = 4.45  # English text
OFFSET_BYTES = 0.349  # per token in the store: the offsets of sentences and documents
COLUMNAR_REQUESTS = 9.3  # per Parquet file in object storage: footer, column, tag
READ_BYTES = 8 << 20  # per request for text
SUFFIXES = {"M": 10**6, "G": 10**9, "B": 10**9, "T": 10**12}


def parse_tokens(text: str) -> int:
    """Parse a number of tokens such as 2T, 300G (or 300B) or 5e9. Raises ValueError for other text."""
    number, scale = (text[:-1], SUFFIXES[text[-1]]) if text[-1:] in SUFFIXES else (text, 1)
    try:
        tokens = float(number) * scale
    except ValueError:
        tokens = math.nan
    if not 1 <= tokens < math.inf:
        raise ValueError(f"--tokens {text}: write a number of tokens, as in 300G or 2T")
    return round(tokens)


def preparation_table(data: DataConfig, tokens: int, hosts: int, cores: int) -> Table:
    """Tabulate the cost of preparing `tokens` tokens of text on `hosts` hosts with `cores` cores each.

    Raises ValueError for a tokenizer without a recorded rate, for less than one host or core, and for sources without
    files.
    """
    if (rate := BYTES_PER_SECOND.get(data.tokenizer)) is None:
        raise ValueError(
            f"data.tokenizer={data.tokenizer!r}: the speed of preparation is recorded only for "
            f"{' and '.join(BYTES_PER_SECOND)}; give --data.tokenizer one of them for an estimate"
        )
    if min(hosts, cores) < 1:
        raise ValueError(f"--hosts {hosts} and --cores {cores}: give 1 or more")
    text = tokens * BYTES_PER_TOKEN
    unit = min(max(UNIT_BYTES, text / MAX_UNITS), LARGEST_UNIT)
    units = math.ceil(text / unit)
    rounds = math.ceil(units / (hosts * cores))  # of units, one per core
    id_bytes = int(token_dtype(data.vocab_size)[-1])
    rows = [
        ("text", f"{text / 1e9:,.1f} GB", f"{BYTES_PER_TOKEN} bytes a token"),
        ("units of work", f"{units:,}", f"{unit / 1e6:,.0f} MB of text each; a killed process loses one"),
        ("processor time", f"{text / rate / 3600:,.1f} core-hours", f"{rate / 1e6:.1f} MB/s a core, {data.tokenizer}"),
        (
            f"time on {hosts:,} x {cores:,} cores",
            f"{rounds * unit / rate / 3600:,.2f} hours",
            f"{rounds:,} units one after the other; one takes {unit / rate:,.0f} s",
        ),
        ("store", f"{tokens * (id_bytes + OFFSET_BYTES) / 1e9:,.1f} GB", f"{id_bytes} bytes a token, and offsets"),
    ]
    return Table(
        "Preparation", "by recorded rates, not measured here", ("", "", "from"), (*rows, *_requests(data, text))
    )


def _requests(data: DataConfig, text: float) -> Sequence[tuple[str, str, str]]:
    """Rows with the requests to object storage; none without sources, whose files are counted."""
    if not data.sources:
        return []
    files = [file for source in parse_sources(data.sources) for file in source_files(source, data.exclude, check=False)]
    columnar = sum(KINDS[file.kind].is_columnar for file in files)
    lookups = COLUMNAR_REQUESTS * columnar + len(files) - columnar
    count = f"{len(files):,} files, {columnar:,} of them Parquet"
    return [
        ("requests to find the files", f"{lookups:,.0f}", f"{count}; by every host at every start"),
        ("requests for text", f"{text / READ_BYTES:,.0f}", f"{READ_BYTES >> 20} MiB each, if the sources are remote"),
    ]
