"""Split sentences: at a terminator, closing marks, a space, and then the beginning of a sentence.

One compiled expression finds the candidates and set lookups decide on them, so that splitting is cheap compared to
WordPiece. The rules are Punkt's (Kiss and Strunk 2006: abbreviations, initials, ordinals, sentence starters) with lists
instead of statistics. Unlike in Punkt, a lower-case word continues the sentence also after `?` and `!`, some
abbreviations count only before a number, and the terminators of all scripts count.
"""

from __future__ import annotations

import re


def _characters(ranges: str) -> str:
    """Expand hexadecimal code points and ranges into their characters."""
    edges = [[int(edge, 16) for edge in item.split("-")] for item in ranges.split()]
    return "".join(chr(point) for first, *last in edges for point in range(first, (last or [first])[0] + 1))


# Unicode 17.0, PropList.txt: Sentence_Terminal (Sentence_Break and UAX 29 build on it).
SENTENCE_TERMINAL = _characters(
    """
    21 2E 3F 589 61D-61F 6D4 700-702 7F9 837 839 83D-83E 964-965 104A-104B 1362 1367-1368 166E 1735-1736
    17D4-17D5 1803 1809 1944-1945 1AA8-1AAB 1B4E-1B4F 1B5A-1B5B 1B5E-1B5F 1B7D-1B7F 1C3B-1C3C 1C7E-1C7F 2024
    203C-203D 2047-2049 2CF9-2CFB 2E2E 2E3C 2E53-2E54 2E60-2E61 3002 A4FF A60E-A60F A6F3 A6F7 A876-A877
    A8CE-A8CF A92F A9C8-A9C9 AA5D-AA5F AAF0-AAF1 ABEB FE12 FE15-FE16 FE52 FE56-FE57 FF01 FF0E FF1F FF61
    10A56-10A57 10F55-10F59 10F86-10F89 11047-11048 110BE-110C1 11141-11143 111C5-111C6 111CD 111DE-111DF
    11238-11239 1123B-1123C 112A9 113D4-113D5 1144B-1144C 115C2-115C3 115C9-115D7 11641-11642 1173C-1173E
    11944 11946 11A42-11A43 11A9B-11A9C 11C41-11C42 11EF7-11EF8 11F43-11F44 16A6E-16A6F 16AF5 16B37-16B38
    16B44 16D6E-16D6F 16E98 1BC9F 1DA88
    """
)

# Chinese, Japanese, Khmer and Burmese put no space between sentences.
UNSPACED = "。！？｡︒︕︖។៕။"
# An ellipsis may end a sentence, and the Tibetan shad does, though Unicode classifies it as the end of a phrase.
SPACED = "".join(sign for sign in SENTENCE_TERMINAL if sign not in UNSPACED) + "…།༎"

