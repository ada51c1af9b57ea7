"""Resolve the templates of wikitext: decide which ones carry words of their sentence, and in which arguments.

A dump holds calls of templates, not their output. Most produce boxes, notes and links and are dropped; a few occur in
the middle of sentences, which would break without their words. `_RULES` lists these. They were chosen by counting the
templates inside the paragraphs of articles in English, German, French, Russian, Japanese, Chinese, Hebrew, Arabic and
Thai: quoted and foreign words, quantities, dates, dashes, and links to articles in other languages. Pronunciations,
coordinates and editors' marks (`citation needed`) are left out, and nothing is calculated: `{{convert|5|km|mi}}`
becomes `5 km`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from bertjax.text.sources.wikipedia.gaps import BREAK, GAP, replace_nested

Rule = Callable[[dict[str, str], str], str]  # (arguments by name or number from "1", the template's own name) -> words

_BALANCED = re.compile(r"\{\{((?:[^{}]++|\{[^{}]*+\})*)\}\}")
_ANY = re.compile(r"\{\{((?:[^{}]++|\{(?!\{)|\}(?!\}))*)\}\}")
_PARAMETER = re.compile(r"\{\{\{[^{}|]*+(?:\|([^{}]*+))?\}\}\}")
_NAME = re.compile(r"[\w -]{1,40}")
_ORDINAL = re.compile(r"(?:[ivxlc]+|\d+)(?:er|re|e|ème)(?: siècle)?")  # French: {{XXe siècle}}, {{1er|prix}}
_LANGUAGE = re.compile(r"(?:lang|langue|llang|transl)-[a-z-]+")
_RANGE = frozenset(("to", "and", "or", "by", "x", "×", "-", "–", "to(-)", "+/-", "±"))  # between quantities
_DEGREES = {"C": "°C", "F": "°F"}
_NUMBER = re.compile(r"[+−–-]?\d[\d.,/+−–e-]*+")


def resolve_templates(text: str) -> str:
    """Replace every template by its words or `GAP`; unclosed calls stay as they are."""
    if "{{" not in text:
        return text
    text = text.replace("{{!}}", "|")
    if "{{{" in text:
        text = _PARAMETER.sub(lambda match: match[1] or "", text)
    return replace_nested(text, _BALANCED, _ANY, lambda match: template_words(match[1]))


def template_words(call: str) -> str:
    """The words of a template, or `GAP`; `call` is the text between its braces."""
    end = call.find("|")
    name = (call if end < 0 else call[:end]).strip().replace("_", " ")
    key = name.casefold()
    rule = _RULES.get(key)
    if rule is None:
        if key.startswith("formatnum:"):
            return name[len("formatnum:") :].strip()
        if _LANGUAGE.fullmatch(key):
            rule = _FIRST
        elif _ORDINAL.fullmatch(key):
            rule = _own_name
        else:
            return GAP
    return rule(_arguments(call[end + 1 :] if end >= 0 else ""), name) or GAP


def _arguments(text: str) -> dict[str, str]:
    """Parse the arguments: values by name, or by number from "1" if unnamed."""
    arguments: dict[str, str] = {}
    number = 0
    for argument in text.split("|"):
        name, equals, value = argument.partition("=")
        if equals and _NAME.fullmatch(name := name.strip()):
            arguments[name] = value.strip()
        else:
            number += 1
            arguments[str(number)] = argument.strip()
    return arguments


def _join(*keys: str, join: str = " ", before: str = "", after: str = "") -> Rule:
    """Make a rule that joins the arguments with these numbers or names, if present."""

    def words(arguments: dict[str, str], name: str) -> str:
        joined = join.join(filter(None, (arguments.get(key) for key in keys)))
        return f"{before}{joined}{after}" if joined else ""

    return words


def _either(*keys: str) -> Rule:
    """Make a rule that takes the first of these arguments that is present."""
    return lambda arguments, name: next(filter(None, (arguments.get(key) for key in keys)), "")


def _constant(text: str) -> Rule:
    return lambda arguments, name: text


def _own_name(arguments: dict[str, str], name: str) -> str:
    return " ".join(filter(None, (name, arguments.get("1"))))


def _ship(arguments: dict[str, str], name: str) -> str:
    number = arguments.get("2", "")
    return " ".join(filter(None, (name, arguments.get("1"), f"({number})" if number else "")))


def _quantity(arguments: dict[str, str], name: str) -> str:
    """`5|to|10|km|mi` is `5 to 10 km`: numbers and the words between them, up to the first unit."""
    words = []
    for number in range(1, 8):
        word = arguments.get(str(number), "")
        words.append(_DEGREES.get(word, word))
        if word not in _RANGE and not _NUMBER.fullmatch(word):
            break
    return " ".join(filter(None, words))


def _measure(arguments: dict[str, str], name: str) -> str:
    """`50|km|2` is `50 km2`."""
    return f"{arguments.get('1', '')} {arguments.get('2', '')}{arguments.get('3', '')}".strip()


def _fraction(arguments: dict[str, str], name: str) -> str:
    """`3` is `1/3`, `1|4` is `1/4`, `2|1|4` is `2 1/4`."""
    parts = [arguments[key] for key in ("1", "2", "3") if arguments.get(key)]
    return " ".join([*parts[:-2], "/".join(parts[-2:] if len(parts) > 1 else ["1", *parts])]) if parts else ""


def _value(arguments: dict[str, str], name: str) -> str:
    """`6.2|e=18|u=m` is `6.2×10^18 m`."""
    number, power = arguments.get("1", ""), arguments.get("e", "")
    unit = arguments.get("u") or arguments.get("ul") or ""
    return f"{number}{'×10^' if power else ''}{power} {unit}".strip() if number else ""


def _since(arguments: dict[str, str], name: str) -> str:
    """`As of 2010`; lower case with `lc=y`."""
    if arguments.get("alt"):
        return arguments["alt"]
    year, month, day = (arguments.get(key, "").lstrip("0") for key in ("1", "2", "3"))
    date = " ".join(filter(None, (day, _MONTHS.get(month, month), year)))
    start = arguments.get("pre") or ("as of" if arguments.get("lc") or arguments.get("df") == "lc" else "As of")
    return f"{start} {date}{arguments.get('post', '')}" if date else ""


def _named_in_japanese(arguments: dict[str, str], name: str) -> str:
    inside = ", ".join(filter(None, (arguments.get("2"), arguments.get("3"))))
    first = arguments.get("1", "")
    return f"{first} ({inside})" if first and inside else first or inside


def _joined(arguments: dict[str, str], name: str) -> str:
    return "".join(value for key, value in arguments.items() if key.isdecimal())


def _passage(*keys: str) -> Rule:
    """Make a rule for a quotation that forms its own paragraph."""
    find = _either(*keys)

    def words(arguments: dict[str, str], name: str) -> str:
        text = find(arguments, name)
        return f"{BREAK}{text}{BREAK}" if text else ""

    return words


def _table(rules: Iterable[tuple[Rule, str]]) -> dict[str, Rule]:
    return {name: rule for rule, names in rules for name in re.split(r"\s{2,}", names.strip())}


_MONTHS = {
    "1": "January",
    "2": "February",
    "3": "March",
    "4": "April",
    "5": "May",
    "6": "June",
    "7": "July",
    "8": "August",
    "9": "September",
    "10": "October",
    "11": "November",
    "12": "December",
}
_FIRST = _join("1")
# Names in lower case, separated by two spaces or a newline.
_RULES = _table(
    [
        (
            _FIRST,
            """nowrap  nobr  nobreak  nobold  small  smaller  big  large  larger  resize  em  strong  sub  sup  abbr
            tooltip  linktext  vanchor  visible anchor  angbr  vr  sc  smallcaps  mvar  math  unicode  not a typo
            as written  nq  rtl  tq  format price  formatnum  formatted num  citation  citation étrangère  incise  latin
            souverain  souverain2  souverain-  petites capitales  "  ルビ  仮リンク  link-en  link-de  link-fr  link-ja
            link-ru  link-es  link-it  le  нп  нп1  нп2  нп3  нп4  нп5  iw  не переведено  ألمانية  لغة-أل  ה""",
        ),
        (_either("lt", "1"), "ill  illm  interlanguage link  interlanguage link multi"),
        (_either("texte", "fr", "1"), "lien"),
        (_either("2", "1"), "lang  langue  en langue  llang  rtl-lang  langx"),
        (_either("3", "2", "1"), "transl  transliteration  tsl"),
        (_quantity, "convert  cvt"),
        (_measure, "unité  nombre  tmp  nb"),
        (_value, "val"),
        (_join("1", after=" m"), "höhe"),
        (_join("1", after=" €"), "euro"),
        (_join("1", before="US$"), "us$"),
        (_join("1", "2", "3"), "date  date-  date de naissance  date de naissance-  date de décès  date de décès-"),
        (_join("1", "2", join=" h "), "heure"),
        (_join("1", after="e siècle"), "s  s-  s2  s2-  siècle"),
        (_join("1", before="c. "), "circa  c."),
        (_join("1", before="née "), "née  nee"),
        (_join("1", before="×10^"), "e"),
        (_join("1", "2", join="–"), "dash year"),
        (_join("1", "2"), "bibleref  bibleref2  bibleverse"),
        (_fraction, "frac  sfrac  fraction"),
        (_since, "as of"),
        (_named_in_japanese, "nihongo  nihongo2  nihongo3  nihongo4"),
        (_joined, "chem  chem2  gaps"),
        (_ship, "uss  hms  hmas  hmcs  ss  rms  mv  sms"),
        (_passage("1", "text"), "quote  blockquote  cquote  quotation  zitat  цитата  citation bloc"),
        (_constant("'"), "'  apostrophe"),
        (_constant("'s"), "'s"),
        (_constant('"'), '\' "  -"'),
        (_constant(" – "), "snd  snds  spnd  spaced ndash  spaced en dash"),
        (_constant("–"), "ndash  endash  en dash"),
        (_constant("—"), "mdash  emdash  em dash  —  mdashb"),
        (_constant(" "), "nbsp  spaces  space  thinsp"),
        (_constant("="), "=  eqm"),
        (_constant("etc."), "etc."),
    ]
)
