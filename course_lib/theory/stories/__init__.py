"""What happens one after another: each function tells a Trace, which a stepper walks through."""
