"""A generated language in which agreement and brackets reach across nested clauses, so that context is needed.

A sentence is a clause and a full stop. A clause is a noun, perhaps another clause in brackets, and the verb that agrees
with the noun: `g[d{ms}r]t.` Which bracket closes and which verb follows it is certain to those who remember what was
opened, and a guess to those who look only at the last few characters.
"""

from collections.abc import Iterator
from random import Random

NOUNS = ("ab", "cd", "ef", "gh", "ij", "kl", "mn", "op")
VERBS = "qrstuvwx"  # one for each group of nouns
BRACKETS = (("(", ")"), ("[", "]"), ("{", "}"))
NESTING_PROBABILITY = 0.6
DEEPEST = 5


def generate(characters: int, key: int) -> str:
    """At least so many characters of whole sentences, always the same for the same key."""
    random, text, size = Random(key), [], 0
    while size < characters:
        text.append("".join(_clause(random, 0)) + ".")
        size += len(text[-1])
    return "".join(text)


def _clause(random: Random, depth: int) -> Iterator[str]:
    group = random.randrange(len(NOUNS))
    yield random.choice(NOUNS[group])
    if depth < DEEPEST and random.random() < NESTING_PROBABILITY:
        opening, closing = random.choice(BRACKETS)
        yield opening
        yield from _clause(random, depth + 1)
        yield closing
    yield VERBS[group]
