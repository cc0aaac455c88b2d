"""The matrix products of one linear layer: their sizes, and the FLOP of each."""

from dataclasses import dataclass

from course_lib.validation import whole


@dataclass(frozen=True)
class Product:
    """`left` (rows × inner) times `right` (inner × columns) gives `result` (rows × columns)."""

    what: str
    left: str
    right: str
    result: str
    rows: int
    inner: int
    columns: int

    @property
    def flop(self) -> int:
        """A multiplication and an addition for each number of a row, a column: 2·m·k·n FLOP."""
        return 2 * self.rows * self.inner * self.columns


def linear_products(tokens: int, inputs: int, outputs: int) -> tuple[Product, Product, Product]:
    """Y = X·W, ∇W = Xᵀ·∇Y and ∇X = ∇Y·Wᵀ of a layer without bias, of equally many FLOP.

    The gradients follow from the chain rule. Raises ValueError for counts below 1.
    """
    for name, count in {"tokens": tokens, "inputs": inputs, "outputs": outputs}.items():
        whole(name, count)
    return (
        Product("forward", "X", "W", "Y", tokens, inputs, outputs),
        Product("gradient of the weights", "Xᵀ", "∇Y", "∇W", inputs, tokens, outputs),
        Product("gradient of the input", "∇Y", "Wᵀ", "∇X", tokens, outputs, inputs),
    )
