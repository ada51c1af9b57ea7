"""`bertjax search`: build or open an index of documents, and rank them for queries."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from bertjax.cli.model_source import (
    POOLINGS,
    add_encoding,
    add_overwrite,
    encoding_options,
    page_path,
    print_replaced,
    require_free,
)
from bertjax.cli.verb import Verb, require_unused

if TYPE_CHECKING:
    import numpy as np

    from bertjax.embed.encoder import TextEncoder
    from bertjax.input.lengths import LengthCounts
    from bertjax.search.index import SearchIndex
    from bertjax.search.rankings import Hits
    from bertjax.search.records import Record
    from bertjax.search.retrieval import Reranker
    from bertjax.tokenization.tokenizer import Tokenizer

_NEGATIVES = 4  # for each relevant passage


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="RUN", help="a run, one of its checkpoints/<step>, hf:DIR, hf:NAME or tf1:DIR")
    parser.add_argument("query", nargs="*", metavar="QUERY", help="a query; several are searched one by one")
    parser.add_argument(
        "--index", required=True, metavar="FOLDER", help="folder of the index; it is built if it does not exist"
    )
    parser.add_argument(
        "--documents",
        nargs="+",
        action="extend",
        metavar="FILE",
        help="files to index: one text per line, .csv, .tsv, .parquet, or .jsonl with _id, title and text, as BEIR's "
        "corpus.jsonl; a query must come before this option",
    )
    parser.add_argument(
        "--column",
        "--field",
        dest="field",
        metavar="NAME",
        help="column or field of --documents that holds the text (text)",
    )
    parser.add_argument("--queries", metavar="FILE", help="queries, in the same formats; - is standard input")
    parser.add_argument("--query-field", metavar="FIELD", help="field of --queries that holds the text (text)")
    parser.add_argument(
        "--by",
        choices=("vectors", "bm25", "both"),
        default="vectors",
        help="rank by vectors, by shared words (BM25), or by both rankings fused (%(default)s)",
    )
    parser.add_argument(
        "--rerank", metavar="RUN2", help="rerank the candidates with a model of `bertjax finetune relevance`"
    )
    parser.add_argument(
        "--rerank-by",
        choices=("model", "both"),
        default="model",
        help="use the reranker's order, or fuse it with the first ranking (%(default)s)",
    )
    parser.add_argument("--top", type=int, default=10, metavar="K", help="documents for each query (%(default)s)")
    parser.add_argument(
        "--candidates",
        type=int,
        default=100,
        metavar="N",
        help="documents of each ranking to fuse, rerank and measure (%(default)s)",
    )
    parser.add_argument("--output", metavar="FILE", help="file for the results: .jsonl, or .trec (a TREC run)")
    parser.add_argument("--html", metavar="FILE", help="also write the results as a self-contained page to FILE")
    add_overwrite(parser)
    parser.add_argument(
        "--qrels",
        metavar="FILE",
        help="relevance judgements (BEIR's .tsv or TREC's qrels): print nDCG@10, recall@100 and MRR@10",
    )
    parser.add_argument(
        "--evaluate",
        metavar="FOLDER",
        help="a folder in BEIR's layout: index its corpus.jsonl, and measure with its queries.jsonl and qrels/test.tsv "
        "(with --training-pairs qrels/train.tsv)",
    )
    parser.add_argument(
        "--training-pairs",
        metavar="FOLDER",
        help="write data for `finetune pairs` (pairs/) and `finetune relevance` (relevance/), made from --qrels",
    )
    parser.add_argument(
        "--negatives",
        type=int,
        metavar="N",
        help=f"hard negatives for each relevant passage of --training-pairs: retrieved, not relevant ({_NEGATIVES})",
    )
    parser.add_argument(
        "--no-normalize",
        dest="normalize",
        action="store_const",
        const=False,
        help="compare inner products instead of cosines",
    )
    add_encoding(
        parser,
        POOLINGS[:-1],
        "how token vectors become one vector (mean; for a sentence-transformers folder: its own pooling)",
    )


def run(arguments: argparse.Namespace) -> int:
    """Build the index if needed; print or write the results of each query, or their figures."""
    from bertjax.cli.search_results import named_rankings, print_figures, print_results, write_pairs
    from bertjax.convert.sources import open_source
    from bertjax.pipeline.searching import IndexRequest, open_or_build_index, ranking_depth
    from bertjax.search.rankings import Hits
    from bertjax.search.records import read_judgements
    from bertjax.search.results_page import render_results
    from bertjax.search.retrieval import Reranker, require_output, write_results
    from bertjax.storage.files import replace_text

    if arguments.evaluate:
        _name_files(arguments)
    _check(arguments)
    page = page_path(arguments.html) if arguments.html else None
    output = require_output(arguments.output) if arguments.output else None
    if output is not None:
        require_free(output, arguments)
    judgements = read_judgements(arguments.qrels) if arguments.qrels else None
    queries = _queries(arguments)
    if arguments.evaluate and judgements is not None:
        queries = [query for query in queries if query.id in judgements]  # BEIR keeps those of all splits in one file
        if not queries:
            raise ValueError(f"--evaluate {arguments.evaluate}: none of its queries has a judgement")
    request = IndexRequest(
        arguments.model,
        arguments.index,
        tuple(arguments.documents or ()),
        arguments.field,
        encoding_options(arguments),
    )
    index, encoder, tokenizer = open_or_build_index(request, print, partial(_print_notices, ""))
    reranker = Reranker(open_source(arguments.rerank)[0]) if arguments.rerank else None
    if not queries:
        print(f"{len(index.documents):,} documents in index {index.folder}; no query was given")
        return 0
    rankings = _rankings(arguments, queries, index, encoder, tokenizer, reranker)
    if judgements is not None:
        ranked_ids = {way: named_rankings(queries, hits, index.documents) for way, hits in rankings.items()}
        print_figures(ranked_ids, judgements, ranking_depth(arguments.top, arguments.candidates))
    last = list(rankings)[-1]
    if arguments.training_pairs:
        negatives = arguments.negatives or _NEGATIVES
        write_pairs(arguments, queries, rankings[last], judgements or {}, index.documents, negatives)
        return 0
    results = [Hits(hits.documents[: arguments.top], hits.scores[: arguments.top]) for hits in rankings[last]]
    if page is not None:
        about = f"{arguments.model}, by {last}; {len(index.documents):,} documents in {index.folder}"
        replace_text(page, render_results(about, queries, results, index.documents))
        print(f"page: {page}")
    if output is not None:
        write_results(output, queries, results, index.documents)
        print(f"{len(queries):,} queries to {output}: the best {arguments.top} documents for each, by {last}")
    elif judgements is None:
        print_results(queries, results, index.documents)
    return 0


def _name_files(arguments: argparse.Namespace) -> None:
    """Set the options of the files of `--evaluate`. Raises ValueError for options of other files."""
    from pathlib import Path

    from bertjax.search.records import find_collection

    for option in ("query", "queries", "documents"):
        if getattr(arguments, option):
            raise ValueError(f"--evaluate {arguments.evaluate} names the documents and queries; leave --{option} out")
    files = find_collection(Path(arguments.evaluate), arguments.qrels, train=bool(arguments.training_pairs))
    arguments.documents, arguments.queries, arguments.qrels = [files.documents], files.queries, files.judgements


def _check(arguments: argparse.Namespace) -> None:
    """Raise ValueError for options that contradict each other."""
    for name in ("top", "candidates", "negatives"):
        if (count := getattr(arguments, name)) is not None and count < 1:
            raise ValueError(f"--{name} {count}: give 1 or more")
    if not arguments.training_pairs:
        require_unused(arguments, ("negatives",), "--training-pairs")
    if not arguments.queries:
        require_unused(arguments, ("query_field",), "--queries")
    if arguments.rerank_by != "model" and not arguments.rerank:
        raise ValueError(f"--rerank-by {arguments.rerank_by} requires --rerank RUN2; give it, or leave --rerank-by out")
    if arguments.query and arguments.queries:
        raise ValueError(f"--queries {arguments.queries}: there are queries on the command line too; leave one out")
    if arguments.training_pairs and not arguments.qrels:
        raise ValueError(f"--training-pairs {arguments.training_pairs} requires judgements; give --qrels FILE")
    if arguments.training_pairs and arguments.output:
        raise ValueError(f"--output {arguments.output}: --training-pairs writes other files; leave one of them out")
    if arguments.training_pairs and arguments.html:
        raise ValueError(f"--html {arguments.html}: --training-pairs ranks no results to show; leave one of them out")
    for option, value in (("output", arguments.output), ("html", arguments.html), ("qrels", arguments.qrels)):
        if value and not (arguments.query or arguments.queries):
            raise ValueError(f"--{option} {value} requires queries; give QUERY, or --queries FILE")


def _queries(arguments: argparse.Namespace) -> list[Record]:
    """The queries of the command line or of the file. Raises ValueError for an empty file and for repeated ids."""
    from bertjax.search.records import Record, read_records
    from bertjax.storage.utf8 import ReadCounts

    if not arguments.queries:
        return [Record(str(number), text) for number, text in enumerate(arguments.query, 1)]
    counts = ReadCounts()
    queries = list(read_records([arguments.queries], arguments.query_field, counts))
    print_replaced(counts, "queries: ")
    if not queries:
        raise ValueError(f"--queries {arguments.queries}: the file has no query; give one with queries")
    if len({query.id for query in queries}) < len(queries):
        raise ValueError(f"--queries {arguments.queries}: two queries have the same id; ids must be unique")
    return queries


def _rankings(
    arguments: argparse.Namespace,
    queries: Sequence[Record],
    index: SearchIndex,
    encoder: TextEncoder,
    tokenizer: Tokenizer,
    reranker: Reranker | None,
) -> dict[str, list[Hits]]:
    """The candidates for each query, by name of the ranking; the last ranking is the one to output."""
    from bertjax.pipeline.searching import rank, ranking_depth

    texts, own = [query.whole for query in queries], _own_documents(arguments, queries, index)
    depth, fused = ranking_depth(arguments.top, arguments.candidates), arguments.rerank_by == "both"
    rankings = rank(index, encoder, tokenizer, texts, arguments.by, depth, own, reranker, fused)
    _print_notices("queries: ", encoder.counts, encoder.max_length)
    if reranker is not None:
        _print_notices("queries: ", reranker.counts, reranker.max_length)
    return rankings


def _print_notices(start: str, counts: LengthCounts, max_length: int) -> None:
    for line in counts.notices(max_length):
        print(f"{start}{line}")


def _own_documents(arguments: argparse.Namespace, queries: Sequence[Record], index: SearchIndex) -> np.ndarray:
    """Return the document that equals each query, or -1. Without judgements always -1: ids may be line numbers."""
    import numpy as np

    from bertjax.search.records import own_documents

    if not arguments.qrels:
        return np.full(len(queries), -1)
    own = own_documents(queries, index.documents)
    if count := np.count_nonzero(own >= 0):
        print(
            f"{count:,} of {len(queries):,} queries are documents themselves; they are left out of their own results, "
            "as BEIR does"
        )
    return own


VERB = Verb(
    add_arguments,
    run,
    example="bertjax search runs/quickstart 'sort an array' --index runs/quickstart/index --documents docs.jsonl",
    interrupted="no partial index was left; run the same command again to start over",
)
