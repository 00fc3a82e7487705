"""Coverage-guided fuzzing of everything that reads files and messages; ``make fuzz`` runs it."""
