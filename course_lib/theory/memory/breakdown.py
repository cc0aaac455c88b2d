"""The memory of one GPU as a list of leaves."""

from dataclasses import dataclass, fields

from course_lib.theory.inputs.units import format_bytes


@dataclass(frozen=True)
class MemoryBreakdown:
    """Bytes on one GPU by leaf; the totals are properties."""

    parameters_bytes: int = 0
    gradients_bytes: int = 0
    gradient_buffer_bytes: int = 0  # fp32 sums beside 16-bit gradients
    master_copy_bytes: int = 0
    optimizer_state_bytes: int = 0
    inputs_bytes: int = 0
    activations_bytes: int = 0  # of the layers
    head_bytes: int = 0  # activations before the first layer and after the last
    gathered_parameters_bytes: int = 0  # ZeRO-3: whole layers while they are computed
    gathered_gradients_bytes: int = 0  # ZeRO-2 and 3: whole gradients until they are scattered
    bucket_bytes: int = 0  # DDP: copies of the gradients that are sent
    temporary_bytes: int = 0
    update_bytes: int = 0  # the optimizer's step
    overhead_bytes: int = 0

    @property
    def model_states_bytes(self) -> int:
        """Parameters, gradients and optimizer states with their fp32 copies."""
        return (
            self.parameters_bytes
            + self.gradients_bytes
            + self.gradient_buffer_bytes
            + self.master_copy_bytes
            + self.optimizer_state_bytes
        )

    @property
    def total_bytes(self) -> int:
        """The sum of all leaves."""
        return sum(getattr(self, leaf.name) for leaf in fields(self))

    @property
    def consumers(self) -> dict[str, int]:
        """The seven consumers, in bytes: the leaves grouped as people speak of them."""
        return {
            "weights": self.parameters_bytes,
            "gradients": self.gradients_bytes + self.gradient_buffer_bytes,
            "optimizer": self.master_copy_bytes + self.optimizer_state_bytes,
            "inputs and labels": self.inputs_bytes,
            "intermediate results": self.activations_bytes + self.head_bytes,
            "temporary buffers": (
                self.gathered_parameters_bytes
                + self.gathered_gradients_bytes
                + self.bucket_bytes
                + self.temporary_bytes
                + self.update_bytes
            ),
            "framework overhead": self.overhead_bytes,
        }

    def explain(self, unit: str = "GB") -> str:
        """One line per consumer, then the total, in GB (10^9) or GiB (2^30)."""
        lines = [
            f"{name:<22}{format_bytes(size, unit):>12}" for name, size in self.consumers.items()
        ]
        return "\n".join([*lines, f"{'total':<22}{format_bytes(self.total_bytes, unit):>12}"])
