"""Sentences and words of English, by nltk's own code: Punkt with its published parameters, and its word tokenizer.

nltk as a whole needs files, sockets and `regex`, which is written in C. So only the modules that tokenize are imported,
and find what they ask of the rest here: Python's `re`, whose fuel is counted, instead of expressions with a time-out.
"""

from __future__ import annotations

import importlib
import importlib.util
import re
import sys
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import stand_ins

PARAMETERS = "core/_static/nltk_cache/tokenizers/punkt_tab/english"
"""Where llama-index-core carries nltk's data."""


def _root(package: str) -> Path:
    spec = importlib.util.find_spec(package)
    return Path(spec.submodule_search_locations[0])  # type: ignore[union-attr, index]


def _import_tokenizers() -> tuple[Any, Any]:
    """Import the two modules, in packages whose own code does not run."""
    root = str(_root("nltk"))

    def nothing(*_: Any, **__: Any) -> None:
        raise NotImplementedError

    stand_ins.put("nltk", __path__=[root], redos=re)
    stand_ins.put("nltk.tokenize", __path__=[f"{root}/tokenize"])
    stand_ins.put("nltk.pathsec", open=nothing, validate_path=nothing)
    stand_ins.put("nltk.picklesec", allowlisted_pickle_load=nothing)
    stand_ins.put("nltk.probability", FreqDist=Counter)
    stand_ins.put("nltk.termsec", safe_print=nothing)
    stand_ins.put("nltk.internals", overridden=nothing)
    sys.modules["nltk"].pathsec = sys.modules["nltk.pathsec"]  # type: ignore[attr-defined]
    return importlib.import_module("nltk.tokenize.punkt"), importlib.import_module("nltk.tokenize.destructive")


PUNKT, DESTRUCTIVE = _import_tokenizers()


def _parameters() -> Any:
    """Read Punkt's parameters as nltk does."""
    folder = _root("llama_index") / PARAMETERS

    def lines(name: str) -> list[str]:
        return (folder / name).read_text(encoding="utf-8").removesuffix("\n").split("\n")

    found = PUNKT.PunktParameters()
    found.abbrev_types, found.sent_starters = set(lines("abbrev_types.txt")), set(lines("sent_starters.txt"))
    found.collocations = {tuple(line.split("\t")) for line in lines("collocations.tab")}
    contexts = (line.split("\t") for line in lines("ortho_context.tab"))
    found.ortho_context = defaultdict(int, {word: int(flags) for word, flags in contexts})
    return found


_SENTENCES = PUNKT.PunktSentenceTokenizer(_parameters())
_WORDS = DESTRUCTIVE.NLTKWordTokenizer()


def sentences(text: str) -> list[str]:
    """Return a text's sentences, as `nltk.sent_tokenize`."""
    return _SENTENCES.tokenize(text)


def words(text: str) -> list[str]:
    """Return a text's words and punctuation marks, as `nltk.word_tokenize`."""
    return [word for sentence in sentences(text) for word in _WORDS.tokenize(sentence)]


words("Compile what is compiled when it is needed. Then go on.")
