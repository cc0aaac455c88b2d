"""Pipelines that the check must refuse, as patches of the course's own, and one more right one."""

import torch
import torch.distributed as dist

from course_lib.scratch.accumulation import count_tokens, loss_sum
from course_lib.scratch.pipeline import Pipeline as Ours
from course_lib.scratch.pipeline_stage import Mail, sum_tied_gradients
from tests.checking.builds.patches import versions


class Closures:
    """Right in another form: each forward pass leaves a function that does its backward pass."""

    def __init__(self, parts, orders, group, loss_sum=loss_sum):
        self.parts, self.orders, self.group, self.of_logits = parts, orders, group, loss_sum

    def run(self, window):
        self.window, self.total, self.undo = window, [], {}
        self.shapes = [(*inputs.shape, self.parts[0].hidden) for inputs, _ in window]
        mail = Mail(self.orders, self.group, lambda i: torch.empty(self.shapes[i]))
        for work in self.orders[dist.get_rank(self.group.up)]:
            mail.send(work, self.compute(work, mail.take(work)))
        mail.finish()
        sum_tied_gradients(self.parts, self.group)
        return torch.tensor(sum(self.total))

    def compute(self, work, arrived):
        if work.kind == "F":
            return self.forward(work.micro_batch, work.chunk, arrived)
        return self.backward(work.micro_batch, work.chunk, arrived)

    def forward(self, i, chunk, arrived):
        part, (x, labels) = self.parts[chunk], self.window[i]
        x = x if arrived is None else arrived.clone().requires_grad_()
        result = part(x)
        if part.last:
            result = self.of_logits(result, labels) / count_tokens(self.window)
            self.total.append(result.item())

        def undo(gradient):
            torch.autograd.backward([result], [gradient])
            return x.grad

        self.undo[i, chunk] = undo
        return result.detach()

    def backward(self, i, chunk, arrived):
        return self.undo.pop((i, chunk))(arrived)


Closures.__name__ = "Pipeline"
RIGHT = [("closures", Closures)]
AS_MINE = "\nPipeline = Closures\n"  # at the end of a copy of this file, as if it was kept

WRONG = versions(
    Ours,
    lambda pipeline: pipeline,
    r"""
own tokens
- self.loss_sum(y, labels) / self.tokens
+ self.loss_sum(y, labels) / count_tokens([self.window[i]])
? 1 the loss is the sum of the micro-batches' own means
own means
+ self.loss_sum(y, labels) / count_tokens([self.window[i]]) / len(self.window)
? 1 the loss is the mean of the micro-batches' own means
its own loss
+ loss_sum(y, labels) / self.tokens
? 3 1/3 of what is expected: of another loss
a loss on every stage
- return self.loss
+ return self.loss + (not self.parts[-1].last)
? 1 only the last stage knows, is not 0, and 0 is expected
the last loss
- self.loss += y.detach()
+ self.loss = y.detach()
? 1 the loss is that of the last micro-batch alone
a loss with its graph
+ self.loss = self.loss + y
? 1 still carries autograd's graph
a loss that goes on
- self.loss = torch.zeros((), device=self.tokens.device)
+ self.loss = getattr(self, "loss", torch.zeros(())).clone()
? 3 the loss
nothing is sent
- mail.send(work, result)
+ pass
? 1 nothing moves.*rank 1 waits for a message from rank 0
no gradient of the input
- arrived.requires_grad_()
+ arrived
? 2 B2 gives None, and stage 1 waits for what it makes
one pass less
- in self.order:
+ in self.order[:-1]:
? 1 `run` makes 2 of 3 passes
all forward passes first
+ in sorted(self.order, key=lambda work: work.kind == "B"):
? 3 pass \d is F\d, and its order has B0
tables not summed
- sum_tied_gradients(self.parts, self.group)
+ pass
? 2 this stage's own use of the tied table
the mean of the passes
+ sum_tied_gradients(self.parts, self.group)
+ for parameter in [one for part in self.parts for one in part.parameters()]:
+     parameter.grad /= len(window)
? 2 1/3 of what is expected: the mean over micro-batches
gradients that were there
- self.window, self.tokens = window, count_tokens(window)
+ self.window, self.tokens = window, count_tokens(window)
+ for parameter in [one for part in self.parts for one in part.parameters()]:
+     parameter.grad.zero_()
? 2 without what was there before
no finish
- mail.finish()
+ pass
? raised ValueError: `run` returns while what it has sent
an output with its graph
- return y.detach()
+ return y
? 1 what F0 gives still carries autograd's graph
keeps everything
- x, y, _ = self.held.pop((i, chunk))
+ x, y, _ = self.held[(i, chunk)]
? 3 what has had it must be let go
the latest first
+ _, (x, y, _) = self.held.popitem()
? 3 .
""",
)
