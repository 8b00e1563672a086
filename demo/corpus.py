"""The text the demo model is trained on: the King James Bible, one document per chapter.

Debian's package `bible-kjv` prints one verse per line behind a short reference ("Ge1:1 In the
beginning ..."). A document here is a title line ("Genesis 1"), an empty line, and one line per verse
without its reference. Every 40th chapter is held out and never trained on.
"""

import re
import subprocess
from dataclasses import dataclass

BOOKS = {
    "Ge": "Genesis", "Exo": "Exodus", "Lev": "Leviticus", "Num": "Numbers", "Deu": "Deuteronomy",
    "Josh": "Joshua", "Jdgs": "Judges", "Ruth": "Ruth", "1Sm": "1 Samuel", "2Sm": "2 Samuel",
    "1Ki": "1 Kings", "2Ki": "2 Kings", "1Chr": "1 Chronicles", "2Chr": "2 Chronicles", "Ezra": "Ezra",
    "Neh": "Nehemiah", "Est": "Esther", "Job": "Job", "Psa": "Psalm", "Prv": "Proverbs",
    "Eccl": "Ecclesiastes", "SSol": "Song of Solomon", "Isa": "Isaiah", "Jer": "Jeremiah",
    "Lam": "Lamentations", "Eze": "Ezekiel", "Dan": "Daniel", "Hos": "Hosea", "Joel": "Joel", "Amos": "Amos",
    "Obad": "Obadiah", "Jonah": "Jonah", "Mic": "Micah", "Nahum": "Nahum", "Hab": "Habakkuk",
    "Zep": "Zephaniah", "Hag": "Haggai", "Zec": "Zechariah", "Mal": "Malachi", "Mat": "Matthew",
    "Mark": "Mark", "Luke": "Luke", "John": "John", "Acts": "Acts", "Rom": "Romans",
    "1Cor": "1 Corinthians", "2Cor": "2 Corinthians", "Gal": "Galatians", "Eph": "Ephesians",
    "Phi": "Philippians", "Col": "Colossians", "1Th": "1 Thessalonians", "2Th": "2 Thessalonians",
    "1Tim": "1 Timothy", "2Tim": "2 Timothy", "Titus": "Titus", "Phmn": "Philemon", "Heb": "Hebrews",
    "Jas": "James", "1Pet": "1 Peter", "2Pet": "2 Peter", "1Jn": "1 John", "2Jn": "2 John", "3Jn": "3 John",
    "Jude": "Jude", "Rev": "Revelation",
}  # fmt: skip

HELD_OUT_EVERY = 40

_VERSE = re.compile(r"^(\d?[A-Za-z]+)(\d+):(\d+) (.*)$")


@dataclass
class Corpus:
    """Chapters as text; `train` and `held_out` share no chapter."""

    train: list[str]
    held_out: list[str]


def chapters_of(verses: str) -> list[str]:
    """The documents in `verses`, the output of `bible -f`. Raises ValueError on a line that is no verse."""
    documents: list[str] = []
    current = ""
    for line in verses.splitlines():
        match = _VERSE.match(line)
        if match is None or match.group(1) not in BOOKS:
            raise ValueError(f"not a verse of a known book: {line[:60]!r}")
        title = f"{BOOKS[match.group(1)]} {match.group(2)}"
        if title != current:
            documents.append(title + "\n\n")
            current = title
        documents[-1] += match.group(4).strip() + "\n"
    return documents


def load() -> Corpus:
    """Runs `bible` and splits its chapters. Raises if the program is missing or prints something else."""
    printed = subprocess.run(["bible", "-f", "gen1:1-rev22:21"], check=True, capture_output=True, text=True).stdout
    documents = chapters_of(printed)
    if len(documents) != 1189:
        raise ValueError(f"expected the 1189 chapters of the King James Bible, found {len(documents)}")
    held_out = [text for index, text in enumerate(documents) if index % HELD_OUT_EVERY == HELD_OUT_EVERY - 1]
    train = [text for index, text in enumerate(documents) if index % HELD_OUT_EVERY != HELD_OUT_EVERY - 1]
    return Corpus(train, held_out)
