"""The `generated_proteins` source: families of proteins made by rules, the same in every installation.

A family has a letter or a class of letters at each of its sites, like the relatives of a real protein:

conserved  the family's letter in 19 of 20 members, else any letter
class      one of several letters with similar chemistry
free       any letter
contact    a class site that determines another one in 19 of 20 members, like residues that touch each other

A member lacks up to four letters at either end. So a masked letter can be inferred from the letters around it, a
substitution at a conserved site is unlike the family, and one at a free site is neutral.
"""

from __future__ import annotations

from random import Random
from typing import Literal, NamedTuple

from bertjax.storage.utf8 import ReadCounts
from bertjax.text.sources.generated import drawn_below, numbered_units
from bertjax.text.sources.source import Paragraphs, Source, SourceFile, SourceKind
from bertjax.text.spans import MarkedText, Record

LETTERS = "ACDEFGHIKLMNPQRSTVWY"
_CLASSES = ("AILMFVW", "DENQ", "KRH", "STCGP", "FWYH")
_FAMILIES = 12
_SHORTEST, _LONGEST = 40, 57  # sites of a family
_CUT = 4  # letters at either end that a member may lack
_FAITHFUL = 0.95  # probability of the conserved letter, and of the letter that a contact determines
_CONSERVED, _SIMILAR = 0.45, 0.35  # shares of the sites; the others are free
_CONTACTS = 5  # of a family
_DISTANCE = 6  # least number of sites between the two of a contact
_UNIT_MEMBERS = 100_000
_BYTES = 46  # per member, about

SiteKind = Literal["conserved", "class", "free"]


class Site(NamedTuple):
    """A site of a family: the letters that its members have there, and the site that determines it, if any."""

    kind: SiteKind
    letters: str
    partner: int = -1  # an earlier site; the index of its letter in its class is the index of this site's letter


class Member(NamedTuple):
    """A protein: its letters, its family, and the site of its first letter."""

    letters: str
    family: int
    first: int


def families() -> list[list[Site]]:
    """The sites of each family."""
    draw = Random("families of proteins")
    return [_family(draw) for _ in range(_FAMILIES)]


def member(number: int, sites: list[list[Site]]) -> Member:
    """Generate member `number`, a function of the number alone."""
    draw = Random(f"protein {number}")
    family = drawn_below(draw, len(sites))
    letters: list[str] = []
    for site in sites[family]:
        letter = site.letters[drawn_below(draw, len(site.letters))]
        strays = draw.random() >= _FAITHFUL
        if site.partner >= 0 and not strays:
            other = sites[family][site.partner]
            letter = site.letters[other.letters.index(letters[site.partner]) % len(site.letters)]
        elif site.kind == "conserved" and strays:
            letter = LETTERS[drawn_below(draw, len(LETTERS))]
        letters.append(letter)
    first, last = drawn_below(draw, _CUT + 1), drawn_below(draw, _CUT + 1)
    return Member("".join(letters[first : len(letters) - last]), family, first)


def contacts(sites: list[Site], first: int, length: int) -> list[tuple[int, int]]:
    """The contacts of a member of a family, as pairs of positions of its letters, from 0."""
    pairs = ((site.partner - first, place - first) for place, site in enumerate(sites) if site.partner >= 0)
    return [(one, other) for one, other in pairs if one >= 0 and other < length]


def _family(draw: Random) -> list[Site]:
    size = _SHORTEST + drawn_below(draw, _LONGEST - _SHORTEST + 1)
    sites = []
    for _ in range(size):
        share = draw.random()
        if share < _CONSERVED:
            sites.append(Site("conserved", LETTERS[drawn_below(draw, len(LETTERS))]))
        elif share < _CONSERVED + _SIMILAR:
            sites.append(Site("class", _CLASSES[drawn_below(draw, len(_CLASSES))]))
        else:
            sites.append(Site("free", LETTERS))
    alike = [place for place, site in enumerate(sites) if site.kind == "class"]
    pairs = [(one, other) for one in alike for other in alike if other - one >= _DISTANCE]
    used: set[int] = set()
    for one, other in sorted(pairs, key=lambda _: draw.random()):
        if len(used) < 2 * _CONTACTS and not used & {one, other}:
            used |= {one, other}
            sites[other] = sites[other]._replace(partner=one)
    return sites


def find(source: Source) -> list[SourceFile]:
    """Split the number of members into units of work. Raises ValueError unless the pattern is a number."""
    return numbered_units(source, __file__, _UNIT_MEMBERS, _BYTES)


def read(file: SourceFile, counts: ReadCounts) -> Paragraphs:
    """Generate the members of a unit, each a document of one sentence."""
    sites = families()
    for number in range(*map(int, file.path.split("-"))):
        letters = member(number, sites).letters
        yield MarkedText(letters, record=Record(f"protein_{number}"))
        yield None


KIND = SourceKind("generated_proteins", read, example="20000", default_pattern="20000", find=find, is_sequence=True)
