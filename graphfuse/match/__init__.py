"""Finding regions, legality before profit, rewriting, explaining."""
