"""Pipelines that the check must refuse, and one more that is right."""

import torch
import torch.distributed as dist

from course_lib.scratch.accumulation import count_tokens, loss_sum
from course_lib.scratch.pipeline.mail import Mail
from course_lib.scratch.pipeline.runtime import Pipeline as Ours
from course_lib.scratch.pipeline.stage import sum_tied_gradients


def _pipeline(fault):
    """A pipeline in which one thing goes wrong."""

    class Pipeline:
        def __init__(self, parts, orders, group, loss_sum=loss_sum):
            self.parts, self.orders, self.group = parts, orders, group
            self.order, self.loss_sum = orders[dist.get_rank(group.up)], loss_sum

        def run(self, window):
            self.window, self.tokens = window, count_tokens(window)
            if fault != "a loss that goes on" or not hasattr(self, "loss"):
                self.loss = torch.zeros(())
            if fault == "gradients that were there":
                for part in self.parts:
                    for parameter in part.parameters():
                        parameter.grad.zero_()
            self.held, self.latest = {}, []
            mail = Mail(self.orders, self.group, self.blank)
            order = self.order
            if fault == "all forward passes first":
                order = sorted(order, key=lambda work: work.kind == "B")
            for work in order[:-1] if fault == "one pass less" else order:
                result = self.compute(work, mail.take(work))
                if fault != "nothing is sent":
                    mail.send(work, result)
            if fault != "no finish":
                mail.finish()
            if fault != "tables not summed":
                sum_tied_gradients(self.parts, self.group)
            if fault == "the mean of the passes":
                for part in self.parts:
                    for parameter in part.parameters():
                        parameter.grad /= len(window)
            if fault == "a loss on every stage" and not self.parts[-1].last:
                return self.loss + 1
            return self.loss

        def compute(self, work, arrived):
            run = {"F": self.forward, "B": self.backward}[work.kind]
            return run(work.micro_batch, work.chunk, arrived)

        def forward(self, i, chunk, arrived):
            part, (tokens, labels) = (
                self.parts[0 if fault == "one chunk" else chunk],
                self.window[i],
            )
            x = tokens if arrived is None else arrived
            if arrived is not None and fault != "no gradient of the input":
                x.requires_grad_()
            y = part(x)
            if part.last:
                own = count_tokens([self.window[i]])
                y = (loss_sum if fault == "its own loss" else self.loss_sum)(y, labels)
                y = y / (own if fault in ("own tokens", "own means") else self.tokens)
                y = y / len(self.window) if fault == "own means" else y
                self.loss = self.loss + (y if fault == "a loss with its graph" else y.detach())
                self.loss = y.detach() if fault == "the last loss" else self.loss
            key = i if fault == "by micro-batch alone" else (i, chunk)
            self.held[key] = x, y
            self.latest.append((x, y))
            if fault == "one for the world" and dist.get_rank() == 1:
                self.loss = self.loss + 1
            return y if fault == "an output with its graph" else y.detach()

        def backward(self, i, chunk, arrived):
            keeps = fault in ("keeps everything", "keeps the graph")
            key = i if fault == "by micro-batch alone" else (i, chunk)
            x, y = self.held[key] if keeps else self.held.pop(key)
            if fault == "the latest first":
                x, y = self.latest.pop()
            elif fault == "the oldest first":
                x, y = self.latest.pop(0)
            else:
                self.latest.clear()
            if fault == "its own gradients":
                own = list(self.parts[chunk].parameters())
                gradients = torch.autograd.grad(y, own, arrived, retain_graph=True)
                for parameter, gradient in zip(own, gradients, strict=True):
                    parameter.grad = gradient
                if arrived is None or not self.parts[chunk].first:
                    return torch.autograd.grad(y, x, arrived)[0] if x.requires_grad else None
                return None
            y.backward(arrived, retain_graph=fault == "keeps the graph")
            return x.grad

        blank = Ours.blank

    return Pipeline


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

_ONE, _TWO, _THREE = (f"step {number} of 3.*" for number in (1, 2, 3))
WRONG = [
    (thought, _pipeline(thought), words)
    for thought, words in [
        ("own tokens", _ONE + "the loss is the sum of the micro-batches' own means"),
        ("own means", _ONE + "the loss is the mean of the micro-batches' own means"),
        ("a loss on every stage", _ONE + "only the last stage knows, is not 0, and 0 is expected"),
        ("the last loss", _ONE + "the loss is that of the last micro-batch alone"),
        ("a loss with its graph", _ONE + "still carries autograd's graph"),
        ("nothing is sent", _ONE + "nothing moves.*rank 1 waits for a message from rank 0"),
        ("no gradient of the input", _TWO + "B2 gives None, and stage 1 waits for what it makes"),
        ("one pass less", _ONE + "`run` makes 2 of 3 passes"),
        ("the mean of the passes", _TWO + "1/3 of what is expected: the mean over micro-batches"),
        ("tables not summed", _TWO + "this stage's own use of the tied table"),
        ("all forward passes first", _THREE + r"pass \d is F\d, and its order has B0"),
        ("keeps everything", _THREE + "what has had it must be let go"),
        ("keeps the graph", _THREE + "what has had it must be let go"),
        ("no finish", "step . of 3.*raised ValueError: `run` returns while what it has sent"),
        ("its own loss", _THREE + "1/3 of what is expected: of another loss"),
        ("gradients that were there", _TWO + "without what was there before"),
        ("an output with its graph", _ONE + "what F0 gives still carries autograd's graph"),
        ("a loss that goes on", _THREE + "the loss"),
        ("by micro-batch alone", _THREE + "."),
        ("the latest first", _THREE + "."),
        ("the oldest first", _TWO + "."),
        ("its own gradients", _TWO + "the gradient of"),
        ("one for the world", _ONE + "the loss"),
        ("one chunk", _THREE + "raised RuntimeError.*of your code"),
    ]
]
