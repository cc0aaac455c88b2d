"""Chart types: `cells` (who holds what), `lanes` (who did what when), `bars`, `lines` on axes."""
