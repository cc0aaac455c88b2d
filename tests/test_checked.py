"""Records and containers of the wrong kind: a sentence instead of an AttributeError."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from inspect import signature
from typing import ClassVar

import pytest

from course_lib.checked import checked


@dataclass(frozen=True)
class Wheel:
    """Found by its name."""

    BY_NAME: ClassVar[str] = "WHEELS[{0}]"

    size: int = 1


@checked
@dataclass(frozen=True)
class Cart:
    """Holds wheels; a spare one may be None."""

    wheels: tuple[Wheel, ...]
    spare: Wheel | None = None
    name: str = ""

    def __post_init__(self) -> None:
        """Sees fields that were checked."""
        assert all(wheel.size for wheel in self.wheels)


@checked
def sizes(
    cart: Cart, *, more: Sequence[int] = (), prices: Mapping[str, float] | None = None
) -> int:
    """Not checked are numbers and text."""
    return len(cart.wheels) + len(more) + len(prices or {})


CART = Cart((Wheel(), Wheel(2)))
REFUSED = {
    "cart must be a Cart, got str 'cart': build one by Cart(…)": lambda: sizes("cart"),
    "cart must be a Cart, got None: build one by Cart(…)": lambda: sizes(cart=None),
    "more must be a list, got int 3: give a list": lambda: sizes(CART, more=3),
    "more must be a list, got str 'abc': give a list": lambda: sizes(CART, more="abc"),
    "prices must be a dict, got list [1]: give a dict": lambda: sizes(CART, prices=[1]),
    "wheels must be a tuple, got Wheel Wheel(size=1): give a tuple": lambda: Cart(Wheel()),
    "wheels[1] must be a Wheel, got str 'big': use WHEELS['big']": lambda: Cart((Wheel(), "big")),
    "spare must be a Wheel or None, got int 5: use WHEELS[...]": lambda: replace(CART, spare=5),
}


def test_what_fits_passes():
    assert sizes(CART) == 2 and sizes(cart=CART, more=[1], prices={"a": 1.0}) == 4
    assert replace(CART, spare=Wheel()).spare == Wheel() and Cart(()).wheels == ()


def test_the_rest_is_refused_by_one_sentence():
    said = {}
    for sentence, call in REFUSED.items():
        with pytest.raises(TypeError) as refusal:
            call()
        said[sentence] = str(refusal.value)
    assert said == {sentence: sentence for sentence in REFUSED}


def test_names_signatures_and_docstrings_stay():
    assert sizes.__name__ == "sizes" and sizes.__doc__.startswith("Not checked")
    assert list(signature(sizes).parameters) == ["cart", "more", "prices"]
    assert list(signature(Cart).parameters) == ["wheels", "spare", "name"]
