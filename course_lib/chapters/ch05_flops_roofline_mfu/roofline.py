"""The matrix products of a layer, and a model's operations on the roofline of a chip."""

from dataclasses import dataclass

from course_lib.checked import checked
from course_lib.theory.inputs.hardware import Accelerator, matmul_intensity
from course_lib.theory.inputs.shape import Matrix, TransformerShape
from course_lib.theory.inputs.units import format_flop
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
        """2·m·k·n FLOP: one multiplication and one addition per row, inner index and column."""
        return 2 * self.rows * self.inner * self.columns


def linear_products(tokens: int, inputs: int, outputs: int) -> tuple[Product, Product, Product]:
    """Y = X·W, ∇W = Xᵀ·∇Y and ∇X = ∇Y·Wᵀ of a layer without bias; all three have equal FLOP.

    The gradients follow from the chain rule. Raises ValueError for counts below 1.
    """
    for name, count in {"tokens": tokens, "inputs": inputs, "outputs": outputs}.items():
        whole(name, count)
    return (
        Product("forward", "X", "W", "Y", tokens, inputs, outputs),
        Product("gradient of the weights", "Xᵀ", "∇Y", "∇W", inputs, tokens, outputs),
        Product("gradient of the input", "∇Y", "Wᵀ", "∇X", tokens, outputs, inputs),
    )


@dataclass(frozen=True)
class Operation:
    """One kind of operation in a forward pass, summed over all layers.

    `moved_bytes` is traffic of the chip's memory, with each operand read or written once;
    `attainable_flop_per_s` is the roofline's limit at `flop_per_byte`.
    """

    name: str
    flop: float
    moved_bytes: float
    attainable_flop_per_s: float

    @property
    def flop_per_byte(self) -> float:
        """Arithmetic intensity: flop / moved_bytes."""
        return self.flop / self.moved_bytes

    @property
    def seconds(self) -> float:
        """Least time by the roofline: flop / attainable_flop_per_s."""
        return self.flop / self.attainable_flop_per_s


@dataclass(frozen=True)
class Roofline:
    """The operations of a forward pass of `tokens` tokens on one chip."""

    accelerator: Accelerator
    tokens: int
    operations: tuple[Operation, ...]

    @property
    def flop(self) -> float:
        """FLOP of all operations."""
        return sum(operation.flop for operation in self.operations)

    @property
    def seconds(self) -> float:
        """Least time of all operations, run one after the other."""
        return sum(operation.seconds for operation in self.operations)

    @property
    def peak_fraction(self) -> float:
        """Fraction of the peak FLOP/s that the roofline allows for the whole pass."""
        return self.flop / self.seconds / self.accelerator.peak_flop_per_s

    def explain(self) -> str:
        """One line per operation: FLOP, bytes, intensity, and its limit, compute or memory."""
        ridge = self.accelerator.ridge_flop_per_byte
        return "\n".join(
            f"{op.name:<14}{format_flop(op.flop):>16} / {op.moved_bytes / 1e9:>8.3f} GB = "
            f"{op.flop_per_byte:>7.1f} FLOP/byte, limited by "
            + ("compute" if op.flop_per_byte >= ridge else "memory")
            for op in self.operations
        )


@checked
def model_roofline(shape: TransformerShape, accelerator: Accelerator, tokens: int) -> Roofline:
    """Roofline of a dense model's forward pass: its matrix products and residual additions.

    A matrix with `in` rows and `out` columns takes 2·tokens·in·out FLOP; it moves inputs, weights
    and outputs once each, in the number format of the chip's peak. A residual addition takes one
    FLOP per number for two reads and one write. Attention's scores are left out: flash attention
    keeps them on the chip. Source of the roofline model: Williams et al. 2009,
    doi:10.1145/1498765.1498785. Raises ValueError for tokens below 1 and for a mixture of experts,
    whose matrices see different numbers of tokens.
    """
    whole("tokens", tokens)
    if shape.experts:
        raise ValueError(
            f"experts {shape.experts}: the tokens of a matrix depend on the router: "
            "take a dense model"
        )
    layer, element_bytes = shape.layer_matrices(0), accelerator.element_bytes
    parts = {
        "attention": [m for m in layer if m.place == "attention"] * shape.layers,
        "MLP": [m for m in layer if m.place == "mlp"] * shape.layers,
        "head": [Matrix("head", shape.hidden, shape.vocab, bias=False)],
    }
    costs: dict[str, tuple[float, float]] = {}  # FLOP and bytes
    for name, matrices in parts.items():
        products = [
            (
                tokens * one.forward_flop,
                matmul_intensity(tokens, one.inputs, one.outputs, element_bytes),
            )
            for one in matrices
        ]
        costs[name] = (
            sum(flop for flop, _ in products),
            sum(flop / intensity for flop, intensity in products),
        )
    numbers = 2 * shape.layers * tokens * shape.hidden  # two additions in each layer
    costs["additions"] = numbers, 3 * element_bytes * numbers
    operations = (
        Operation(name, flop, moved, accelerator.attainable_flop_per_s(flop / moved))
        for name, (flop, moved) in costs.items()
    )
    return Roofline(accelerator, tokens, tuple(operations))
