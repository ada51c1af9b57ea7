"""Replace the links of wikitext by the words that a reader sees."""

from __future__ import annotations

import re

from bertjax.text.sources.wikipedia.gaps import GAP, replace_nested

# Namespaces whose links are invisible, normalised; every language edition accepts these beside its own names.
HIDDEN_NAMES = frozenset(("file", "image", "media", "category"))

_BALANCED = re.compile(r"\[\[((?:[^\[\]]++|\[[^\[\]]*+\])*)\]\]")
_ANY = re.compile(r"\[\[((?:[^\[\]]++|\[(?!\[)|\](?!\]))*)\]\]")
_FILE = re.compile(
    r"\.(?:jpe?g|png|gif|svg|tiff?|webp|xcf|og[agv]|opus|webm|mp[34]|mpe?g|wav|flac|midi?|djvu?|pdf|stl)$", re.I
)
# Language codes, as in [[de:Titel]]; the excluded prefixes of other sites look the same.
_LANGUAGE = re.compile(r"(?!(?:mw|doi|rfc|wmf|voy|wp|arc|cat|hdl|rev)$)(?:[a-z]{2,3}(?:-[a-z]{2,10}){0,3}|simple)")
_LINKS_ONLY = re.compile(r"^[ \t]*(?:\[\[[^\[\]|:\n]+:[^\[\]\n]*\]\][ \t]*)+$", re.M)
_PIPE_TRICK = re.compile(r"[(（][^()（）]*[)）]$|[,，].*")

_SCHEME = r"(?:(?:https?|ftps?|sftp|irc|gopher|svn|git)://|(?:mailto|news|tel|geo|magnet|urn):|//)"
_EXTERNAL = re.compile(rf"\[{_SCHEME}[^\s\[\]<>\"]++[ \t]*([^\[\]\n]*+)\]", re.I)
_BARE = re.compile(
    r"\b(?:https?|ftps?)://[^\s\[\]<>\"|{}「」『』（）。、，]*[^\s\[\]<>\"|{}「」『』（）。、，.,;:!?)'*]", re.I
)


def normal_name(name: str) -> str:
    """Normalise a namespace's name: MediaWiki ignores case and reads `_` as a space."""
    return " ".join(name.replace("_", " ").split()).casefold()


def resolve_links(text: str, hidden_names: frozenset[str]) -> str:
    """Replace links between pages by the words that a reader sees, and links to files and categories by `GAP`.

    `hidden_names` are the normalised names of the edition's namespaces for files and categories. Lines that have only
    prefixed links are removed: they are categories under names that the dump does not list.
    """
    if "[[" not in text:
        return text

    def words(match: re.Match[str]) -> str:
        return _words(match[1], hidden_names)

    return replace_nested(_LINKS_ONLY.sub(GAP, text), _BALANCED, _ANY, words)


def resolve_external_links(text: str) -> str:
    """Replace links to other sites by their labels; links without a label, and bare addresses, by `GAP`."""
    if "[" in text:
        text = _EXTERNAL.sub(lambda match: match[1].strip() or GAP, text)
    return _BARE.sub(GAP, text) if "://" in text else text


def _words(link: str, hidden_names: frozenset[str]) -> str:
    """The visible words of a link: its label, else its target without the prefix `:`."""
    target, pipe, label = link.partition("|")
    if target.count("{{") != target.count("}}"):
        return link  # a template decides
    if ":" in target:
        prefix = target[: target.index(":")].strip()
        if prefix and (normal_name(prefix) in hidden_names or _LANGUAGE.fullmatch(prefix)):
            return GAP
        if _FILE.search(target.rstrip()):
            return GAP
    if not pipe:
        return target.strip().lstrip(":")
    if "{" not in label:  # else a template or language variants contain the bar
        label = label.rpartition("|")[2]
    return label if label.strip() else _PIPE_TRICK.sub("", target.rpartition(":")[2].strip()).strip()
