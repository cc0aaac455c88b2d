"""How a prediction looks in a notebook: asked for, and committed."""

from course_lib.checking import cards
from course_lib.checking.gaps import in_words


def asked(question: str) -> str:
    """The question, before there is a number."""
    how = "Write your number in the box below and press Enter."
    return cards.card(
        f"Prediction: {question}",
        [cards.head("?", "Predict", question), cards.line(how, quiet=True)],
    )


def committed(question: str, unit: str, yours: float, at: str, change: float | None) -> str:
    """The number that counts; `change`: a later one, which does not."""
    revised = ""
    if change is not None:
        revised = f"Your change to {in_words(change, unit)} is kept, but the first number counts."
    day, _, time = at.partition(" ")
    return cards.card(
        f"Your prediction: {in_words(yours, unit)}",
        [
            cards.head("✓", "Predicted", question),
            cards.large(in_words(yours, unit), f"committed on {day} at {time}"),
            cards.line(revised, quiet=True),
        ],
    )
