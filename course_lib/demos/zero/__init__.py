"""ZeRO: program, versions, prediction."""
