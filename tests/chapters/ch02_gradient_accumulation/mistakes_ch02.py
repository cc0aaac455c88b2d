"""Answers to chapter 2 that a check must refuse: (exercise, what was thought, answer)."""


def _train_without(*missing: str):
    """The right loop of exercise 2.3, less what is named."""

    def train(model, optimizer, batches, accumulation):
        for start in range(0, len(batches), accumulation):
            window = batches[start : start + accumulation]
            if "tail" in missing and len(window) < accumulation:
                return
            samples = sum(len(inputs) for inputs, _ in window)
            if "zero_grad" not in missing:
                optimizer.zero_grad()
            for inputs, targets in window:
                squares = (model(inputs) - targets).square()
                loss = squares.sum() / samples
                if "division" in missing:
                    loss = squares.mean()
                if "tokens" in missing:
                    loss = squares.mean() / len(window)
                loss.backward()
            optimizer.step()

    return train


def _no_sync_around(what: str):
    def backward_window(model, window):
        from contextlib import nullcontext

        from course_lib.scratch.accumulation import loss_sum

        tokens = sum(labels.numel() for _, labels in window)
        for number, (inputs, labels) in enumerate(window, start=1):
            quiet = number < len(window) if what != "first" else number > 1
            context = model.no_sync() if quiet or what == "all" else nullcontext()
            if what == "backward":
                loss = loss_sum(model(inputs), labels) / tokens
                with context:
                    loss.backward()
            else:
                with context:
                    scale = 1 if what == "undivided" else tokens
                    (loss_sum(model(inputs), labels) / scale).backward()

    return backward_window


_FACTORS = {
    "forward passes of an epoch": 1,
    "updates of an epoch": 1 / 4,
    "exchanges of an epoch, with no_sync": 1 / 4,
    "exchanges of an epoch, without no_sync": 1,
    "samples behind an update": 4,
    "bytes stored for the backward pass": 1,
}
_HAPPENED = {
    "A": "the forward pass is outside no_sync",
    "B": "as the settings say",
    "C": "bf16 gradients",
    "D": "most updates without an exchange",
    "E": "accumulation 4",
}

MISTAKES = [
    ("2.1", "takes all that fits", (16, 7.5, 15, 1)),
    ("2.1", "exchanges in each micro-step", (15, 8, 16, 2)),
    ("2.2", "takes the claim at its word", {**_FACTORS, "forward passes of an epoch": 1 / 4}),
    ("2.2", "as without", {**_FACTORS, "exchanges of an epoch, with no_sync": 1}),
    ("2.3", "does not clear the gradients", _train_without("zero_grad")),
    ("2.3", "does not divide", _train_without("division")),
    ("2.3", "divides by micro-batches", _train_without("tokens")),
    ("2.3", "drops the last window", _train_without("tail")),
    ("2.3", "a function that trains nothing", lambda *arguments: True),
    ("2.4", "mean of the means", lambda means, tokens: sum(means) / len(means)),
    (
        "2.4",
        "NaN from padding",
        lambda means, tokens: sum(m * n for m, n in zip(means, tokens, strict=True)) / sum(tokens),
    ),
    ("2.5", "around backward only", _no_sync_around("backward")),
    ("2.5", "around everything", _no_sync_around("all")),
    ("2.5", "exchanges at the first", _no_sync_around("first")),
    ("2.5", "does not divide", _no_sync_around("undivided")),
    ("2.6", "forgets the bytes of a number", {**_HAPPENED, "D": "as the settings say"}),
    ("2.6", "fewer bytes are fine", {**_HAPPENED, "C": "as the settings say"}),
    ("2.7", "all of it is noise", (0.5, 69.8, 15.67)),
    ("2.7", "updates in place of samples", (1.679, 69.82, 1.068)),
    ("2.8", "the larger rates are Adam's", ("Y", 0.01, 1920, 0.6)),
    ("2.8", "linear for Adam", ("X", 0.0025, 1920, 0.6)),
    ("2.8", "takes 0.2 for the largest rate", ("X", 0.01, 384, 0.1875)),
    ("2.9", "the tokens stay", (1.25, 78_125, 32)),
    ("2.9", "as fast as there are GPUs", (9, 562_500, 32)),
]

# Right answers that look different from the solution: (exercise, form, answer).
OTHER_FORMS = [
    ("2.2", "in percent", {**_FACTORS, "updates of an epoch": "25 %"}),
    ("2.7", "rounded", (1.68, 69.8, 15.7)),
    ("2.8", "a small letter, and rounded", ("x", 0.01, 1920, 0.6)),
    ("2.9", "rounded", (9, 562_500, 4.44)),
]