SENTENCE_CAP = 10_000  # characters; a longer one is cut at a space
UNMARKED_CAP = 250  # the same in scripts without terminators, which put a space between phrases


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_NEVER_LAST = _words(
    # titles, and words that refer to what follows
    """
    mr mrs ms messrs mme mlle dr drs prof rev revd hon fr capt cpt cmdr col gen lt maj sgt cpl pvt adm brig supt
    insp gov lieut pres rep sen mgr msgr mt mts e.g i.e eg ie vs cf viz ca approx
    """
)
_SOMETIMES_LAST = _words(
    # abbreviations that may end a sentence: they do before a frequent sentence starter
    """
    jr sr st ste esq inc ltd co corp bros llc plc assn dept univ inst ave blvd rd bldg etc al seq ibid est ft lb lbs
    hr hrs yr yrs mins secs ed eds sp spp subsp var ariz calif colo conn fla ga ky mich minn nev okla penn tenn tex
    vt va wis ont que alta
    """
)
_BEFORE_NUMBERS = _words(
    # abbreviations only if a number follows
    """
    no nos nr vol vols p pp ch chap sec sect fig figs art arts op opp ed bk pt para ver v c b d r n l f fol eq eqs
    ex lib jan feb mar apr jun jul aug sep sept oct nov dec mon tue tues wed thu thur thurs fri sat sun tel ext rte
    """
)
_STARTERS = _words(
    # words that begin a sentence far more often than they occur capitalised inside one
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
_WINDOW = 4 * _LONGEST  # characters before a period to search for its word

_SPACED, _UNSPACED = frozenset(SPACED), frozenset(UNSPACED)
_COMMON_END = ".!?…‼⁇⁈⁉।॥؟۔։።"  # searching for these is five times faster than for all terminators
_CLOSE = r"\"'”’»›)}*_\]"
_WIDE_CLOSE = "」』】》〉〕｣）\"'”’"
_GOES_ON = "とっのはがをも、，"  # continue the sentence after a closed quotation: Japanese particles, commas
_QUOTED = rf"[{_WIDE_CLOSE}]++(?![{_GOES_ON}])|(?![{_WIDE_CLOSE}])"


def _candidate(ends: str, wide_ends: str = "") -> re.Pattern[str]:
    """Compile a pattern for possible ends: `ends` before a space, `wide_ends` before anything."""
    # `(?<![...].)`: try a run of terminators from its start only, or long runs would take quadratic time.
    spaced = rf"[{ends}](?<![{ends}].)[{ends}]*+(?:[{_CLOSE}]|\[\d{{1,3}}\])*\s++"
    wide = rf"[{wide_ends}](?<![{wide_ends}].)[{ends}{wide_ends}]*+(?:{_QUOTED})\s*+|"
    return re.compile(wide + spaced if wide_ends else spaced)


_CANDIDATE = _candidate(_COMMON_END)
_WIDE_CANDIDATE = _candidate(_COMMON_END, UNSPACED)
_ANY_SCRIPT_CANDIDATE = _candidate(re.escape(SPACED), UNSPACED)
_RARE_END = (_SPACED | _UNSPACED).difference(_COMMON_END)
_ASCII = bytes(range(128))
_UNMARKED = re.compile(r"[\u0e00-\u0eff]")  # Thai and Lao

_OPENING = re.compile(r"[\"'“‘«‹(\[{*_¿¡–—-]+ *")
_WORD = re.compile(r"[^\W\d_]*")
_LETTERS = re.compile(r"(?:[^\W\d_]{1,2}\.)+[^\W\d_]{1,2}")  # U.S, Ph.D, a.m
_ROMAN = re.compile(r"[IVXLC]+\b")
_NOT_WORD = "\"'“‘«(){}[]*_–—/"


def split_sentences(text: str) -> list[str]:
    """Split a text into sentences: stripped, not empty, at most `SENTENCE_CAP` characters; newlines end them.

    In scripts without terminators (Thai, Lao), sentences above `UNMARKED_CAP` are cut at a space, between phrases.
    Joined, the sentences are the text except for white space. Time is linear in the length, whatever the text.
    """
    candidate = _CANDIDATE
    unmarked = False
    if not text.isascii():
        if rare := _RARE_END.intersection(_beyond_ascii(text)):
            candidate = _WIDE_CANDIDATE if rare <= _UNSPACED else _ANY_SCRIPT_CANDIDATE
        unmarked = _UNMARKED.search(text) is not None
    sentences = []
    for line in text.splitlines():
        begin = 0
        for match in candidate.finditer(line):
            start, end = match.span()
            if _ends(line, begin, start, end):
                sentences.append(line[begin:end].strip())
                begin = end
        if rest := line[begin:].strip():
            sentences.append(rest)
    if max(map(len, sentences), default=0) > (UNMARKED_CAP if unmarked else SENTENCE_CAP):
        return [piece for sentence in sentences for piece in cut_at_spaces(sentence, _cap(sentence))]
    return sentences


def _beyond_ascii(text: str) -> str:
    """The characters of a text that are neither ASCII nor lone surrogates."""
    return text.encode(errors="ignore").translate(None, _ASCII).decode()


def _cap(sentence: str) -> int:
    """The cap of a sentence: lower if over half of it is in a script without terminators."""
    return UNMARKED_CAP if 2 * len(_UNMARKED.findall(sentence)) > len(sentence) else SENTENCE_CAP


def cut_at_spaces(text: str, cap: int = SENTENCE_CAP) -> list[str]:
    """Cut a text into stripped, non-empty pieces of at most `cap` characters, at spaces if there are any."""
    pieces, begin = [], 0
    while len(text) - begin > cap:
        end = text.rfind(" ", begin, begin + cap) + 1 or begin + cap
        pieces.append(text[begin:end].strip())
        begin = end
    return [piece for piece in (*pieces, text[begin:].strip()) if piece]


def _ends(line: str, begin: int, start: int, after: int) -> bool:
    """Whether the sentence from `begin` ends with the terminators at `start`; the next word begins at `after`."""
    if start - begin < 4 and not any(map(str.isalnum, line[begin:start])):
        return False  # `... And then`: dots alone are not a sentence
    terminator = line[start]
    if terminator in _UNSPACED:
        return True
    following = line[after : after + 1]
    if not following.isalnum() and (opening := _OPENING.match(line, after)):
        after = opening.end()
        following = line[after : after + 1]
    if following.islower() or not following or following in _SPACED:
        return False  # also at the end of the line, where there is nothing to split
    if terminator != "." or line[start + 1] in _SPACED:
        return True
    near = line[max(begin, start - _WINDOW) : start].rsplit(None, 1)
    word = near[-1] if near else ""
    if len(word) > _LONGEST and "." not in word and "-" not in word:
        return True
    return _word_ends(word, start - begin == len(word), line, after)


def _word_ends(word: str, alone: bool, line: str, after: int) -> bool:
    """Whether a period after `word` ends the sentence; the next word, at `after`, is not in lower case."""
    word = word.rpartition("-")[2].strip(_NOT_WORD)
    if len(word) == 1 and word.isupper() and (word != "I" or alone or line[after + 1 : after + 2] == "."):
        return _is_starter(line, after)  # an initial
    if alone and (word.isdecimal() or _ROMAN.fullmatch(word)):
        return False  # an enumerator: `1. Open the door.`
    lower = word.lower()
    if lower in _NEVER_LAST:
        return False
    if lower in _BEFORE_NUMBERS and (line[after].isdecimal() or _ROMAN.match(line, after)):
        return False
    if lower in _SOMETIMES_LAST or ("." in word and _LETTERS.fullmatch(word)):
        return _is_starter(line, after)
    return True


def _is_starter(line: str, after: int) -> bool:
    word = _WORD.match(line, after)
    return word is not None and word[0] in _STARTERS and line[word.end() : word.end() + 1] != "."
