"""Between in step and as they come: nobody runs ahead by more than a bound.

Ho et al. 2013, "More Effective Distributed ML via a Stale Synchronous
Parallel Parameter Server", NeurIPS.
"""

from torch import Tensor

from course_lib.scratch.parameter_server.messages import STOP
from course_lib.scratch.parameter_server.server import ParameterServer


class BoundedServer(ParameterServer):
    """Serves as they come, but lets a trainer that is too far ahead wait.

    Bound 0: nobody gets rows for the next update before all have sent their
    gradients of the last one.
    """

    def serve_within(self, bound: int) -> None:
        """Until all have stopped, none more than `bound` updates ahead."""
        done = dict.fromkeys(self.trainers, 0)  # updates of who still runs
        waiting: dict[
            int, Tensor
        ] = {}  # ids that trainers ahead have asked for
        while done:
            trainer, count = self.messages.announced()
            if count == STOP:
                del done[trainer]
            elif trainer in self.asked:
                self.update(trainer, count)
                done[trainer] += 1
            else:
                waiting[trainer] = self.messages.receive_ids(count, trainer)
            for trainer in [*waiting]:
                ahead = done[trainer] - min(done.values())
                # Who wants no rows from this server does not wait for any.
                if ahead <= bound or not len(waiting[trainer]):
                    self.send_rows(trainer, waiting.pop(trainer))
