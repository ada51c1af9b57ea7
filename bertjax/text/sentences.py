"""Where sentences end: a terminator, what may close after it, a space, and then what begins a sentence.

One compiled expression finds the candidates and set look-ups decide on them, so that splitting costs little beside
WordPiece. The idea of the rules is Punkt's (Kiss and Strunk 2006: abbreviations, initials, ordinals, sentence starters)
with lists instead of statistics. Unlike Punkt a lower-case word goes on with the sentence after `?` and `!` too, some
abbreviations stand only before a number, and the terminators of scripts other than Latin are known.
"""

from __future__ import annotations

import re

SENTENCE_CAP = 10_000  # characters; what is longer is no sentence, and is cut at a space


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_NEVER_LAST = _words(
    # titles, and words that point on to what follows
    """
    mr mrs ms messrs mme mlle dr drs prof rev revd hon fr capt cpt cmdr col gen lt maj sgt cpl pvt adm brig supt
    insp gov lieut pres rep sen mgr msgr mt mts e.g i.e eg ie vs cf viz ca approx
    """
)
_SOMETIMES_LAST = _words(
    # abbreviations that also end sentences: they do before a word that often begins one
    """
    jr sr st ste esq inc ltd co corp bros llc plc assn dept univ inst ave blvd rd bldg etc al seq ibid est ft lb lbs
    hr hrs yr yrs mins secs ed eds sp spp subsp var ariz calif colo conn fla ga ky mich minn nev okla penn tenn tex
    vt va wis ont que alta
    """
)
_BEFORE_NUMBERS = _words(
    # abbreviations when a number follows; words, or nothing special, otherwise
    """
    no nos nr vol vols p pp ch chap sec sect fig figs art arts op opp ed bk pt para ver v c b d r n l f fol eq eqs
    ex lib jan feb mar apr jun jul aug sep sept oct nov dec mon tue tues wed thu thur thurs fri sat sun tel ext rte
    """
)
_STARTERS = _words(
    # words that begin a sentence far more often than they stand capitalised inside one
    """
    The A An This That These Those There Here He She It We You They His Her Its Their Our My Your Who What When
    Where Why How Which While Whereas Although Though Because Since If Unless Until Once After Before During Despite
    Besides However Moreover Furthermore Nevertheless Meanwhile Therefore Thus Hence Also Then Later Soon Today Now
    But And Or Nor Yet So In On At By From For With Without Under Among Between Through Throughout Upon As To Not No
    Some Many Most Several Both Each Every All Another Other Others Such Only Even Still Just Instead Finally
    Eventually Originally Initially Currently Recently According Following Subsequently Additionally Often Sometimes
    Usually Perhaps Yes Did Is Are Was Were Has Have Had Can Could Will Would Should Must
    """
)
_LONGEST = max(map(len, _NEVER_LAST | _SOMETIMES_LAST | _BEFORE_NUMBERS))
_WINDOW = 4 * _LONGEST  # characters before a period in which its word is looked for

_END = ".!?…‼⁇⁈⁉।॥؟۔։።"
_CLOSE = r"\"'”’»›)}*_\]"
_WIDE_END = "。！？｡"
_WIDE_CLOSE = "」』】》〉〕｣）\"'”’"
_GOES_ON = "とっのはがをも、，"  # after a closed quotation: Japanese particles and commas

# `(?<![...].)`: a run of terminators is tried from its start only, or long runs would take quadratic time
_SPACED = rf"[{_END}](?<![{_END}].)[{_END}]*+(?:[{_CLOSE}]|\[\d{{1,3}}\])*+\s++"
_QUOTED = rf"[{_WIDE_CLOSE}]++(?![{_GOES_ON}])|(?![{_WIDE_CLOSE}])"
_WIDE = rf"[{_WIDE_END}](?<![{_WIDE_END}].)[{_END}{_WIDE_END}]*+(?:{_QUOTED})\s*+"
_CANDIDATE = re.compile(_SPACED)
_WIDE_CANDIDATE = re.compile(f"{_WIDE}|{_SPACED}")  # Chinese and Japanese put no space between sentences

