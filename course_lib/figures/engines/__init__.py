"""What draws: who holds what (`cells`), who did what when (`lanes`), on a `page` of blocks."""
