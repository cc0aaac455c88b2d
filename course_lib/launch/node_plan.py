"""What `two_nodes` asks of the program inside the namespaces: one JSON file in their folder."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

_NAME = "plan.json"


@dataclass(frozen=True)
class NodePlan:
    """The commands of node 0 and node 1, and the link between them."""

    commands: list[list[str]]
    addresses: list[str]
    link: str  # what each node calls its end
    limit: str  # arguments of `tc qdisc … tbf`
    environment: dict[str, str]  # of both nodes, besides the caller's

    def write(self, folder: Path) -> None:
        (folder / _NAME).write_text(json.dumps(asdict(self)))

    @classmethod
    def read(cls, folder: Path) -> "NodePlan":
        return cls(**json.loads((folder / _NAME).read_text()))