_OPENING = re.compile(r"[\"'“‘«‹(\[{*_¿¡–—-]+ *")
_WORD = re.compile(r"[^\W\d_]*")
_LETTERS = re.compile(r"(?:[^\W\d_]{1,2}\.)+[^\W\d_]{1,2}")  # U.S, Ph.D, a.m
_ROMAN = re.compile(r"[IVXLC]+\b")
_NOT_WORD = "\"'“‘«(){}[]*_–—/"


def split_sentences(text: str) -> list[str]:
    """Split a text into its sentences: stripped, never empty, at most `SENTENCE_CAP` characters; newlines end them.

    Joined, the sentences are the text but for whitespace. Time is linear in the length, whatever the text.
    """
    candidate = _CANDIDATE
    if not text.isascii() and any(end in text for end in _WIDE_END):
        candidate = _WIDE_CANDIDATE
    sentences = []
    for line in text.splitlines():
        begin = 0
        for found in candidate.finditer(line):
            start, end = found.span()
            if _ends(line, begin, start, end):
                sentences.append(line[begin:end].strip())
                begin = end
        if rest := line[begin:].strip():
            sentences.append(rest)
    if max(map(len, sentences), default=0) > SENTENCE_CAP:
        return [piece for sentence in sentences for piece in cut_at_spaces(sentence)]
    return sentences


def cut_at_spaces(text: str, cap: int = SENTENCE_CAP) -> list[str]:
    """Cut a text into stripped, non-empty pieces of at most `cap` characters, at spaces where there are any."""
    pieces, begin = [], 0
    while len(text) - begin > cap:
        end = text.rfind(" ", begin, begin + cap) + 1 or begin + cap
        pieces.append(text[begin:end].strip())
        begin = end
    return [piece for piece in (*pieces, text[begin:].strip()) if piece]


def _ends(line: str, begin: int, start: int, after: int) -> bool:
    """Whether the sentence that begins at `begin` ends with the terminators at `start`, before what is at `after`."""
    if start - begin < 4 and not any(map(str.isalnum, line[begin:start])):
        return False  # `... And then`: dots alone are no sentence
    terminator = line[start]
    if terminator in _WIDE_END:
        return True
    following = line[after : after + 1]
    if not following.isalnum() and (opening := _OPENING.match(line, after)):
        after = opening.end()
        following = line[after : after + 1]
    if following.islower() or following in _END:
        return False  # also at the line's end, where nothing follows and nothing needs to be split
    if terminator != "." or line[start + 1] in _END:
        return True
    near = line[max(begin, start - _WINDOW) : start].rsplit(None, 1)
    word = near[-1] if near else ""
    if len(word) > _LONGEST and "." not in word and "-" not in word:
        return True
    return _word_ends(word, start - begin == len(word), line, after)


def _word_ends(word: str, alone: bool, line: str, after: int) -> bool:
    """Whether a period after `word` ends the sentence, where the next word begins at `after`, not in lower case."""
    word = word.rpartition("-")[2].strip(_NOT_WORD)
    if len(word) == 1 and word.isupper() and (word != "I" or alone or line[after + 1 : after + 2] == "."):
        return _starter(line, after)  # an initial
    if alone and (word.isdecimal() or _ROMAN.fullmatch(word)):
        return False  # an enumerator: `1. Open the door.`
    lower = word.lower()
    if lower in _NEVER_LAST:
        return False
    if lower in _BEFORE_NUMBERS and (line[after].isdecimal() or _ROMAN.match(line, after)):
        return False
    if lower in _SOMETIMES_LAST or ("." in word and _LETTERS.fullmatch(word)):
        return _starter(line, after)
    return True


def _starter(line: str, after: int) -> bool:
    word = _WORD.match(line, after)
    return word[0] in _STARTERS and line[word.end() : word.end() + 1] != "."
