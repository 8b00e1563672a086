"""Byte-level BPE: training, encoding, decoding, in the form llama.cpp reads as `gpt2` with pre-tokenizer `qwen35`.

Text is cut into pieces by the pre-tokenizer's regular expression, each piece is UTF-8 encoded, bytes are
written as printable characters, and the merges are applied in the order in which they were learnt.
Token ids: 0..255 the bytes, then one per merge, then `<|endoftext|>` last.
"""

import json
import re
import sys
import unicodedata
from collections import Counter, defaultdict
from pathlib import Path

END_OF_TEXT = "<|endoftext|>"


def _class_of(first_letters: str) -> str:
    """The body of a regex character class for the Unicode categories that begin with one of `first_letters`."""
    ranges: list[list[int]] = []
    for code in range(sys.maxunicode + 1):
        if unicodedata.category(chr(code))[0] in first_letters:
            if ranges and ranges[-1][1] == code - 1:
                ranges[-1][1] = code
            else:
                ranges.append([code, code])
    return "".join(f"\\U{low:08x}-\\U{high:08x}" for low, high in ranges)


def _pre_tokenizer() -> re.Pattern[str]:
    """The `qwen35` pre-tokenizer of llama.cpp; Python's `re` has no \\p{..}, so the classes are spelled out."""
    letter, mark, number = _class_of("L"), _class_of("M"), _class_of("N")
    space = r"\t-\r \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"
    return re.compile(
        r"'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD]"
        rf"|[^\r\n{letter}{number}]?[{letter}{mark}]+"
        rf"|[{number}]"
        rf"| ?[^{space}{letter}{mark}{number}]+[\r\n]*"
        rf"|[{space}]*[\r\n]+"
        rf"|[{space}]+(?![^{space}])"
        rf"|[{space}]+"
    )


def _byte_characters() -> list[str]:
    """The character GPT-2's vocabulary writes for each byte: printable Latin-1 stands for itself."""
    printable = {*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)}
    others = [byte for byte in range(256) if byte not in printable]
    return [chr(byte) if byte in printable else chr(256 + others.index(byte)) for byte in range(256)]


class Tokenizer:
    """A vocabulary and its merges. Immutable after construction but for the cache of encoded pieces."""

    def __init__(self, merges: list[tuple[str, str]]) -> None:
        self.merges = merges
        self.tokens = [*_byte_characters(), *(left + right for left, right in merges), END_OF_TEXT]
        if len(set(self.tokens)) != len(self.tokens):
            raise ValueError("two merges make the same token")
        self.end_of_text = len(self.tokens) - 1
        self._ids = {token: index for index, token in enumerate(self.tokens)}
        self._rank = {pair: index for index, pair in enumerate(merges)}
        self._byte_to_character = _byte_characters()
        self._character_to_byte = {character: byte for byte, character in enumerate(self._byte_to_character)}
        self._pattern = _pre_tokenizer()
        self._cache: dict[str, list[int]] = {}

    def __len__(self) -> int:
        return len(self.tokens)

    def encode(self, text: str) -> list[int]:
        """Token ids of `text`. Special tokens in it are ordinary characters."""
        ids: list[int] = []
        for piece in self._pattern.findall(text):
            known = self._cache.get(piece)
            if known is None:
                known = self._cache[piece] = self._encode_piece(piece)
            ids += known
        return ids

    def decode(self, ids: list[int]) -> str:
        """The text of `ids`; bytes that are not UTF-8 become U+FFFD, end-of-text vanishes."""
        characters = "".join(self.tokens[index] for index in ids if index != self.end_of_text)
        return bytes(self._character_to_byte[character] for character in characters).decode("utf-8", "replace")

    def save(self, path: Path) -> None:
        path.write_text(json.dumps({"merges": self.merges}, ensure_ascii=False))

    @staticmethod
    def load(path: Path) -> "Tokenizer":
        return Tokenizer([(left, right) for left, right in json.loads(path.read_text())["merges"]])

    def _encode_piece(self, piece: str) -> list[int]:
        parts = [self._byte_to_character[byte] for byte in piece.encode("utf-8")]
        while len(parts) > 1:
            unknown = len(self.merges)
            ranks = [self._rank.get(pair, unknown) for pair in zip(parts, parts[1:])]
            index = min(range(len(ranks)), key=ranks.__getitem__)
            if ranks[index] == unknown:
                break
            parts[index : index + 2] = [parts[index] + parts[index + 1]]
        return [self._ids[part] for part in parts]


def train(documents: list[str], vocabulary_size: int) -> Tokenizer:
    """Learns merges from `documents` until there are `vocabulary_size` tokens. Equal counts: the smaller pair wins."""
    characters, pattern = _byte_characters(), _pre_tokenizer()
    counted = Counter(piece for text in documents for piece in pattern.findall(text))
    words = [[characters[byte] for byte in piece.encode("utf-8")] for piece in counted]
    counts = list(counted.values())

    pair_count: Counter[tuple[str, str]] = Counter()
    words_with: defaultdict[tuple[str, str], set[int]] = defaultdict(set)
    for index, word in enumerate(words):
        for pair in zip(word, word[1:]):
            pair_count[pair] += counts[index]
            words_with[pair].add(index)

    merges: list[tuple[str, str]] = []
    while 256 + len(merges) + 1 < vocabulary_size:
        best = min(pair_count, key=lambda pair: (-pair_count[pair], pair), default=None)
        if best is None or pair_count[best] < 2:
            raise ValueError(f"the text yields only {256 + len(merges) + 1} tokens; ask for fewer")
        merges.append(best)
        for index in words_with.pop(best):
            word = words[index]
            for pair in zip(word, word[1:]):
                pair_count[pair] -= counts[index]
            words[index] = merged = _merge(word, best)
            for pair in zip(merged, merged[1:]):
                pair_count[pair] += counts[index]
                words_with[pair].add(index)
        del pair_count[best]
    return Tokenizer(merges)


def _merge(word: list[str], pair: tuple[str, str]) -> list[str]:
    """`word` with every occurrence of `pair` joined, from the left."""
    joined: list[str] = []
    index = 0
    while index < len(word):
        if index + 1 < len(word) and (word[index], word[index + 1]) == pair:
            joined.append(word[index] + word[index + 1])
            index += 2
        else:
            joined.append(word[index])
            index += 1
    return joined
